"""The failures that are kept for people."""

from collections.abc import Iterator
from itertools import count

import pytest

from modserve.observability.failures import MOST_FAILURES, FailureLog, RecentFailures


@pytest.fixture
def failures() -> RecentFailures:
    seconds: Iterator[int] = count(1)
    return RecentFailures(lambda: next(seconds))


def test_failures_that_are_alike_are_one(failures: RecentFailures) -> None:
    for request in ("a", "b"):
        failures.add("HTTP", "simple", 1, request, 400, "wrong shape")
    failures.add("gRPC", "", None, "", "NOT_FOUND", "no such model")
    failures.add("HTTP", "simple", 1, "c", 400, "wrong shape")
    latest, other = failures.latest()
    assert (latest.count, latest.request_id, latest.first_ms, latest.last_ms) == (3, "c", 1000, 4000)
    assert (latest.protocol, latest.model, latest.version, latest.status) == ("HTTP", "simple", "1", "400")
    assert (other.protocol, other.model, other.version, other.count) == ("gRPC", "", "", 1)
    assert failures.total == 4


def test_they_are_bounded(failures: RecentFailures) -> None:
    for number in range(3 * MOST_FAILURES):
        failures.add("HTTP", "m" * 10_000, None, "i" * 10_000, 400, f"{number} " + "x" * 100_000)
    kept = failures.latest()
    assert len(kept) == MOST_FAILURES
    assert failures.total == 3 * MOST_FAILURES
    assert kept[0].message.startswith(f"{3 * MOST_FAILURES - 1} ")
    assert max(len(each.message) + len(each.model) + len(each.request_id) for each in kept) < 1300


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a\nb"), ("\x1b[31mred", "\\x1b[31mred"), ("a\u202eb", "a\\u202eb"), ("\udcff", "\\udcff")],
)
def test_what_cannot_be_seen_is_escaped_but_for_line_breaks(failures: RecentFailures, text: str, shown: str) -> None:
    failures.add("HTTP", text, None, text, 400, text)
    (failure,) = failures.latest()
    assert (failure.model, failure.request_id, failure.message) == (shown, shown, shown)


def test_the_log_keeps_what_it_does_not_write() -> None:
    log = FailureLog(lambda: 0.0, lambda delay, callback: None)
    for _ in range(50):
        log.record("HTTP", "simple", None, "", 400, "wrong")
    assert log.recent.total == log.recent.latest()[0].count == 50

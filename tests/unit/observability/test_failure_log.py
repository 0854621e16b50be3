"""The log of failed requests: what a line says, how many there are, and that clients cannot forge any."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from modserve.core.runtime.log_limit import LINES_PER_SECOND
from modserve.observability.failures import FailureLog


class Time:
    """A clock that the test turns, and the calls it was asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append((self.now + seconds, call))


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def failures(time: Time, caplog: pytest.LogCaptureFixture) -> FailureLog:
    caplog.set_level(logging.INFO, "modserve")
    return FailureLog(lambda: time.now, time.later)


def test_a_line_tells_which_request_failed_and_why(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    failures.record("HTTP", "simple", 3, "42", 400, "unexpected shape")
    failures.record("gRPC", "simple", "3", "", "INVALID_ARGUMENT", "unexpected shape")
    failures.record("HTTP", "", None, "", 404, "Not Found")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "HTTP request failed, model 'simple', version 3, request id '42', status 400: unexpected shape"),
        ("INFO", "gRPC request failed, model 'simple', version 3, status INVALID_ARGUMENT: unexpected shape"),
        ("INFO", "HTTP request failed, status 404: Not Found"),
    ]


def test_clients_cannot_forge_lines(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    text = "a\r\nI0101 all is well\x1b[2J\u2028\u202e\ud800"
    failures.record("HTTP", text, text, f"{text}', status 200: '", 400, text)
    (record,) = caplog.records
    message = record.getMessage()
    assert message.isprintable()
    assert message.count("a\\r\\nI0101 all is well\\x1b[2J\\u2028\\u202e\\ud800") == 4
    assert """request id "a""" in message


def test_long_texts_are_cut(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    failures.record("HTTP", "m" * 10**6, "9" * 10**6, "i" * 10**6, 400, "x" * 10**6)
    (record,) = caplog.records
    assert len(record.getMessage()) < 1500
    assert record.getMessage().endswith("xxx...")


def test_there_are_few_lines_a_second(failures: FailureLog, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(LINES_PER_SECOND + 1234):
        failures.record("HTTP", "simple", None, "", 400, "no")
    assert len(caplog.records) == LINES_PER_SECOND
    ((moment, tell),) = time.calls
    assert moment == pytest.approx(time.now + 1)

    time.now = moment
    tell()
    assert caplog.messages[-1] == "and 1,234 more failed requests"
    caplog.clear()
    for _ in range(LINES_PER_SECOND + 1):
        failures.record("HTTP", "simple", None, "", 400, "no")
    assert len(caplog.records) == LINES_PER_SECOND
    time.calls[-1][1]()
    assert caplog.messages[-1] == "and 1 more failed request"


def test_nothing_is_counted_while_nothing_is_logged(
    failures: FailureLog, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "modserve")
    for _ in range(LINES_PER_SECOND + 1):
        failures.record("HTTP", "simple", None, "", 400, "no")
    assert not caplog.records
    assert not time.calls


async def test_the_rest_is_told_by_the_event_loop(
    time: Time, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "modserve")
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", time.later)
    failures = FailureLog(lambda: time.now)
    for _ in range(LINES_PER_SECOND + 2):
        failures.record("HTTP", "simple", None, "", 400, "no")
    ((_, tell),) = time.calls
    tell()
    assert caplog.messages[-1] == "and 2 more failed requests"

"""The rules: which waiting requests run together, and when."""

from collections.abc import Iterator

import pytest
from together import Unread, decided

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.scheduling.batching import Decision, Dispatch, Reason, WaitUntil, direct, dynamic
from modserve.testing import inflight

NOW = 1_000
DELAY = 100


def waiting(*sizes: int, age: int = 0) -> list[Inflight]:
    """Requests of the given batch sizes, the oldest of which has waited for `age`, the others for 0."""
    found: list[Inflight] = []
    for size in sizes:
        member = inflight(1)
        member.batch_size = size
        member.queue_start_ns = NOW if found else NOW - age
        found.append(member)
    return found


def decide(
    entries: list[Inflight], preferred: tuple[int, ...] = (), delay: int = 0, max_batch_size: int = 8
) -> int | WaitUntil:
    """How many go, or when to look again."""
    policy = DynamicBatching(preferred_batch_sizes=preferred, max_queue_delay_ns=delay)
    decision = decided(dynamic(policy, max_batch_size), entries, NOW)
    return decision.count if isinstance(decision, Dispatch) else decision


WAIT = WaitUntil(NOW + DELAY)

# waiting, preferred sizes, decision without a delay, decision with one
RULES: dict[str, tuple[list[Inflight], tuple[int, ...], int, int | WaitUntil]] = {
    "one": (waiting(1), (8,), 1, WAIT),
    "some": (waiting(1, 2, 1), (8,), 3, WAIT),
    "full": (waiting(4, 4), (8,), 2, 2),
    "full, and more": (waiting(4, 4, 1), (8,), 2, 2),
    "full with one": (waiting(8, 1), (8,), 1, 1),
    "full of single items": (waiting(*[1] * 20), (8,), 8, 8),
    "next does not fit": (waiting(5, 4), (8,), 1, 1),
    "small one behind one that does not fit": (waiting(5, 4, 1), (8,), 1, 1),
    "larger than the limit": (waiting(9, 1), (8,), 1, 1),
    "no items count as one": (waiting(*[0] * 9), (8,), 8, 8),
    "no items and some": (waiting(0, 2, 0), (4,), 3, 3),
    "preferred size": (waiting(1, 1, 2), (4,), 3, 3),
    "preferred size, and more": (waiting(1, 3, 1, 1), (4,), 2, 2),
    "largest of the preferred sizes": (waiting(1, 1, 1, 1, 1, 1), (2, 4), 4, 4),
    "smaller of the preferred sizes": (waiting(1, 1, 1), (2, 4), 2, 2),
    "preferred size is passed over": (waiting(3, 2), (4, 8), 2, WAIT),
    "largest preferred size is passed over": (waiting(3, 2), (4,), 1, 1),
    "all are passed over, then one is met": (waiting(1, 4, 3), (4, 8), 3, 3),
    "beyond all preferred sizes": (waiting(6), (4,), 1, 1),
    "no preferred sizes": (waiting(4, 3), (), 2, WAIT),
    "no preferred sizes, full": (waiting(4, 4), (), 2, 2),
}


@pytest.mark.parametrize("case", RULES)
def test_dynamic_without_delay(case: str) -> None:
    entries, preferred, expected, _ = RULES[case]
    assert decide(entries, preferred) == expected


@pytest.mark.parametrize("case", RULES)
def test_dynamic_with_delay(case: str) -> None:
    entries, preferred, _, expected = RULES[case]
    assert decide(entries, preferred, DELAY) == expected


@pytest.mark.parametrize(
    ("entries", "preferred", "expected"),
    [
        (waiting(1, 1, age=DELAY), (8,), 2),
        (waiting(1, 1, age=DELAY + 1), (8,), 2),
        (waiting(1, 1, age=DELAY - 1), (8,), WaitUntil(NOW + 1)),
        (waiting(1, 1, 1, age=DELAY), (2,), 3),
        (waiting(1, 1, 1, age=DELAY - 1), (2,), 2),
        (waiting(3, 4, 4, age=DELAY), (4,), 2),
    ],
    ids=["due", "overdue", "not yet", "more than preferred", "preferred", "what fits"],
)
def test_when_the_oldest_has_waited(
    entries: list[Inflight], preferred: tuple[int, ...], expected: int | WaitUntil
) -> None:
    assert decide(entries, preferred, DELAY) == expected


@pytest.mark.parametrize("max_batch_size", [0, 1])
def test_models_without_batches_run_one_request_at_a_time(max_batch_size: int) -> None:
    assert decide(waiting(0, 0), (), DELAY, max_batch_size) == 1


@pytest.mark.parametrize("delay", [0, DELAY], ids=["no delay", "delay"])
@pytest.mark.parametrize("preferred", [(8,), (4,), (2, 8)], ids=str)
def test_no_more_is_looked_at_than_fits(delay: int, preferred: tuple[int, ...]) -> None:
    looked_at = 0

    def counting() -> Iterator[Inflight]:
        nonlocal looked_at
        for entry in waiting(*[1] * 1000):
            looked_at += 1
            yield entry

    policy = DynamicBatching(preferred_batch_sizes=preferred, max_queue_delay_ns=delay)
    dynamic(policy, 8)(Unread(counting()), NOW)
    assert looked_at <= 9


REASONS = {
    "full": (waiting(4, 4), (8,), 0, Reason.FULL),
    "next does not fit": (waiting(5, 4), (8,), DELAY, Reason.FULL),
    "preferred": (waiting(1, 1, 1), (2,), 0, Reason.PREFERRED),
    "preferred and full": (waiting(4, 4), (4, 8), 0, Reason.FULL),
    "passed over": (waiting(3, 2), (4,), DELAY, Reason.FULL),
    "delay": (waiting(1, age=DELAY), (8,), DELAY, Reason.DELAY),
    "no delay": (waiting(1), (8,), 0, Reason.IDLE_INSTANCE),
}


@pytest.mark.parametrize("case", REASONS)
def test_why_a_batch_does_not_grow(case: str) -> None:
    entries, preferred, delay, reason = REASONS[case]
    decision = decided(dynamic(DynamicBatching(preferred, delay), 8), entries, NOW)
    assert isinstance(decision, Dispatch)
    assert decision.reason is reason


RUN = 7_000_000
LONG = 60_000_000


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (RUN + 1_000_000, Dispatch(2, Reason.DEADLINE)),
        (RUN, Dispatch(2, Reason.DEADLINE)),
        (RUN + 1_000_001, WaitUntil(NOW + 1)),
        (LONG + RUN + 1_000_000, WaitUntil(NOW + LONG)),
    ],
    ids=["just in time", "late already", "not yet", "after the delay"],
)
def test_a_deadline_is_met_though_the_delay_is_longer(left: int, expected: Decision) -> None:
    entries = waiting(1, 2)
    entries[1].deadline_ns = NOW + left
    rule = dynamic(DynamicBatching((8,), LONG), 8, run_ns=lambda batch_size: RUN if batch_size == 3 else 0)
    assert decided(rule, entries, NOW) == expected


@pytest.mark.parametrize(
    ("limit", "deadline", "expected"),
    [
        (2_000_000, 0, WaitUntil(NOW + 1_000_000)),
        (1_000_000, 0, Dispatch(2, Reason.DEADLINE)),
        (LONG + 1_000_001, 0, WaitUntil(NOW + LONG)),
        (2_000_000, RUN + 4_000_000, WaitUntil(NOW + 1_000_000)),
        (3_000_000, RUN + 2_000_000, WaitUntil(NOW + 1_000_000)),
    ],
    ids=["not yet", "just in time", "after the delay", "before the deadline", "after the deadline"],
)
def test_a_queue_limit_is_met_whatever_the_execution_takes(limit: int, deadline: int, expected: Decision) -> None:
    entries = waiting(1, 2)
    entries[0].deadline_ns = deadline and NOW + deadline
    entries[1].queue_limit_ns = NOW + limit
    rule = dynamic(DynamicBatching((8,), LONG), 8, run_ns=lambda batch_size: RUN)
    assert decided(rule, entries, NOW) == expected


@pytest.mark.parametrize("entries", [waiting(8), waiting(1, 1, 1, age=DELAY)], ids=["one", "some"])
def test_direct_runs_each_request_on_its_own(entries: list[Inflight]) -> None:
    assert decided(direct, entries, NOW) == Dispatch(1, Reason.SINGLE)

"""The rules: which waiting requests run together, and when."""

from collections.abc import Iterable, Iterator

import pytest

from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching
from modserve.scheduling.batching import Decision, Dispatch, Idle, WaitUntil, direct, dynamic
from modserve.testing import inflight

NOW = 1_000
DELAY = 100


def waiting(*entries: int | tuple[int, str], age: int = 0) -> list[Inflight]:
    """Requests of the given batch sizes (and shapes), the oldest of which has waited for `age`, the others for 0."""
    found: list[Inflight] = []
    for entry in entries:
        size, shape = entry if isinstance(entry, tuple) else (entry, "")
        member = inflight(1, shape_key=shape)
        member.batch_size = size
        member.queue_start_ns = NOW if found else NOW - age
        found.append(member)
    return found


def decide(
    entries: Iterable[Inflight], preferred: tuple[int, ...] = (), delay: int = 0, max_batch_size: int = 8
) -> Decision:
    policy = DynamicBatching(preferred_batch_sizes=preferred, max_queue_delay_ns=delay)
    return dynamic(policy, max_batch_size)(entries, NOW)


WAIT = WaitUntil(NOW + DELAY)

# waiting, preferred sizes, decision without a delay, decision with one
RULES: dict[str, tuple[list[Inflight], tuple[int, ...], Decision, Decision]] = {
    "nobody": (waiting(), (8,), Idle(), Idle()),
    "one": (waiting(1), (8,), Dispatch(1), WAIT),
    "some": (waiting(1, 2, 1), (8,), Dispatch(3), WAIT),
    "full": (waiting(4, 4), (8,), Dispatch(2), Dispatch(2)),
    "full, and more": (waiting(4, 4, 1), (8,), Dispatch(2), Dispatch(2)),
    "full with one": (waiting(8, 1), (8,), Dispatch(1), Dispatch(1)),
    "full of single items": (waiting(*[1] * 20), (8,), Dispatch(8), Dispatch(8)),
    "next does not fit": (waiting(5, 4), (8,), Dispatch(1), Dispatch(1)),
    "small one behind one that does not fit": (waiting(5, 4, 1), (8,), Dispatch(1), Dispatch(1)),
    "larger than the limit": (waiting(9, 1), (8,), Dispatch(1), Dispatch(1)),
    "other shape": (waiting((1, "a"), (1, "a"), (1, "b"), (1, "a")), (8,), Dispatch(2), Dispatch(2)),
    "other shape at once": (waiting((1, "a"), (1, "b")), (8,), Dispatch(1), Dispatch(1)),
    "same shape, not the first's": (waiting((1, "b"), (1, "b")), (8,), Dispatch(2), WAIT),
    "no items count as one": (waiting(*[0] * 9), (8,), Dispatch(8), Dispatch(8)),
    "no items and some": (waiting(0, 2, 0), (4,), Dispatch(3), Dispatch(3)),
    "preferred size": (waiting(1, 1, 2), (4,), Dispatch(3), Dispatch(3)),
    "preferred size, and more": (waiting(1, 3, 1, 1), (4,), Dispatch(2), Dispatch(2)),
    "largest of the preferred sizes": (waiting(1, 1, 1, 1, 1, 1), (2, 4), Dispatch(4), Dispatch(4)),
    "smaller of the preferred sizes": (waiting(1, 1, 1), (2, 4), Dispatch(2), Dispatch(2)),
    "preferred size is passed over": (waiting(3, 2), (4, 8), Dispatch(2), WAIT),
    "largest preferred size is passed over": (waiting(3, 2), (4,), Dispatch(1), Dispatch(1)),
    "all are passed over, then one is met": (waiting(1, 4, 3), (4, 8), Dispatch(3), Dispatch(3)),
    "beyond all preferred sizes": (waiting(6), (4,), Dispatch(1), Dispatch(1)),
    "preferred size before another shape": (waiting((2, "a"), (1, "a"), (1, "b")), (2,), Dispatch(1), Dispatch(1)),
    "no preferred sizes": (waiting(4, 3), (), Dispatch(2), WAIT),
    "no preferred sizes, full": (waiting(4, 4), (), Dispatch(2), Dispatch(2)),
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
        (waiting(1, 1, age=DELAY), (8,), Dispatch(2)),
        (waiting(1, 1, age=DELAY + 1), (8,), Dispatch(2)),
        (waiting(1, 1, age=DELAY - 1), (8,), WaitUntil(NOW + 1)),
        (waiting(1, 1, 1, age=DELAY), (2,), Dispatch(3)),
        (waiting(1, 1, 1, age=DELAY - 1), (2,), Dispatch(2)),
        (waiting(3, 4, 4, age=DELAY), (4,), Dispatch(2)),
        (waiting((1, "a"), (1, "b"), age=DELAY), (8,), Dispatch(1)),
    ],
    ids=["due", "overdue", "not yet", "more than preferred", "preferred", "what fits", "one shape"],
)
def test_when_the_oldest_has_waited(entries: list[Inflight], preferred: tuple[int, ...], expected: Decision) -> None:
    assert decide(entries, preferred, DELAY) == expected


@pytest.mark.parametrize("max_batch_size", [0, 1])
def test_models_without_batches_run_one_request_at_a_time(max_batch_size: int) -> None:
    assert decide(waiting(0, 0), (), DELAY, max_batch_size) == Dispatch(1)


@pytest.mark.parametrize("delay", [0, DELAY], ids=["no delay", "delay"])
@pytest.mark.parametrize("preferred", [(8,), (4,), (2, 8)], ids=str)
def test_no_more_is_looked_at_than_fits(delay: int, preferred: tuple[int, ...]) -> None:
    looked_at = 0

    def counting() -> Iterator[Inflight]:
        nonlocal looked_at
        for entry in waiting(*[1] * 1000):
            looked_at += 1
            yield entry

    decide(counting(), preferred, delay)
    assert looked_at <= 9


@pytest.mark.parametrize(("entries", "expected"), [(waiting(), Idle()), (waiting(8), Dispatch(1))], ids=["0", "1"])
def test_direct(entries: list[Inflight], expected: Decision) -> None:
    assert direct(entries, NOW) == expected


def test_direct_runs_each_request_on_its_own() -> None:
    assert direct(waiting(1, 1, 1, age=DELAY), NOW) == Dispatch(1)

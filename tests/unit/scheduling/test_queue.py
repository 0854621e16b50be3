"""The queue that requests can leave in the middle."""

import weakref

import pytest

from modserve.core.errors import cancelled
from modserve.core.inflight import Inflight
from modserve.core.timing import ExecutionTiming
from modserve.scheduling.queue import RequestQueue
from modserve.testing import RecordingSink, inflight


def fill(queue: RequestQueue, *entries: Inflight) -> list[Inflight]:
    for entry in entries:
        queue.append(entry)
    return list(entries)


def leave(queue: RequestQueue, *entries: Inflight) -> None:
    for entry in entries:
        entry.fail(cancelled())
        queue.left()


def test_first_in_first_out() -> None:
    queue = RequestQueue()
    entries = fill(queue, *(inflight() for _ in range(5)))
    assert (len(queue), list(queue)) == (5, entries)
    assert queue.take(2) == entries[:2]
    assert (len(queue), list(queue)) == (3, entries[2:])
    assert queue.take(3) == entries[2:]
    assert (len(queue), list(queue)) == (0, [])


def test_those_that_left_are_neither_counted_nor_taken() -> None:
    queue = RequestQueue()
    first, second, third, fourth = fill(queue, *(inflight() for _ in range(4)))
    leave(queue, first, third)
    assert (len(queue), list(queue)) == (2, [second, fourth])
    assert queue.take(2) == [second, fourth]
    assert len(queue) == 0


def fill_with_sinks(queue: RequestQueue, count: int) -> "weakref.WeakSet[RecordingSink]":
    """Waiting requests, known to the queue alone; their sinks live as long as they do."""
    sinks: weakref.WeakSet[RecordingSink] = weakref.WeakSet()
    for _ in range(count):
        entry = inflight(deadline_ns=10**18)
        assert isinstance(entry.sink, RecordingSink)
        sinks.add(entry.sink)
        queue.append(entry)
    return sinks


@pytest.mark.parametrize("others", [1, 100])
@pytest.mark.parametrize("how", ["run", "cancelled"])
def test_those_that_left_are_not_kept_though_others_stay(how: str, others: int) -> None:
    queue = RequestQueue()
    sinks = fill_with_sinks(queue, 1000)
    fill(queue, *(inflight(deadline_ns=5) for _ in range(others)))
    if how == "run":
        for entry in queue.take(1000):
            entry.timing = ExecutionTiming()
    else:
        for entry in list(queue)[:1000]:
            leave(queue, entry)
    del entry
    fill(queue, inflight(deadline_ns=5))
    assert len(queue) == others + 1
    assert len(sinks) <= 64 + 2 * len(queue)


@pytest.mark.parametrize("how", ["taken", "cancelled"])
def test_an_idle_queue_keeps_nothing(how: str) -> None:
    queue = RequestQueue()
    sinks = fill_with_sinks(queue, 10)
    if how == "taken":
        queue.take(10)
    else:
        leave(queue, *queue)
    assert len(sinks) == 0


def test_deadlines() -> None:
    queue = RequestQueue()
    late, early, never = fill(queue, inflight(deadline_ns=30), inflight(deadline_ns=20), inflight())
    assert queue.next_deadline_ns() == 20
    assert queue.expired(19) == []
    assert queue.expired(20) == [early]
    leave(queue, early)
    assert queue.next_deadline_ns() == 30
    assert queue.expired(1000) == [late]
    leave(queue, late)
    assert queue.next_deadline_ns() == 0
    assert queue.take(1) == [never]


def test_equal_deadlines_expire_in_order_of_arrival() -> None:
    queue = RequestQueue()
    entries = fill(queue, *(inflight(deadline_ns=5) for _ in range(10)))
    assert queue.expired(5) == entries


def test_the_deadlines_of_those_that_left_or_run_do_not_count() -> None:
    queue = RequestQueue()
    gone, running, waiting = fill(queue, *(inflight(deadline_ns=deadline) for deadline in (1, 2, 3)))
    leave(queue, gone)
    queue.take(1)
    running.timing = ExecutionTiming()
    assert queue.next_deadline_ns() == 3
    assert queue.expired(10) == [waiting]

"""The queue that requests can leave in the middle, by level, and by who may share a batch."""

import weakref
from typing import Any

import pytest

from modserve.core.errors import cancelled
from modserve.core.requests.inflight import Inflight
from modserve.scheduling.batching import BatchCandidates
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import GONE, QueueSettings
from modserve.testing import RecordingSink, inflight


class Queue(LevelQueue):
    """With questions that only tests ask."""

    def __init__(self, **more: Any) -> None:
        super().__init__(QueueSettings(sums=True, **more))

    def __len__(self) -> int:
        return self.count

    def head(self) -> Inflight:
        return next(iter(self))

    def group(self, like: Inflight) -> BatchCandidates:
        return self._prepare(self._groups[like.shape_key])

    def together(self, like: Inflight) -> list[Inflight]:
        return list(self.group(like))

    def take_like(self, like: Inflight, count: int) -> list[Inflight]:
        return self.take(self.group(like), count)

    def first_candidates(self) -> list[Inflight]:
        return [next(iter(group)) for group in self.candidates()]

    def ripe(self) -> list[Inflight]:
        return [next(iter(self._prepare(group))) for group in self._ripe]

    def waiting(self, level: int) -> int:
        return sum(entry.level == level for entry in self)


def fill(queue: Queue, *entries: Inflight, level: int = 0) -> list[Inflight]:
    for entry in entries:
        queue.append(entry, level)
    return list(entries)


def many(count: int, **more: Any) -> list[Inflight]:
    return [inflight(**more) for _ in range(count)]


def leave(queue: Queue, *entries: Inflight) -> None:
    for entry in entries:
        queue.left(entry)
        entry.settle(cancelled())


def take(queue: Queue, count: int) -> list[Inflight]:
    """Of those that may share a batch with the most urgent."""
    return queue.take_like(queue.head(), count)


def test_first_in_first_out() -> None:
    queue = Queue()
    entries = fill(queue, *many(5))
    assert (len(queue), list(queue), queue.head()) == (5, entries, entries[0])
    assert queue.together(entries[3]) == entries
    assert take(queue, 2) == entries[:2]
    assert (len(queue), list(queue), queue.head()) == (3, entries[2:], entries[2])
    assert take(queue, 3) == entries[2:]
    assert (len(queue), list(queue), queue.waiting(0)) == (0, [], 0)
    assert {entry.level for entry in entries} == {GONE}


def test_those_that_left_are_neither_counted_nor_taken() -> None:
    queue = Queue()
    first, second, third, fourth = fill(queue, *many(4))
    leave(queue, first, third)
    assert (len(queue), list(queue), queue.waiting(0)) == (2, [second, fourth], 2)
    assert take(queue, 2) == [second, fourth]
    assert len(queue) == 0


# Who shares a batch


def test_others_are_passed_over() -> None:
    queue = Queue()
    a, b, c, d, e = fill(queue, *(inflight(shape_key=shape) for shape in "xyxyx"))
    assert queue.together(c) == [a, c, e]
    assert queue.take_like(a, 2) == [a, c]
    assert queue.head() is b
    assert queue.together(d) == [b, d]
    assert queue.take_like(b, 2) == [b, d]
    assert queue.take_like(e, 1) == [e]


def test_who_came_much_later_does_not_overtake() -> None:
    queue = Queue(look_ahead=3)
    entries = fill(queue, *(inflight(shape_key=shape) for shape in "xyyxyyx"))
    assert queue.together(entries[0]) == [entries[0], entries[3]]


def test_nobody_is_overtaken_without_look_ahead() -> None:
    """A batch ends before the first request of another shape, however many of its own came before that."""
    queue = Queue(look_ahead=0)
    first, second, other, third = (inflight(shape_key=key) for key in ("a", "a", "b", "a"))
    fill(queue, first, second, other, third)
    together, *_ = queue.candidates()
    assert (list(together), together.closed) == ([first, second], True)
    assert take(queue, 2) == [first, second]
    assert take(queue, 1) == [other]
    assert take(queue, 1) == [third]


def test_nobody_is_overtaken_by_what_is_less_urgent_and_came_before() -> None:
    queue = Queue(look_ahead=0)
    early, first, other = (inflight(shape_key=key) for key in ("a", "a", "b"))
    fill(queue, early, level=4)
    fill(queue, first, other, level=2)
    together, *_ = queue.candidates()
    assert (list(together), together.whole, together.closed) == ([first], False, True)
    assert take(queue, 1) == [first]
    assert take(queue, 1) == [other]
    assert take(queue, 1) == [early]


def test_what_is_taken_is_what_is_together() -> None:
    queue = Queue(look_ahead=3)
    (first,) = fill(queue, inflight(shape_key="x"), level=1)
    fill(queue, *many(9, shape_key="y"))
    (late,) = fill(queue, inflight(shape_key="x"), level=1)
    behind = inflight(shape_key="x")
    fill(queue, behind, level=2)
    behind.arrival = first.arrival + 1  # as one that was moved there
    assert queue.together(first) == [first, behind]
    assert queue.take_like(first, 2) == [first, behind]
    assert queue.together(late) == [late]


def test_groups_with_enough_for_a_batch() -> None:
    queue = Queue(ripe_size=4)
    x1, y1, x2, y2 = fill(queue, *(inflight(2, shape_key=shape) for shape in "xyxy"))
    (z,) = fill(queue, inflight(3, shape_key="z"))
    assert queue.ripe() == [x1, y1]
    leave(queue, y1)
    assert queue.ripe() == [x1]
    queue.take_like(x1, 1)
    assert queue.ripe() == []
    fill(queue, inflight(1, shape_key="z"))
    assert queue.ripe() == [z]
    queue.take_like(z, 2)
    assert queue.ripe() == []
    assert sorted(map(id, queue)) == sorted(map(id, (x2, y2)))


# Levels


def test_the_most_urgent_come_first() -> None:
    queue = Queue()
    (low,) = fill(queue, inflight(), level=4)
    high, higher = fill(queue, *many(2), level=2)
    assert (queue.head(), queue.first_candidates()) == (high, [high])
    assert queue.together(low) == list(queue) == [high, higher, low]
    assert queue.take_like(low, 2) == [high, higher]
    assert queue.head() is low


def test_levels_count_their_own() -> None:
    queue = Queue()
    entries = [*fill(queue, *many(3), level=2), *fill(queue, *many(2), level=4)]
    leave(queue, entries[1])
    assert [queue.waiting(level) for level in (0, 2, 4)] == [0, 2, 2]


def test_moved_to_another_level() -> None:
    queue = Queue()
    first, second, third = fill(queue, *many(3))
    queue.move(first, 1, 70)
    assert (len(queue), list(queue)) == (3, [second, third, first])
    assert queue.together(third) == [second, third, first]
    assert (queue.head(), first.level_ns, queue.waiting(1)) == (second, 70, 1)
    assert take(queue, 3) == [second, third, first]


def test_what_moves_keeps_its_deadlines_though_it_is_alone() -> None:
    queue = Queue()
    entry = inflight(deadline_ns=50)
    queue.append(entry, 0, timeout_ns=30)
    queue.move(entry, 2, 10)
    assert queue.pop_timed_out(30) == [entry]
    queue.move(entry, 3, 30)
    assert (queue.next_time_ns(), queue.ahead(2), queue.ahead(3)) == (50, (0, 0), (1, 1))


# What is kept


def fill_with_sinks(queue: Queue, count: int) -> "weakref.WeakSet[RecordingSink]":
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
    queue = Queue()
    fill(queue, *many(others, deadline_ns=5, shape_key="other"))
    sinks = fill_with_sinks(queue, 1000)
    fill(queue, *many(others, deadline_ns=5))
    if how == "run":
        queue.take_like(list(queue)[-1], 1000)
    else:
        for entry in list(queue)[others:-others]:
            leave(queue, entry)
        del entry
    fill(queue, inflight(deadline_ns=5))
    assert len(queue) == 2 * others + 1
    assert len(sinks) <= 64 + 2 * len(queue)


@pytest.mark.parametrize("how", ["taken", "cancelled"])
def test_an_idle_queue_keeps_nothing(how: str) -> None:
    queue = Queue()
    sinks = fill_with_sinks(queue, 10)
    if how == "taken":
        take(queue, 10)
    else:
        leave(queue, *queue)
    assert len(sinks) == 0


# Times


def test_deadlines() -> None:
    queue = Queue()
    late, early, never = fill(queue, inflight(deadline_ns=30), inflight(deadline_ns=20), inflight())
    assert (queue.next_time_ns(), queue._pressing()) == (20, [early])
    assert queue.pop_expired(19) == []
    assert queue.pop_expired(20) == [early]
    leave(queue, early)
    assert (queue.next_time_ns(), queue._pressing()) == (30, [late])
    assert queue.pop_expired(1000) == [late]
    leave(queue, late)
    assert (queue.next_time_ns(), queue._pressing()) == (0, [])
    assert take(queue, 1) == [never]


def test_what_its_policy_finds_too_old() -> None:
    queue = Queue()
    entry, other = inflight(deadline_ns=50), inflight()
    queue.append(entry, 0, timeout_ns=20)
    queue.append(other, 0, timeout_ns=40)
    assert (queue.next_time_ns(), queue._pressing()) == (20, [entry, entry])
    assert queue.pop_expired(20) == []
    assert queue.pop_timed_out(20) == [entry]
    queue.move(entry, 1, 20)
    assert (queue.next_time_ns(), queue._pressing()) == (40, [entry, other])
    assert queue.pop_timed_out(40) == [other]
    assert queue.pop_expired(50) == [entry]


def test_equal_deadlines_expire_in_order_of_arrival() -> None:
    queue = Queue()
    entries = fill(queue, *many(10, deadline_ns=5))
    assert queue.pop_expired(5) == entries


def test_the_deadlines_of_those_that_left_do_not_count() -> None:
    queue = Queue()
    gone, running, waiting = fill(queue, *(inflight(deadline_ns=deadline) for deadline in (1, 2, 3)))
    leave(queue, gone)
    assert take(queue, 1) == [running]
    assert queue.next_time_ns() == 3
    assert queue.pop_expired(10) == [waiting]


def test_one_that_comes_again_waits_behind_those_that_came_since() -> None:
    queue = Queue()
    again, other, third = (inflight(deadline_ns=9, shape_key=key) for key in ("a", "b", "c"))
    fill(queue, again, other, third)
    for _ in range(3):
        assert take(queue, 1) == [again]
        fill(queue, again)
        assert list(queue) == [other, third, again]
        assert queue.first_candidates()[0] is queue.head() is other
        assert take(queue, 1) == [other]
        fill(queue, other)
        assert take(queue, 1) == [third]
        fill(queue, third)
    assert queue.pop_expired(9) == [again, other, third]


def test_lines_hold_nothing_but_what_waits() -> None:
    """Iterative sequences come back after each step; some are cancelled in the middle."""
    queue = Queue()
    entries = fill(queue, *many(200), level=3) + fill(queue, *many(200, shape_key="b"), level=5)
    for _ in range(100):
        batch = take(queue, 8)
        fill(queue, *batch, level=3)
    leave(queue, *entries[::2])
    assert len(queue) == 200
    assert {id(entry) for entry in queue} == {id(entry) for entry in entries[1::2]}
    lanes = [lane for group in queue._groups.values() for lane in group.lanes.values()]
    assert [len(lane) for lane in lanes] == [len(level.line) for level in queue._levels.values()] == [100, 100]


def test_the_oldest_and_those_in_a_hurry_are_candidates_behind_the_most_urgent() -> None:
    queue = Queue(ripe_size=3)
    (old,) = fill(queue, inflight(shape_key="old"), level=6)
    ripe = fill(queue, *many(3, shape_key="ripe"), level=5)
    (late,) = fill(queue, inflight(shape_key="late", deadline_ns=9), level=5)
    (urgent,) = fill(queue, inflight(shape_key="urgent"), level=2)
    fill(queue, *many(2, shape_key="other"), level=5)
    assert queue.first_candidates() == [urgent, ripe[0], old, late]


def test_what_runs_again_from_the_middle_waits_once() -> None:
    queue = Queue()
    first = fill(queue, *many(10, shape_key="a"))
    other = fill(queue, *many(10, shape_key="b"))
    for _ in range(3):
        batch = queue.take_like(other[0], 5)
        fill(queue, *batch)
        assert (len(queue), len(list(queue))) == (20, 20)
    assert queue.take_like(first[0], 10) == first


def test_a_time_limit_of_the_last_stay_says_nothing_any_more() -> None:
    queue = Queue()
    [entry] = fill(queue, *many(1))
    queue.append(other := inflight(), timeout_ns=50)
    assert take(queue, 1) == [entry]
    queue.append(entry, timeout_ns=10)
    assert take(queue, 2) == [other, entry]
    queue.append(other, timeout_ns=90)
    queue.append(entry)
    assert queue.next_time_ns() == 90
    assert queue.pop_timed_out(60) == []
    assert queue.pop_timed_out(90) == [other]

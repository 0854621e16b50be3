"""The requests that wait, by length."""

from collections.abc import Iterable

from modserve.core.requests.inflight import Inflight
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.prediction import LengthIndex
from modserve.scheduling.queue import QueueSettings
from modserve.testing import inflight

MANY = 1 << 30


def tens(length: int) -> int:
    return -(-length // 10) * 10


def waiting(length: int, level: int = 0, arrival: int = 0) -> Inflight:
    entry = inflight()
    entry.length, entry.level, entry.arrival = length, level, arrival
    return entry


def lengths_of(entries: Iterable[Inflight]) -> LengthIndex:
    lengths = LengthIndex(tens)
    lengths.last_arrival = MANY
    for entry in entries:
        lengths.add(entry)
    return lengths


def test_around() -> None:
    entries = [waiting(length) for length in (35, 12, 38, 60, 18, 31, 75)]
    lengths = lengths_of(entries)
    assert repr(lengths) == "Lengths(20, 40, 60, 80)"
    near, their_lengths, place = lengths.around(entries[2], 10)
    assert [entry.length for entry in near] == [12, 18, 38, 35, 31, 60, 75]
    assert their_lengths == [20, 20, 40, 40, 40, 60, 80]
    assert place == 2
    near, _, place = lengths.around(entries[0], 1)
    assert ([entry.length for entry in near], place) == ([12, 35, 60], 1)


def test_urgent_ones_come_first_and_late_ones_not_at_all() -> None:
    old, urgent, late, head = waiting(12, 4, 1), waiting(13, 2, 5), waiting(14, 2, 9), waiting(15, 2, 3)
    lengths = lengths_of([old, urgent, late, head])
    assert list(lengths.of(20)) == [urgent, late, head, old]
    lengths.last_arrival = 5
    assert lengths.around(head, 10)[0] == [head, urgent, old]


def test_nothing_is_kept_of_those_that_left() -> None:
    entries = [waiting(12), waiting(13, 2), waiting(35)]
    lengths = lengths_of(entries)
    for entry in entries:
        lengths.remove(entry)
    assert repr(lengths) == "Lengths()"


def test_queues_keep_them() -> None:
    queue = LevelQueue(QueueSettings(padded=tens, look_ahead=2))
    first, other = inflight(shape_key="a"), inflight(shape_key="b")
    first.length = other.length = 7
    for entry in (first, other):
        queue.append(entry)
    rest = [inflight(shape_key="a") for _ in range(3)]
    for number, entry in enumerate(rest):
        entry.length = 25 + number
        queue.append(entry)
    together = next(iter(queue.candidates()))
    assert together.lengths is not None
    assert together.lengths.around(first, 10)[0] == [first, rest[0]], "the others came too late to overtake"
    assert queue.take_members([first, rest[0]]) == [first, rest[0]]
    assert next(list(each) for each in queue.candidates()) == [other]
    assert queue.count == 3

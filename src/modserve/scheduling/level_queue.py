"""Queue for models with requests of different urgency, or with requests that cannot all share a batch.

Requests are ordered in two ways at once. `_Level`: requests of one level of urgency, 0 being the most urgent, in order
of arrival there. `_Group`: requests that may share a batch because they have the same `shape_key`, in one line (a
*lane*) per level. So each request is in exactly two lines: its level, and the lane of its group for that level. Levels,
groups and lanes exist while they have a request.

    level 2:  a1 b1 a2          group a:  lane 2: a1 a2    lane 4: a3
    level 4:  b2 a3             group b:  lane 2: b1       lane 4: b2

The head of the first level runs next, with its group: all of the lanes in the order of their levels. A group must not
overtake others for ever. So requests more than `look_ahead` arrivals after the first of their group wait for a later
batch. Such a request ends its lane, since its successors arrived later or were moved there. If no other group waits,
there is none to overtake, and the limit does not apply. With a `look_ahead` of 0 none overtakes at all: the batch ends,
as in Triton, before the first request of another group.

After a batch that waits for its delay others may be due: the groups that are `ripe`, with enough requests for a batch,
the group of the first arrival, and the groups of requests close to a time limit.

Requests enter and leave only in `_insert` and `_remove`; both maintain all sums.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from mypy_extensions import mypyc_attr

from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant

from .batching import BatchCandidates
from .prediction import LengthIndex
from .queue import GONE, Line, QueueSettings, RequestQueue

RIPE_LOOKED_AT = 8
"""Maximum number of ripe groups per look: a group with enough requests for a batch may still wait for a larger one."""

_ORDERED_LOOKED_AT = 1024
"""Maximum number of requests in a batch that overtakes no other request."""


@dataclass(slots=True)
class _Level:
    """Requests of one level. `size`: sum of their batch sizes."""

    line: Line = field(default_factory=OrderedDict)
    size: int = 0


@dataclass(slots=True, eq=False, repr=False)
class _Group(BatchCandidates):
    """Candidates for the next batch: arrivals up to `last_arrival`, and no more than `run`, unless that is 0.

    `candidates` updates both.
    """

    lanes: dict[int, Line] = field(default_factory=dict)
    spare_lane: Line | None = None
    last_arrival: int = 0
    run: int = 0

    def __iter__(self) -> Iterator[Inflight]:
        members = self._members()
        return islice(members, self.run) if self.run else members

    def _members(self) -> Iterator[Inflight]:
        for number in sorted(self.lanes):
            for inflight in self.lanes[number]:
                if inflight.arrival > self.last_arrival:
                    break
                yield inflight

    def leading(self, count: int) -> list[Inflight]:
        """Return the first `count` requests in the order of iteration; there must be as many."""
        batch: list[Inflight] = []
        for number in sorted(self.lanes) if len(self.lanes) > 1 else self.lanes:
            for inflight in self.lanes[number]:
                if inflight.arrival > self.last_arrival:
                    break
                batch.append(inflight)
                if len(batch) == count:
                    return batch
        return batch

    def first(self) -> Inflight:
        return next(iter(self.lanes[min(self.lanes)]))


@mypyc_attr(allow_interpreted_subclasses=True)
class LevelQueue(RequestQueue):
    """Requests by urgency and arrival, in groups. Only calls that list requests take longer when many wait."""

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(sums=settings.sums)
        self._padded = settings.padded
        self._ripe_size = settings.ripe_size
        self._ripe_elements = settings.ripe_elements
        self._look_ahead = settings.look_ahead
        self._levels: dict[int, _Level] = {}
        self._groups: dict[object, _Group] = {}
        self._ripe: dict[_Group, None] = {}
        self._spare_level: _Level | None = None
        self._spare_group: _Group | None = None
        """Empty objects for the next request: creating them takes as long as everything else if few requests wait."""

    def __iter__(self) -> Iterator[Inflight]:
        """Iterate over the waiting requests, most urgent first."""
        for _, level in sorted(self._levels.items()):
            yield from level.line

    def oldest_ns(self) -> int:
        """Return the arrival of the first waiting request. The queue must not be empty."""
        return min([inflight.queue_start_ns for level in self._levels.values() for inflight in level.line])

    def ahead(self, level: int, tenant: Tenant | None = None) -> tuple[int, int]:
        """Return number and total batch size of the requests that would run before a new request of a level.

        They wait at that level or a more urgent one. Only a queue that shares between tenants uses `tenant`.
        """
        levels = [each for number, each in self._levels.items() if number <= level]
        return sum([len(each.line) for each in levels]), sum([each.size for each in levels])

    # Arrival and departure

    def append(self, inflight: Inflight, level: int = 0, timeout_ns: int = 0) -> None:
        """Add a request. `timeout_ns`: time of its policy's time-out; 0 for none."""
        self.join(inflight, level, self._arrivals + 1)
        if inflight.deadline_ns or timeout_ns:
            self._remember(inflight, timeout_ns)

    def join(self, inflight: Inflight, level: int, arrival: int) -> None:
        """Add a request with this arrival number; another queue handles its time limits."""
        self._arrivals = inflight.arrival = arrival
        self._insert(inflight, level, inflight.queue_start_ns)

    def left(self, inflight: Inflight) -> None:
        """Remove a waiting request."""
        self._remove((inflight,))
        if self.timed and not self.count:
            self._forget_times()

    def take(self, together: BatchCandidates, count: int) -> list[Inflight]:
        """Remove the first `count` requests of a group."""
        assert isinstance(together, _Group), "only these are candidates: this is a bug"
        return self.take_members(together.leading(count))

    def take_members(self, batch: list[Inflight]) -> list[Inflight]:
        """Remove these requests of one group."""
        self._remove(batch)
        if self.timed and not self.count:
            self._forget_times()
        return batch

    def clear(self) -> bool:
        """Drop all requests, which another queue has. Return False if the queue cannot be used again."""
        if len(self._levels) != 1 or len(self._groups) != 1 or self._padded is not None:
            return not self.count
        _, level = self._levels.popitem()
        _, group = self._groups.popitem()
        _, lane = group.lanes.popitem()
        lane.clear()
        level.line.clear()
        level.size = group.count = group.size = group.elements = self.count = 0
        group.stale = True
        group.spare_lane, self._spare_level, self._spare_group = lane, level, group
        return True

    def move(self, inflight: Inflight, level: int, now_ns: int) -> None:
        """Move a waiting request to another level, behind all requests there."""
        self._remove((inflight,))
        self._insert(inflight, level, now_ns)

    def promote(self, now_ns: int, ageing_ns: int) -> None:
        """Move requests that have waited at their level for `ageing_ns` to the next more urgent one.

        There are two levels for each priority from 1; the first of these is the most urgent one possible.
        """
        for number in sorted(self._levels):
            line = self._levels[number].line
            while number > 3 and line and (first := next(iter(line))).level_ns + ageing_ns <= now_ns:
                self.move(first, number - 2, now_ns)

    def _insert(self, inflight: Inflight, number: int, now_ns: int) -> None:
        key = inflight.shape_key
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._spare_group or _Group()
            self._spare_group = None
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = self._spare_level or _Level()
            self._spare_level = None
        lane = group.lanes.get(number)
        if lane is None:
            lane = group.lanes[number] = group.spare_lane or OrderedDict()
            group.spare_lane = None
        inflight.level = number
        inflight.level_ns = now_ns
        lane[inflight] = level.line[inflight] = None
        size = inflight.batch_size or 1
        self.count += 1
        level.size += size
        group.count += 1
        group.size += size
        group.elements += size * inflight.length
        if self._padded is not None:
            if group.lengths is None:
                group.lengths = LengthIndex(self._padded)
            group.lengths.add(inflight)
        if self._sums:
            group.on_join(inflight)
        else:
            group.stale = True
        if self._ripe_size and self._is_ripe(group):
            self._ripe[group] = None

    def _remove(self, requests: Sequence[Inflight]) -> None:
        """Remove requests of one group."""
        key = requests[0].shape_key
        group = self._groups[key]
        for inflight in requests:
            number = inflight.level
            level, lane = self._levels[number], group.lanes[number]
            del lane[inflight], level.line[inflight]
            if group.lengths is not None:
                group.lengths.remove(inflight)
            inflight.level = GONE
            size = inflight.batch_size or 1
            level.size -= size
            group.size -= size
            group.elements -= size * inflight.length
            if not lane:
                group.spare_lane = group.lanes.pop(number)
                if not level.line:
                    self._spare_level = self._levels.pop(number)
        self.count -= len(requests)
        group.count -= len(requests)
        group.stale = True
        if not group.count:
            self._spare_group = self._groups.pop(key)
        if self._ripe and group in self._ripe and not self._is_ripe(group):
            del self._ripe[group]

    def _is_ripe(self, group: _Group) -> bool:
        return group.size >= self._ripe_size or 0 < self._ripe_elements <= group.elements

    # Candidates

    def candidates(self) -> Iterable[BatchCandidates]:
        """Return the groups that may form the next batch; the rule decides about them in this order.

        The queue must not be empty. A group is valid until the queue changes.
        """
        if len(self._groups) == 1:
            return [self._prepare(next(iter(self._groups.values())))]
        return self._candidates()

    def _candidates(self) -> Iterator[BatchCandidates]:
        yielded: set[_Group] = set()
        for group in self._in_turn():
            if group not in yielded:
                yielded.add(group)
                yield self._prepare(group)

    def _prepare(self, group: _Group) -> _Group:
        """Prepare a group with the members of its next batch."""
        alone = len(self._groups) == 1
        group.run = 0
        if alone:
            group.last_arrival = self._arrivals
        elif self._look_ahead:
            group.last_arrival = group.first().arrival + self._look_ahead
        else:
            group.run, group.last_arrival = self._run_of(group)
        group.whole = group.run == group.count if group.run else self._arrivals <= group.last_arrival
        group.closed = not alone and (group.run > 0 or self._arrivals >= group.last_arrival)
        if group.lengths is not None:
            group.lengths.last_arrival = group.last_arrival
        return group

    def _run_of(self, group: _Group) -> tuple[int, int]:
        """Return how many run with the first of a group without overtaking any, and the latest arrival among them.

        They are also the first ones of the group, since both are in the order of their levels.
        """
        first, count, last = group.first(), 0, 0
        for inflight in islice(self, _ORDERED_LOOKED_AT):
            if inflight.shape_key == first.shape_key:
                count, last = count + 1, max(last, inflight.arrival)
            elif count:
                break
        return max(1, count), max(last, first.arrival)

    def head(self) -> Inflight:
        """Return the most urgent waiting request. There must be one."""
        return next(iter(self._levels[min(self._levels)].line))

    def joining(self, key: object) -> Iterator[Inflight]:
        """Yield requests of other queues that may join a group's batch, within the limit on overtaking."""
        group = self._groups.get(key)
        if group is None:
            return iter(())
        head = self.head()
        self._prepare(group)
        if head.shape_key != key:
            if not self._look_ahead:
                return iter(())
            group.last_arrival = head.arrival + self._look_ahead
        return iter(group)

    def _in_turn(self) -> Iterator[_Group]:
        levels = self._levels
        yield self._groups[self.head().shape_key]
        yield from islice(self._ripe, RIPE_LOOKED_AT)
        oldest = min([next(iter(level.line)) for level in levels.values()], key=lambda head: head.arrival)
        for inflight in (oldest, *self._pressing()):
            yield self._groups[inflight.shape_key]

"""The waiting requests of a model: by urgency and arrival, and by who may share a batch."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from modserve.core.inflight import Inflight

from .batching import NOTHING_SEEN, Seen

GONE = -1
"""The level of a request that does not wait (any more)."""

_SWEEP_FROM = 64


class _Level:
    """The requests of one level of urgency, in order of arrival. Those that left are swept out in bulk.

    `size` is the sum of their batch sizes.
    """

    __slots__ = ("entries", "live", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: deque[Inflight] = deque()
        self.live = 0
        self.size = 0

    def head(self) -> Inflight:
        """The first that waits; there must be one."""
        entries, number = self.entries, self.number
        while entries[0].level != number:
            entries.popleft()
        return entries[0]

    def left(self, inflight: Inflight) -> None:
        self.live -= 1
        self.size -= inflight.batch_size or 1
        if len(self.entries) > _SWEEP_FROM + 2 * self.live:
            self.sweep()

    def sweep(self) -> None:
        """Only those that wait are left."""
        self.entries = deque(entry for entry in self.entries if entry.level == self.number)


class _Group:
    """The requests that may share a batch, by level.

    `size` is the sum of their batch sizes, and `elements` that of their batch sizes times their lengths. `seen` is what
    a rule knows of all of them but the last `unseen` of those at level `seen_level`, which was the last one then.
    """

    __slots__ = ("elements", "lanes", "live", "seen", "seen_level", "size", "unseen")

    def __init__(self) -> None:
        self.lanes: dict[int, deque[Inflight]] = {}
        self.live = 0
        self.size = 0
        self.elements = 0
        self.seen = NOTHING_SEEN
        self.seen_level = 0
        self.unseen = 0

    def levels(self) -> list[int]:
        return sorted(self.lanes) if len(self.lanes) > 1 else list(self.lanes)


class RequestQueue:
    """Requests wait at a level, 0 being the most urgent, and in order of arrival there.

    What is asked costs the same however many wait. `ripe_size`: groups whose batch sizes sum to that are found by
    `ripe`, 0 for none; so are, if it is not 0, those with so many `ripe_elements`. `look_ahead`: how many arrivals
    later a request may be than the first of a batch to join it.
    """

    def __init__(self, *, ripe_size: int = 0, ripe_elements: int = 0, look_ahead: int = 1024) -> None:
        self._ripe_size = ripe_size
        self._ripe_elements = ripe_elements
        self._look_ahead = look_ahead
        self._levels: dict[int, _Level] = {}
        self._groups: dict[object, _Group] = {}
        self._ripe: dict[object, None] = {}
        self._live = 0
        self._arrivals = 0
        self._deadlines: list[tuple[int, int, Inflight]] = []
        self._timeouts: list[tuple[int, int, Inflight]] = []

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Inflight]:
        """Everything that waits, the most urgent first."""
        for number in sorted(self._levels):
            for entry in list(self._levels[number].entries):
                if entry.level == number:
                    yield entry

    def waiting(self, level: int) -> int:
        """How many wait at a level."""
        found = self._levels.get(level)
        return 0 if found is None else found.live

    def ahead(self, level: int) -> tuple[int, int]:
        """How many wait at a level or a more urgent one, and the sum of their batch sizes."""
        found = [each for number, each in self._levels.items() if number <= level]
        return sum([each.live for each in found]), sum([each.size for each in found])

    def has_like(self, inflight: Inflight) -> bool:
        """Whether any waits that may share a batch with this one, which need not wait itself."""
        return inflight.shape_key in self._groups

    # In and out

    def append(self, inflight: Inflight, level: int = 0, timeout_ns: int = 0) -> None:
        """`timeout_ns`: when it has waited too long for its policy, whatever comes of that; 0 for never."""
        if inflight.arrival:
            self._purge()
        self._arrivals += 1
        inflight.arrival = self._arrivals
        self._insert(inflight, level, inflight.queue_start_ns)
        if inflight.deadline_ns:
            self._remember(self._deadlines, inflight.deadline_ns, inflight)
        if timeout_ns:
            self._remember(self._timeouts, timeout_ns, inflight)

    def _purge(self) -> None:
        """One that has been here before runs again: what is left of its stay must not count as its place now.

        Of most levels only those at their beginning have left.
        """
        for level in self._levels.values():
            level.head()
            if len(level.entries) > level.live:
                level.sweep()

    def left(self, inflight: Inflight) -> None:
        """One that waits has been settled."""
        self._remove(inflight)
        self._tidy()

    def _remove(self, inflight: Inflight) -> None:
        key = inflight.shape_key
        group = self._groups[key]
        lane = group.lanes[inflight.level]
        self._forget(inflight, group)
        self._shrunk(key, group)
        if len(lane) > _SWEEP_FROM + 2 * group.live:
            for number, entries in list(group.lanes.items()):
                group.lanes[number] = deque(entry for entry in entries if entry.level == number)

    def take(self, like: Inflight, count: int) -> list[Inflight]:
        """Remove the first `count` of those that `together` lists, which must be there."""
        key = like.shape_key
        group = self._groups[key]
        taken: list[Inflight] = []
        last = self._last_arrival(group)
        for number in group.levels():
            lane = group.lanes[number]
            while lane and len(taken) < count:
                inflight = lane[0]
                if inflight.level == number:
                    if inflight.arrival > last:
                        break
                    taken.append(inflight)
                lane.popleft()
            if not lane:
                del group.lanes[number]
            if len(taken) == count:
                break
        for inflight in taken:
            self._forget(inflight, group)
        self._shrunk(key, group)
        self._tidy()
        return taken

    def move(self, inflight: Inflight, level: int, now_ns: int) -> None:
        """It waits at another level from now on, behind all that are there."""
        self._remove(inflight)
        self._insert(inflight, level, now_ns)

    def _insert(self, inflight: Inflight, number: int, now_ns: int) -> None:
        key = inflight.shape_key
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        lane = group.lanes.get(number)
        if lane is None:
            lane = group.lanes[number] = deque()
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(number)
        if group.seen.requests:
            if number == group.seen_level and number == max(group.lanes):
                group.unseen += 1
            else:
                group.seen = NOTHING_SEEN
        inflight.level = number
        inflight.level_ns = now_ns
        lane.append(inflight)
        level.entries.append(inflight)
        level.live += 1
        level.size += inflight.batch_size or 1
        group.live += 1
        group.size += inflight.batch_size or 1
        self._live += 1
        if self._ripe_elements:
            group.elements += (inflight.batch_size or 1) * inflight.length
        if self._ripe_size and self._is_ripe(group):
            self._ripe[key] = None

    def _forget(self, inflight: Inflight, group: _Group) -> None:
        level = self._levels[inflight.level]
        inflight.level = GONE
        level.left(inflight)
        if not level.live:
            del self._levels[level.number]
        group.seen = NOTHING_SEEN
        group.live -= 1
        group.size -= inflight.batch_size or 1
        if self._ripe_elements:
            group.elements -= (inflight.batch_size or 1) * inflight.length
        self._live -= 1

    def _tidy(self) -> None:
        if not self._live:
            self._deadlines.clear()
            self._timeouts.clear()

    def _shrunk(self, key: object, group: _Group) -> None:
        if not group.live:
            del self._groups[key]
        if self._ripe and not self._is_ripe(group):
            self._ripe.pop(key, None)

    def _is_ripe(self, group: _Group) -> bool:
        return group.size >= self._ripe_size or 0 < self._ripe_elements <= group.elements

    # What to run

    def heads(self) -> list[Inflight]:
        """The first of each level that has any, the most urgent level first."""
        return [level.head() for _, level in sorted(self._levels.items())]

    def head(self) -> Inflight:
        """The most urgent; there must be one."""
        return self._levels[min(self._levels)].head()

    def first(self, level: int) -> Inflight:
        """The first of a level; there must be one."""
        return self._levels[level].head()

    def oldest(self) -> Inflight:
        """The one that has waited longest; there must be one."""
        return min(self.heads(), key=lambda entry: entry.arrival)

    def ripe(self) -> Iterator[Inflight]:
        """One of each group that has enough for a batch, in the order in which they got it."""
        for key in list(self._ripe):
            group = self._groups[key]
            yield next(self._lane_entries(group))

    def pressing(self) -> list[Inflight]:
        """The one with the earliest deadline of its client, and the one that its policy finds too old first."""
        return [entries[0][2] for entries in (self._deadlines, self._timeouts) if self._next(entries)]

    def together(self, like: Inflight) -> Iterator[Inflight]:
        """Those that may share a batch with `like`, the most urgent first."""
        group = self._groups[like.shape_key]
        last = self._last_arrival(group)
        for number in group.levels():
            for inflight in group.lanes[number]:
                if inflight.level == number:
                    if inflight.arrival > last:
                        break  # who is behind it in this lane came later, or was put there: it waits for its turn
                    yield inflight

    def look(self, like: Inflight) -> tuple[Seen, Iterable[Inflight]]:
        """As `together`, without those of which a rule has `looked` that it knows them, and what it knows."""
        group = self._groups[like.shape_key]
        seen = group.seen
        if not seen.requests or (len(self._groups) > 1 and self._arrivals > self._last_arrival(group)):
            return NOTHING_SEEN, self.together(like)
        last = list(islice(reversed(group.lanes[group.seen_level]), group.unseen))
        last.reverse()
        return seen, last

    def looked(self, like: Inflight, seen: Seen) -> None:
        """A rule has `seen` those that are `together`, and lets them wait."""
        group = self._groups[like.shape_key]
        if seen.requests == group.live:  # or some came too late to be among them
            group.seen = seen
            group.seen_level = max(group.lanes)
            group.unseen = 0

    def closed(self, like: Inflight) -> bool:
        """Whether nobody who arrives from now on can join the next batch of those like this one, which waits."""
        return self._arrivals >= self._last_arrival(self._groups[like.shape_key]) and len(self._groups) > 1

    def _last_arrival(self, group: _Group) -> int:
        """Who arrived after this does not join the next batch of the group."""
        if len(self._groups) == 1:
            return self._arrivals  # there is nobody to overtake
        return next(self._lane_entries(group)).arrival + self._look_ahead

    def _lane_entries(self, group: _Group) -> Iterator[Inflight]:
        for number in group.levels():
            for inflight in group.lanes[number]:
                if inflight.level == number:
                    yield inflight

    # Times

    def next_deadline_ns(self) -> int:
        """When the first that waits has waited too long, for its client or its policy; 0 if none ever has."""
        times = [entries[0][0] for entries in (self._deadlines, self._timeouts) if self._next(entries)]
        return min(times, default=0)

    def expired(self, now_ns: int) -> list[Inflight]:
        """Those whose client's deadline has passed; they wait on until they are settled."""
        return self._passed(self._deadlines, now_ns)

    def timed_out(self, now_ns: int) -> list[Inflight]:
        """Those that have waited longer than their policy has it; they wait on until they are settled or moved."""
        return self._passed(self._timeouts, now_ns)

    def _remember(self, entries: list[tuple[int, int, Inflight]], when_ns: int, inflight: Inflight) -> None:
        heapq.heappush(entries, (when_ns, inflight.arrival, inflight))
        if len(entries) > _SWEEP_FROM + 2 * self._live:
            entries[:] = [entry for entry in entries if _waits(entry)]
            heapq.heapify(entries)

    def _passed(self, entries: list[tuple[int, int, Inflight]], now_ns: int) -> list[Inflight]:
        found: list[Inflight] = []
        while self._next(entries) and entries[0][0] <= now_ns:
            found.append(heapq.heappop(entries)[2])
        return found

    def _next(self, entries: list[tuple[int, int, Inflight]]) -> bool:
        """Whether any of `entries` still waits; the first of them does then."""
        while entries and not _waits(entries[0]):
            heapq.heappop(entries)
        return bool(entries)


def _waits(entry: tuple[int, int, Inflight]) -> bool:
    """Whether an entry is of a request that waits, and not of its last stay."""
    _, arrival, inflight = entry
    return inflight.level != GONE and inflight.arrival == arrival

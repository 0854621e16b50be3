"""The waiting requests of a model.

A scheduler looks at its queue whenever an instance is free: which requests may share the next batch? There are three
queues with one interface. A model gets one of the first two when it is loaded:

- `FifoQueue`, for models without priorities if all requests can share a batch, or each request runs alone:
  one line, first in, first out.
- `LevelQueue` (level_queue.py), for all others.
- `FairQueue` (fair_queue.py), from the first request of a tenant on.

Rules for all:

- A request that waits has a `level` of 0 or more and an `arrival`, its place among all that ever came, counted from 1.
  When it leaves, to run or without having run, its level becomes `GONE`. Only the queue writes these two fields.
- A request that left may come back: a sequence's request runs several times. It gets a new arrival.
- Lines are ordered dictionaries, so that a request leaves from the middle at once, and a queue holds no request that
  does not wait. The two heaps of times are the exception: an entry stays until it comes to the top, or most entries are
  of requests that left; it counts only while the request waits and has the arrival of the entry.
- Each group of requests that may share a batch is a `batching.Together`, whose sums change with every request.
"""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from mypy_extensions import mypyc_attr

from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant

from .batching import Together

GONE = -1
"""The level of a request that does not wait."""

_SWEEP_FROM = 64

Line = OrderedDict[Inflight, None]
_Times = list[tuple[int, int, Inflight]]


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestQueue:
    """Common part of all queues: `count` is how many requests wait; some of them have to leave at a time.

    `timed` is True if some of them have to leave at a time, so that `next_time_ns`, `expired` and `timed_out` are worth
    a call.
    """

    def __init__(self, *, sums: bool) -> None:
        """Create a queue. `sums`: keep the elements and the extremes of `Together` up to date for the rule."""
        self.count = 0
        self.timed = False
        self._sums = sums
        self._arrivals = 0
        self._deadlines: _Times = []
        self._timeouts: _Times = []

    def next_time_ns(self) -> int:
        """Return when the first waiting request has waited too long, for its client or its policy; 0 for never."""
        times = [entries[0][0] for entries in (self._deadlines, self._timeouts) if _any_waits(entries)]
        return min(times, default=0)

    def expired(self, now_ns: int) -> list[Inflight]:
        """Return requests past their client's deadline. They still wait, but this does not list them again."""
        return _passed(self._deadlines, now_ns)

    def timed_out(self, now_ns: int) -> list[Inflight]:
        """Return requests past their policy's time-out. They still wait, but are not listed again."""
        return _passed(self._timeouts, now_ns)

    def timeouts(self) -> dict[Inflight, int]:
        """Return the times at which waiting requests reach their policy's time-out, for those with one."""
        return {entry[2]: entry[0] for entry in self._timeouts if _waits(entry)}

    def _pressing(self) -> list[Inflight]:
        """Return the request with the earliest deadline of its client, and the one with the earliest time-out."""
        return [entries[0][2] for entries in (self._deadlines, self._timeouts) if _any_waits(entries)]

    def _remember(self, inflight: Inflight, timeout_ns: int) -> None:
        self.timed = True
        for entries, when_ns in ((self._deadlines, inflight.deadline_ns), (self._timeouts, timeout_ns)):
            if when_ns:
                heapq.heappush(entries, (when_ns, inflight.arrival, inflight))
                if len(entries) > _SWEEP_FROM + 2 * self.count:
                    entries[:] = [entry for entry in entries if _waits(entry)]
                    heapq.heapify(entries)

    def _forget_times(self) -> None:
        self.timed = False
        self._deadlines.clear()
        self._timeouts.clear()


class FifoQueue(RequestQueue):
    """Queue of requests that may all share a batch. Levels are ignored: all requests are equally urgent."""

    def __init__(self, *, sums: bool) -> None:
        super().__init__(sums=sums)
        self._line: Line = OrderedDict()
        self._together = Together(self._line)
        self._candidates = (self._together,)

    def __iter__(self) -> Iterator[Inflight]:
        """Iterate over the waiting requests, the most urgent first."""
        return iter(self._line)

    def oldest_ns(self) -> int:
        """Return the arrival of the first waiting request. The queue must not be empty."""
        return next(iter(self._line)).queue_start_ns

    def ahead(self, level: int, tenant: Tenant | None = None) -> tuple[int, int]:
        """Return how many would run before a new request of a level, and the sum of their batch sizes.

        They wait at that level or a more urgent one. Only a queue that shares between tenants reads the `tenant`.
        """
        return self.count, self._together.size

    def append(self, inflight: Inflight, level: int = 0, timeout_ns: int = 0) -> None:
        """Let a request wait. `timeout_ns`: when it has waited too long for its policy; 0 for never."""
        together = self._together
        self._arrivals += 1
        inflight.arrival = self._arrivals
        inflight.level = 0
        self._line[inflight] = None
        size = inflight.batch_size or 1
        self.count += 1
        together.count = self.count
        together.size += size
        if self._sums:
            together.elements += size * inflight.length
            together.joined(inflight)
        else:
            together.stale = True
        if inflight.deadline_ns or timeout_ns:
            self._remember(inflight, timeout_ns)

    def left(self, inflight: Inflight) -> None:
        """Remove a request that waits."""
        del self._line[inflight]
        self._uncount((inflight,))

    def candidates(self) -> Iterable[Together]:
        """Return the groups that may form the next batch; the rule decides about them in this order.

        The queue must not be empty. A group is valid until the queue changes.
        """
        return self._candidates

    def take(self, together: Together, count: int) -> list[Inflight]:
        """Remove the first `count` of a group."""
        line = self._line
        batch: list[Inflight] = []
        while len(batch) < count:
            batch.append(line.popitem(last=False)[0])
        self._uncount(batch)
        return batch

    def take_members(self, batch: list[Inflight]) -> list[Inflight]:
        """Remove these requests."""
        for inflight in batch:
            del self._line[inflight]
        self._uncount(batch)
        return batch

    def _uncount(self, requests: Collection[Inflight]) -> None:
        together = self._together
        self.count -= len(requests)
        together.count = self.count
        together.stale = True
        for inflight in requests:
            inflight.level = GONE
            size = inflight.batch_size or 1
            together.size -= size
            if self._sums:
                together.elements -= size * inflight.length
        if self.timed and not self.count:
            self._forget_times()


def _any_waits(entries: _Times) -> bool:
    """True if any of `entries` is of a waiting request; the first of them is then."""
    while entries and not _waits(entries[0]):
        heapq.heappop(entries)
    return bool(entries)


def _passed(entries: _Times, now_ns: int) -> list[Inflight]:
    passed: list[Inflight] = []
    while _any_waits(entries) and entries[0][0] <= now_ns:
        passed.append(heapq.heappop(entries)[2])
    return passed


def _waits(entry: tuple[int, int, Inflight]) -> bool:
    """True if an entry is of a waiting request, and of its present stay."""
    _, arrival, inflight = entry
    return inflight.level != GONE and inflight.arrival == arrival

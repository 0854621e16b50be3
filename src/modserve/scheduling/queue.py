"""Waiting requests of a model.

Whenever an instance is free, the scheduler asks its queue which requests may share the next batch. There are two queues
with one interface: `LevelQueue` (level_queue.py), and from the first request of a tenant on `FairQueue`
(fair_queue.py).

Rules for all:

- A waiting request has a `level` of 0 or more and an `arrival`, its number among all arrivals, counted from 1. When it
  leaves, to run or without having run, its level becomes `GONE`. Only the queue writes these two fields.
- A request that left may return: a sequence's request runs several times. It gets a new arrival.
- Lines are ordered dictionaries, so that a request in the middle can leave at once, and a queue holds waiting requests
  only. The two heaps of times are the exception: an entry stays until it reaches the top, or most entries are of
  requests that left; it counts only while the request waits and has the entry's arrival.
- Each group of requests that may share a batch is a `batching.BatchCandidates`; its sums change with every request.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from modserve.core.requests.inflight import Inflight

GONE = -1
"""Level of a request that does not wait."""

_SWEEP_FROM = 64

Line = OrderedDict[Inflight, None]
_Times = list[tuple[int, int, Inflight]]


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a model's queue. A group of requests is ripe when a batch of it may run before its delay is over."""

    sums: bool = False
    """True if the rule reads the elements and the extremes of `BatchCandidates`."""
    ripe_size: int = 0
    """Sum of batch sizes from which a group is ripe; 0 for never."""
    ripe_elements: int = 0
    """Number of elements from which a group is ripe; 0 for never."""
    look_ahead: int = 1024
    """Number of arrivals that a batch may overtake."""
    padded: Callable[[int], int] | None = None
    """Returns the length that counts instead of a request's own, if the rule chooses by `BatchCandidates.lengths`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestQueue:
    """Common part of all queues. `count`: number of waiting requests.

    `timed`: True if some of them have time limits, so that `next_time_ns`, `pop_expired` and `pop_timed_out` have an
    effect.
    """

    def __init__(self, *, sums: bool) -> None:
        """Create a queue. `sums`: maintain the elements and the extremes of `BatchCandidates` for the rule."""
        self.count = 0
        self.timed = False
        self._sums = sums
        self._arrivals = 0
        self._deadlines: _Times = []
        self._timeouts: _Times = []

    def next_time_ns(self) -> int:
        """Return the earliest deadline or policy time-out of a waiting request; 0 for none."""
        times = [entries[0][0] for entries in (self._deadlines, self._timeouts) if _any_waits(entries)]
        return min(times, default=0)

    def pop_expired(self, now_ns: int) -> list[Inflight]:
        """Return requests past their deadline. They still wait, but are not listed again."""
        return _pop_passed(self._deadlines, now_ns)

    def pop_timed_out(self, now_ns: int) -> list[Inflight]:
        """Return requests past their policy's time-out. They still wait, but are not listed again."""
        return _pop_passed(self._timeouts, now_ns)

    def timeouts(self) -> dict[Inflight, int]:
        """Return the times of waiting requests' policy time-outs, if any."""
        return {entry[2]: entry[0] for entry in self._timeouts if _waits(entry)}

    def _pressing(self) -> list[Inflight]:
        """Return the request with the earliest deadline, and the one with the earliest time-out."""
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


def _any_waits(entries: _Times) -> bool:
    """True if any of `entries` is of a waiting request; the first of them then is."""
    while entries and not _waits(entries[0]):
        heapq.heappop(entries)
    return bool(entries)


def _pop_passed(entries: _Times, now_ns: int) -> list[Inflight]:
    passed: list[Inflight] = []
    while _any_waits(entries) and entries[0][0] <= now_ns:
        passed.append(heapq.heappop(entries)[2])
    return passed


def _waits(entry: tuple[int, int, Inflight]) -> bool:
    """True if an entry is of a waiting request, and of its current stay."""
    _, arrival, inflight = entry
    return inflight.level != GONE and inflight.arrival == arrival

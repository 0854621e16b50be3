"""Quantiles of what happened in the last minute, for pages that ask for summaries.

A summary counts durations in buckets that grow with them: those below 128 ns have one each, and of all others 64 lie
between a power of two and the next, so that a quantile is at most 1/128 away from the duration it stands for. The
window is made of slots that are dropped one after the other. Counting costs the same whatever has come before.
"""

import math
from collections.abc import Sequence
from typing import Final, final

SLOTS: Final = 6
SLOT_NS: Final = 10 * 10**9
_FINE: Final = 128
"""Durations below it have buckets of their own."""
_FINE_BITS: Final = 7


@final
class Summary:
    """Durations in nanoseconds: how many, their sum, and how those of the last minute are spread."""

    __slots__ = ("_buckets", "_slot", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._slot = 0
        """The number of the latest slot; a slot's place is the rest of its number by `SLOTS`."""
        self._buckets: list[dict[int, int]] = [{} for _ in range(SLOTS)]

    def observe(self, ns: int, now_ns: int, times: int = 1) -> None:
        """Count a duration, so many times; `now_ns` is by the monotonic clock."""
        self.count += times
        self.total += ns * times
        slot = now_ns // SLOT_NS
        if slot > self._slot:
            for number in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
                self._buckets[number % SLOTS] = {}
            self._slot = slot
        buckets = self._buckets[self._slot % SLOTS]
        bucket = bucket_of(ns)
        buckets[bucket] = buckets.get(bucket, 0) + times

    def quantiles(self, ranks: Sequence[float], now_ns: int) -> list[float]:
        """The duration that so large a part of those in the window did not exceed; NaN if there are none.

        May be called on any thread.
        """
        counts: dict[int, int] = {}
        oldest = now_ns // SLOT_NS - SLOTS + 1
        for number in range(max(oldest, self._slot - SLOTS + 1), self._slot + 1):
            for bucket, count in list(self._buckets[number % SLOTS].items()):
                counts[bucket] = counts.get(bucket, 0) + count
        total = sum(counts.values())
        ordered = sorted(counts.items())
        return [_quantile(ordered, total, rank) for rank in ranks]


def _quantile(ordered: list[tuple[int, int]], total: int, rank: float) -> float:
    running = 0
    least = math.ceil(rank * total)
    for bucket, count in ordered:
        running += count
        if running >= least:
            return middle_of(bucket)
    return math.nan


def bucket_of(ns: int) -> int:
    """The number of a duration's bucket."""
    if ns < _FINE:
        return ns if ns > 0 else 0
    shift = ns.bit_length() - _FINE_BITS
    return shift * (_FINE // 2) + (ns >> shift)


def middle_of(bucket: int) -> float:
    """The duration that stands for those of a bucket."""
    if bucket < _FINE:
        return float(bucket)
    shift = bucket // (_FINE // 2) - 1
    return float((bucket - shift * (_FINE // 2)) << shift) + (1 << shift) / 2 - 0.5


@final
class LatencySummaries:
    """Those of one model version."""

    __slots__ = ("cache_hit", "cache_miss", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self) -> None:
        self.request = Summary()
        self.queue = Summary()
        self.compute_input = Summary()
        self.compute_infer = Summary()
        self.compute_output = Summary()
        self.cache_hit = Summary()
        self.cache_miss = Summary()

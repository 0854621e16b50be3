"""Quantiles of what happened in the last minute, for pages that ask for summaries.

A summary counts durations in the buckets of a sketch. The window is made of slots that are dropped one after the
other. Counting costs the same whatever has come before.
"""

from collections.abc import Sequence
from typing import Final, final

from .sketch import bucket_of, quantiles

SLOTS: Final = 6
SLOT_NS: Final = 10 * 10**9


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
        return quantiles(counts, ranks)


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

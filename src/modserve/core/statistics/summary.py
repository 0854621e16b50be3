"""Quantiles of durations in the last minute, for pages that ask for summaries.

A summary counts durations in the buckets of a sketch. The window is made of slots that are dropped one after the
other. The cost of counting is constant.

A sketch of durations: counts by buckets so narrow that every quantile is known within 2 %.

Durations below 128 ns have a bucket each. Of all others, 64 buckets lie between a power of two and the next, so that
the middle of a bucket is at most 1/128 away from the durations in it. Buckets exist once something is counted in them.
Sketches of several models, workers or servers add up. All quantiles that a server counts come from here; those of
requests that a client has measured are exact.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, final

FINE_QUERY: Final = "durations=fine"
"""The query of a metrics page that adds the sketches of requests: too many lines for time series."""
FINE_FAMILY: Final = "modserve_request_durations"
"""Requests by the middle of their bucket, the label `seconds`."""
LONGEST_FAMILY: Final = "modserve_request_longest_seconds"

_FINE: Final = 128
"""Limit in ns below which each duration has its own bucket."""
_FINE_BITS: Final = 7


@final
class Sketch:
    """Durations in nanoseconds by bucket; `longest` is the longest that was ever counted."""

    __slots__ = ("counts", "longest")

    def __init__(self, counts: Mapping[int, int] | None = None, longest: int = 0) -> None:
        self.counts: dict[int, int] = {} if counts is None else dict(counts)
        self.longest = longest

    def observe(self, ns: int, times: int = 1) -> None:
        bucket = bucket_of(ns)
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + times
        if ns > self.longest:
            self.longest = ns

    def copy(self) -> "Sketch":
        return Sketch(self.counts, self.longest)

    def add(self, other: "Sketch") -> None:
        """Count everything that `other` has counted."""
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.longest = max(self.longest, other.longest)

    def since(self, before: "Sketch") -> "Sketch":
        """Return the durations counted since the state `before`; none if that is another sketch, begun later."""
        counts = dict(self.counts)
        for bucket, count in before.counts.items():
            rest = counts.pop(bucket, 0) - count
            if rest < 0:
                return Sketch()
            if rest:
                counts[bucket] = rest
        return Sketch(counts, self.longest)

    @property
    def total(self) -> int:
        """Count of all durations."""
        return sum(self.counts.values())

    def longer(self, ns: float) -> int:
        """Count of the longer durations, beyond the bucket of `ns`."""
        limit = bucket_of(int(ns))
        return sum([count for bucket, count in self.counts.items() if bucket > limit])

    def quantile(self, share: float) -> float:
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return the quantiles of these shares in nanoseconds; NaN without durations.

        The longest stands for its bucket: no quantile exceeds it, and that of a single request is exact.
        """
        last = middle_of(bucket_of(self.longest))
        return [float(self.longest) if value == last else value for value in quantiles(self.counts, shares)]


def quantiles(counts: Mapping[int, int], shares: Sequence[float]) -> list[float]:
    """Return the quantiles like `Sketch.quantiles`, from counts by bucket without a known longest duration."""
    ordered, total = sorted(counts.items()), sum(counts.values())
    return [_quantile(ordered, math.ceil(share * total)) for share in shares]


def _quantile(ordered: Sequence[tuple[int, int]], rank: int) -> float:
    running = 0
    for bucket, count in ordered:
        running += count
        if running >= rank:
            return middle_of(bucket)
    return math.nan


def bucket_of(ns: int) -> int:
    """Return the number of a duration's bucket."""
    if ns < _FINE:
        return ns if ns > 0 else 0
    shift = ns.bit_length() - _FINE_BITS
    return shift * (_FINE // 2) + (ns >> shift)


def middle_of(bucket: int) -> float:
    """Return the duration that represents a bucket."""
    if bucket < _FINE:
        return float(bucket)
    shift = bucket // (_FINE // 2) - 1
    return float((bucket - shift * (_FINE // 2)) << shift) + (1 << shift) / 2 - 0.5


SLOTS: Final = 6
SLOT_NS: Final = 10 * 10**9


@final
class Summary:
    """Summary of durations in nanoseconds: their count, their sum, and the distribution of the last minute."""

    __slots__ = ("_buckets", "_slot", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._slot = 0
        """The number of the latest slot; a slot's place is the rest of its number by `SLOTS`."""
        self._buckets: list[dict[int, int]] = [{} for _ in range(SLOTS)]

    def observe(self, ns: int, now_ns: int, times: int = 1) -> None:
        """Count a duration `times` times; `now_ns` is on the monotonic clock."""
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
        """Return the quantiles of these ranks over the window; NaN without durations.

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
    """Latency summaries of one model version."""

    __slots__ = ("cache_hit", "cache_miss", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self) -> None:
        self.request = Summary()
        self.queue = Summary()
        self.compute_input = Summary()
        self.compute_infer = Summary()
        self.compute_output = Summary()
        self.cache_hit = Summary()
        self.cache_miss = Summary()

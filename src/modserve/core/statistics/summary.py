"""Sketches of durations, and summaries with the quantiles of the last minute.

A sketch counts durations in narrow buckets, so that every quantile is known within 2 %. Durations below 128 ns have one
bucket each. Above, there are 64 buckets between consecutive powers of two, so that the middle of a bucket is at most
1/128 away from its durations. Empty buckets are not stored. Sketches of several models, workers or servers can be
added. All quantiles on a server come from sketches; only client-side measurements have exact ones.

A summary is a window of sketches in slots, of which the oldest is dropped. Counting takes constant time.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, final

FINE_QUERY: Final = "durations=fine"
"""Query of the metrics page that adds the sketches of request durations, with too many lines for time series."""
FINE_FAMILY: Final = "modserve_request_durations"
"""Number of requests by bucket; the label `seconds` is the middle of the bucket."""
LONGEST_FAMILY: Final = "modserve_request_longest_seconds"

_FINE: Final = 128
"""Limit in ns, below which each duration has its own bucket."""
_FINE_BITS: Final = 7


@final
class Sketch:
    """Counts of durations in nanoseconds by bucket; `longest` is the longest duration ever counted."""

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
        """Add the counts of another sketch."""
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.longest = max(self.longest, other.longest)

    def since(self, before: "Sketch") -> "Sketch":
        """Return the counts since the state `before`; empty if it is not an earlier state of this sketch."""
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
        """Number of durations."""
        return sum(self.counts.values())

    def longer(self, ns: float) -> int:
        """Return the number of durations beyond the bucket of `ns`."""
        limit = bucket_of(int(ns))
        return sum([count for bucket, count in self.counts.items() if bucket > limit])

    def quantile(self, share: float) -> float:
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return the quantiles of these shares in nanoseconds; NaN without durations.

        The longest duration represents its bucket: no quantile exceeds it, and a single duration is exact.
        """
        last = middle_of(bucket_of(self.longest))
        return [float(self.longest) if value == last else value for value in quantiles(self.counts, shares)]


def quantiles(counts: Mapping[int, int], shares: Sequence[float]) -> list[float]:
    """Return quantiles like `Sketch.quantiles`, from counts by bucket without a known longest duration."""
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
    """Summary of durations in nanoseconds: count, sum, and the distribution over the last minute."""

    __slots__ = ("_buckets", "_slot", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._slot = 0
        """Number of the latest slot. A slot's index is its number modulo `SLOTS`."""
        self._buckets: list[dict[int, int]] = [{} for _ in range(SLOTS)]

    def observe(self, ns: int, now_ns: int, times: int = 1) -> None:
        """Count a duration `times` times; `now_ns` is monotonic."""
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
        """Return the quantiles of these ranks over the window; NaN without durations. Any thread."""
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

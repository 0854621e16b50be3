"""How durations are spread, counted so finely that every quantile is known within 2 %.

Durations below 128 ns have a bucket each, and of all others 64 buckets lie between a power of two and the next, so that
the middle of a bucket is at most 1/128 away from the durations in it. Buckets exist once something is counted in them.
Those of several models, workers or servers add up. Whatever shows a quantile of durations has it from here.
"""

import math
from collections.abc import Mapping
from typing import Final, final

FINE_QUERY: Final = "durations=fine"
"""The query of a metrics page that has the sketches of requests, too: thousands of lines, which no time series need."""
FINE_FAMILY: Final = "modserve_request_durations"
"""Its requests by the middle of their bucket, the label `seconds`."""
LONGEST_FAMILY: Final = "modserve_request_longest_seconds"

_FINE: Final = 128
"""Durations below it have buckets of their own."""
_FINE_BITS: Final = 7


@final
class Sketch:
    """Durations in nanoseconds by bucket; `most` is the longest that was ever counted."""

    __slots__ = ("counts", "most")

    def __init__(self, counts: Mapping[int, int] | None = None, most: int = 0) -> None:
        self.counts: dict[int, int] = {} if counts is None else dict(counts)
        self.most = most

    def observe(self, ns: int, times: int = 1) -> None:
        bucket = bucket_of(ns)
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + times
        if ns > self.most:
            self.most = ns

    def copy(self) -> "Sketch":
        return Sketch(self.counts, self.most)

    def add(self, other: "Sketch") -> None:
        """Count what another one has counted, too."""
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.most = max(self.most, other.most)

    def since(self, before: "Sketch") -> "Sketch | None":
        """What has been counted since; None if this one has begun anew, and `before` is of another."""
        counts = dict(self.counts)
        for bucket, count in before.counts.items():
            left = counts.get(bucket, 0) - count
            if left < 0:
                return None
            if left:
                counts[bucket] = left
            else:
                del counts[bucket]
        return Sketch(counts, self.most)

    @property
    def total(self) -> int:
        """How many were counted."""
        return sum(self.counts.values())

    def longer(self, ns: float) -> int:
        """How many took longer."""
        limit = bucket_of(int(ns))
        return sum([count for bucket, count in self.counts.items() if bucket > limit])

    def quantile(self, share: float) -> float:
        """The duration in nanoseconds that so large a part of all did not exceed; NaN if there are none.

        In the bucket of the longest it is the longest, so that none is above it, and one request has its own duration.
        """
        if not self.counts:
            return math.nan
        value = quantile(self.counts, share)
        return float(self.most) if bucket_of(int(value)) == bucket_of(self.most) else value


def quantile(counts: Mapping[int, int], share: float) -> float:
    """Of counts by bucket: the duration that so large a part of them did not exceed; NaN if there are none."""
    running, least = 0, math.ceil(share * sum(counts.values()))
    for bucket, count in sorted(counts.items()):
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

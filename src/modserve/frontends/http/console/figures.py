"""What is made of two readings: rates and quantiles."""

from collections.abc import Iterable
from typing import TypedDict

from modserve.core.statistics.sketch import Sketch

SHARES = (0.5, 0.99)
"""What is shown of durations: p50 and p99."""


class Durations(TypedDict):
    """A sketch, in values that JSON has: the numbers of its buckets, and the count of each."""

    buckets: list[int]
    counts: list[int]
    most: int


def durations(sketches: Iterable[Sketch | None]) -> Durations:
    """Of all of them together."""
    whole = Sketch()
    for sketch in sketches:
        if sketch is not None:
            whole.add(sketch)
    return {"buckets": list(whole.counts), "counts": list(whole.counts.values()), "most": whole.most}


def sketch_of(read: Durations) -> Sketch:
    return Sketch(dict(zip(read["buckets"], read["counts"], strict=True)), read["most"])


def lately(now: Durations, then: Durations) -> Sketch:
    """What was counted between two readings; nothing if it was begun anew between them."""
    return sketch_of(now).since(sketch_of(then)) or Sketch()


def quantiles(sketch: Sketch) -> list[float | None]:
    """p50 and p99 in milliseconds; None if nothing was counted."""
    return [round(sketch.quantile(share) / 1e6, 4) if sketch.counts else None for share in SHARES]


def rate(count: float, seconds: float) -> float:
    """Per second; 0 for a counter that has begun again."""
    return round(max(0, count) / seconds, 1)

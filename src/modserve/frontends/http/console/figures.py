"""Rates and quantiles, made of two readings."""

from collections.abc import Iterable
from typing import TypedDict

from modserve.core.statistics.summary import Sketch

_SHARES = (0.5, 0.99)


class Durations(TypedDict):
    """A sketch: the count of each bucket, by its number."""

    counts: dict[int, int]
    longest: int


def durations(sketches: Iterable[Sketch | None]) -> Durations:
    """Return the sum of some sketches."""
    whole = Sketch()
    for sketch in sketches:
        if sketch is not None:
            whole.add(sketch)
    return {"counts": whole.counts, "longest": whole.longest}


def sketch_of(read: Durations) -> Sketch:
    return Sketch(read["counts"], read["longest"])


def recent(now: Durations, then: Durations) -> Sketch:
    """Return the durations counted between two readings; none if the model was reloaded between them."""
    return sketch_of(now).since(sketch_of(then))


def quantiles(sketch: Sketch) -> list[float | None]:
    """Return p50 and p99 in milliseconds; None if nothing was counted."""
    return [round(ns / 1e6, 4) if sketch.counts else None for ns in sketch.quantiles(_SHARES)]


def rate(count: float, seconds: float) -> float:
    """Return the rate per second; 0 for a counter that has begun again."""
    return round(max(0, count) / seconds, 1)

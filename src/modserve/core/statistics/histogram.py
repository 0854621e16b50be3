"""Histograms with fixed buckets, as in Prometheus."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from .summary import Sketch


class Exemplar(NamedTuple):
    """Counted value of a histogram that has a trace."""

    trace_id: str
    value: float
    unix_s: float


class Histogram:
    """Counts by upper bound; `bounds` ascend, and one more bucket takes what lies above the last.

    The buckets are too wide for quantiles. Where these are shown, `unit_ns` is the unit of the values in nanoseconds,
    and a sketch counts the same values; elsewhere it is 0.
    """

    __slots__ = ("bounds", "buckets", "exemplars", "sketch", "total", "unit_ns")

    def __init__(self, bounds: Sequence[float], unit_ns: float = 0.0) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] | None = None
        """The latest by bucket; None before the first."""
        self.unit_ns = unit_ns
        self.sketch: Sketch | None = Sketch() if unit_ns else None

    def observe(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.bounds, value)] += times
        self.total += value * times
        sketch = self.sketch
        if sketch is not None:
            sketch.observe(int(value * self.unit_ns), times)

    def exemplify(self, value: float, trace_id: str, unix_s: float) -> None:
        """Remember the trace of a value that is counted."""
        if self.exemplars is None:
            self.exemplars = {}
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar(trace_id, value, unix_s)

    def copy(self) -> "Histogram":
        """Return a copy without exemplars."""
        copy = Histogram(self.bounds, self.unit_ns)
        copy.buckets, copy.total = list(self.buckets), self.total
        if self.sketch is not None:
            copy.sketch = self.sketch.copy()
        return copy

    def at(self, bounds: Sequence[float]) -> "Histogram":
        """Return these counts in fewer buckets; `bounds` are some of this histogram's."""
        coarse = Histogram(bounds)
        coarse.total = self.total
        for place, count in enumerate(self.buckets):
            coarse.buckets[bisect_left(coarse.bounds, self.bounds[place]) if place < len(self.bounds) else -1] += count
        if self.exemplars is not None:
            for exemplar in sorted(self.exemplars.values(), key=lambda each: each.unix_s):
                coarse.exemplify(exemplar.value, exemplar.trace_id, exemplar.unix_s)
        return coarse

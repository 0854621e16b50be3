"""Metrics of exported spans."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

Family: TypeAlias = tuple[str, str, str, list[tuple[dict[str, str], float]]]
"""Name, kind, help, and the samples with their labels."""

QUEUE_FULL = "the queue is full"
EXPORT_FAILED = "the collector did not accept them"
STOPPED = "the server stopped"
OVERLOADED = "too many traces wait to be made into spans"
_REASONS = {
    QUEUE_FULL: "queue_full",
    EXPORT_FAILED: "export_failed",
    STOPPED: "stopped",
    OVERLOADED: "overloaded",
}


class SpanFigures(NamedTuple):
    """Numbers of exported spans, of dropped spans by reason, and of spans to be exported."""

    exported: int
    dropped: Mapping[str, int]
    waiting: int


def span_families(figures: SpanFigures | None) -> Iterator[Family]:
    """Return the span metrics; none if traces are not spans."""
    if figures is None:
        return
    yield "modserve_trace_spans_exported_total", "counter", "Spans that a collector accepted", [({}, figures.exported)]
    dropped = [({"reason": label}, float(figures.dropped.get(why, 0))) for why, label in _REASONS.items()]
    yield "modserve_trace_spans_dropped_total", "counter", "Spans that were lost, by reason", dropped
    yield "modserve_trace_spans_waiting", "gauge", "Spans that wait to be sent", [({}, figures.waiting)]

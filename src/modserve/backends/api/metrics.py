"""Metrics of an engine, in addition to the server's own metrics of each model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from modserve.core.statistics.metrics import MetricKind as MetricKind


class ModelMetric(Protocol):
    """A value or a histogram on the metrics page. Its methods are cheap and work on any thread.

    Metrics of one family with the same labels share a value, whichever instance or model made them. Operations of other
    kinds raise UNSUPPORTED, and everything raises INTERNAL after `close`, which the server may also call.
    """

    def increment(self, value: float = 1.0) -> None:
        """Add to a counter or a gauge. A counter raises INVALID_ARG for a negative value."""

    def set(self, value: float) -> None:
        """Set a gauge."""

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value in a histogram, or several equal ones."""

    def value(self) -> float:
        """Return the value of a counter or a gauge."""

    def close(self) -> None:
        """Release the metric. It leaves the page when no other instance or model uses the same one."""


class ModelMetrics(Protocol):
    """Factory of the metrics of one model version, for any thread. Unloading the version closes all of them."""

    def family(self, name: str, help: str, kind: MetricKind) -> None:
        """Declare a family; each model does so before it makes metrics of it. Repeating it is no error.

        Raises INVALID_ARG if the family exists with another kind, and for names that Prometheus does not accept or that
        are reserved for the server.
        """

    def metric(
        self, family: str, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> ModelMetric:
        """Return a metric of a family. `buckets`, only for histograms, are ascending upper bounds without infinity.

        An existing histogram with the same labels keeps its buckets. Raises INVALID_ARG.
        """

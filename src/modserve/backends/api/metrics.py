"""The metrics that an engine makes for itself, beside those that the server counts for each model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from modserve.core.statistics.metrics import MetricKind as MetricKind


class ModelMetric(Protocol):
    """One value, or one histogram, on the metrics page. Its methods are for any thread, and are cheap.

    A metric of the same family with the same labels, of whichever instance or model, has the same value. What a kind
    does not have raises UNSUPPORTED, and everything raises INTERNAL after `close`, which may come from the server.
    """

    def increment(self, value: float = 1.0) -> None:
        """Add to a counter or a gauge. Raises INVALID_ARG for less than 0, which only a gauge takes."""

    def set(self, value: float) -> None:
        """Of a gauge."""

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""

    def value(self) -> float:
        """Of a counter or a gauge."""

    def close(self) -> None:
        """The engine has no use for it any more. It goes from the page if nobody else has the same one."""


class ModelMetrics(Protocol):
    """Makes the metrics of one model version, from any thread. When it is unloaded, all of them are closed."""

    def family(self, name: str, help: str, kind: MetricKind) -> None:
        """Declare a family; each model does so before it makes metrics of it. Again is no error.

        Raises INVALID_ARG for another kind than it has already, and for names that Prometheus does not take or that are
        the server's own.
        """

    def metric(
        self, family: str, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> ModelMetric:
        """A metric of a family. `buckets`, for histograms alone, are upper bounds, ascending and without infinity.

        Where a histogram with the same labels is there already, its buckets stay. Raises INVALID_ARG.
        """

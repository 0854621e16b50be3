"""``model_metrics``: histogram buckets of a model on the metrics page."""

import math

from modserve.core.statistics.model_statistics import HISTOGRAM_FAMILIES
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems

_HERE = "model_metrics"
_MOST = 200
"""Limit of a histogram's buckets, as each is a line of the page."""


def histogram_buckets(message: pb.ModelConfig) -> dict[str, tuple[float, ...]]:
    """Return valid upper bounds by family, in the family's unit."""
    return {
        control.metric_identifier.family: tuple(control.histogram_options.buckets)
        for control in message.model_metrics.metric_control
        if control.metric_identifier.family in HISTOGRAM_FAMILIES and not _fault(control)
    }


def warn(message: pb.ModelConfig, problems: Problems) -> None:
    """Warn about families without configurable buckets, such as other metrics of Triton."""
    for index, control in enumerate(message.model_metrics.metric_control):
        family = control.metric_identifier.family
        if family and family not in HISTOGRAM_FAMILIES:
            path: FieldPath = (_HERE, "metric_control", index, "metric_identifier", "family")
            problems.warn(
                path,
                f"'{family}' has no configurable buckets and is ignored; expected one of "
                f"{', '.join(HISTOGRAM_FAMILIES)}",
            )


def validate(message: pb.ModelConfig) -> Faults:
    seen = set()
    for index, control in enumerate(message.model_metrics.metric_control):
        path: FieldPath = (_HERE, "metric_control", index)
        family = control.metric_identifier.family
        if not family:
            yield path, "a metric_control needs the name of a histogram: metric_identifier { family: … }"
        elif family in seen:
            yield path, f"'{family}' is listed twice"
        elif text := _fault(control):
            yield (*path, "histogram_options"), f"'{family}': {text}"
        seen.add(family)


def _fault(control: pb.ModelMetrics.MetricControl) -> str:
    buckets = list(control.histogram_options.buckets)
    if not 0 < len(buckets) <= _MOST:
        return f"it has {len(buckets)} buckets, expected 1 to {_MOST}"
    if not all(map(math.isfinite, buckets)) or sorted(set(buckets)) != buckets:
        return f"its buckets are {buckets}, expected finite numbers, each above the one before it"
    return ""

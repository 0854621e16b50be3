"""Requests of models to the server besides inference: loading and unloading models, and custom metrics."""

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

from modserve.backends.api import MetricKind, ModelCaller, ModelMetric, ModelMetrics
from modserve.core.errors import invalid


def _load(models: ModelCaller, arguments: Mapping[str, Any]) -> "Future[Any]":
    files = arguments.get("files")
    if files is not None:  # models write ``file:`` before a path, and from a worker contents come in hexadecimal digits
        files = {
            name.removeprefix("file:"): bytes.fromhex(content) if isinstance(content, str) else content
            for name, content in files.items()
        }
    return models.load(arguments["name"], arguments.get("config") or None, files)


def _unload(models: ModelCaller, arguments: Mapping[str, Any]) -> "Future[Any]":
    return models.unload(arguments["name"], bool(arguments.get("unload_dependents")))


def _ready(models: ModelCaller, arguments: Mapping[str, Any]) -> "Future[Any]":
    version = arguments.get("version")
    return models.is_ready(arguments["name"], int(version) if version else None)


CONTROLS: Mapping[str, Callable[[ModelCaller, Mapping[str, Any]], "Future[Any]"]] = {
    "load": _load,
    "unload": _unload,
    "ready": _ready,
}
"""Operations that take a while; the futures have the results."""


class Metrics:
    """The metrics of one instance, by the numbers that the model's objects have for them. Any thread may use it."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._held: dict[int, ModelMetric] = {}

    def control(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run ``metric_family``, ``metric`` or ``metric_value``, as `worker.host.Host.control`. Raises INVALID_ARG."""
        if operation == "metric_family":
            kind = cast(MetricKind, arguments["kind"].lower())
            self._metrics.family(arguments["name"], arguments["description"], kind)
            return None
        if operation == "metric":
            metric = self._metrics.metric(arguments["family"], arguments.get("labels"), arguments.get("buckets"))
            number = next(self._numbers)
            self._held[number] = metric
            return number
        if operation == "metric_value":
            return self._metric(arguments["metric"]).value()
        raise invalid(f"the server has no operation '{operation}'")

    def change(self, metric: int, operation: str, value: float, times: int) -> None:
        if operation == "observe":
            self._metric(metric).observe(value, times)
            return
        if operation not in ("increment", "set"):
            raise invalid(f"a metric has no operation '{operation}'")
        getattr(self._metric(metric), operation)(value)

    def drop(self, metric: int) -> None:
        held = self._held.pop(metric, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Close the metrics of a lost instance, as far as no other instance has them."""
        for metric in list(self._held):
            self.drop(metric)

    def _metric(self, number: int) -> ModelMetric:
        metric = self._held.get(number)
        if metric is None:
            raise invalid("the metric has been deleted")
        return metric

"""The backend `metered`, for tests: identity, with a counter, a gauge and a histogram on the metrics page."""

from collections.abc import Mapping

from modserve import ModelMetrics
from modserve.backends.api import InstanceSpec, ModelSource
from modserve.backends.identity import IdentityBackend, IdentityInstance, IdentityModel
from modserve.core.tensors.tensor import Array


class MeteredBackend(IdentityBackend):
    any_thread = False

    def open(self, source: ModelSource) -> IdentityModel:
        return MeteredModel(source.metrics)


class MeteredModel(IdentityModel):
    def __init__(self, metrics: ModelMetrics) -> None:
        super().__init__()
        self._metrics = metrics

    def instance(self, spec: InstanceSpec) -> IdentityInstance:
        return MeteredInstance(super().instance(spec), self._metrics)


class MeteredInstance(IdentityInstance):
    def __init__(self, inner: IdentityInstance, metrics: ModelMetrics) -> None:
        self._inner = inner
        metrics.family("test_executions", "Executions\nof all instances", "counter")
        metrics.family("test_rows_lately", "Rows of the last execution", "gauge")
        metrics.family("test_rows", "Rows of executions", "histogram")
        self._executions = metrics.metric("test_executions", {"who": 'a "test"'})
        self._lately = metrics.metric("test_rows_lately")
        self._rows = metrics.metric("test_rows", buckets=[1, 4])

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        rows = len(inputs["INPUT0"])
        self._executions.increment()
        self._lately.set(rows)
        self._rows.observe(rows)
        return self._inner.execute(inputs, outputs)

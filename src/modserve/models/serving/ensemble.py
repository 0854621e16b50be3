"""A loaded ensemble, and how it is put together once its models are READY."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType

from modserve import config as model_config
from modserve.config import validate_composition
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError, invalid, not_found, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.runtime.clock import Clock
from modserve.core.servable import Borrow, Handle, Servable
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.core.version import ModelId
from modserve.scheduling.ensemble import EnsembleScheduler


class EnsembleModel:
    """Checks requests, lets other models run them, and knows when all are settled.

    Implements `core.servable.Servable` and `Finisher`. Made, and used, on the event loop's thread. Its statistics are
    like Triton's: next to no time in a queue, and the sum of its steps' compute times. The composing models count their
    own.
    """

    unready_reason: str | None = None

    def __init__(
        self,
        model_id: ModelId,
        config: ModelConfig,
        config_message: bytes,
        borrow: Borrow,
        clock: Clock,
        labels: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.id = model_id
        self.config = config
        self.config_message = config_message
        self.statistics = ModelStatistics()
        self.statistics.set_buckets(config.histogram_buckets)
        self.labels = labels
        self._signature = Signature(config)
        self.outstanding = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._scheduler = EnsembleScheduler(config, model_id.version, borrow, clock, self._on_done, self._on_response)

    def __repr__(self) -> str:
        return f"EnsembleModel({self.id.name}, version {self.id.version}, {self.outstanding} outstanding)"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = self._signature.accept(request, sink, now_ns)
        try:
            self._scheduler.enqueue(inflight)
        except BaseException:
            self.statistics.record_failure(inflight, FailureReason.REJECTED, time.monotonic_ns())
            raise
        self.outstanding += 1
        self._settled.clear()
        return inflight

    @property
    def busy(self) -> bool:
        return self.outstanding > 0

    def hurry(self) -> None:
        self._scheduler.hurry()

    async def idle(self) -> None:
        await self._settled.wait()

    async def drain(self) -> None:
        self._scheduler.stop()
        await self.idle()

    async def close(self) -> None:
        self._scheduler.close(unavailable(f"model '{self.id.name}' was unloaded before the request was answered"))

    def _on_response(self, inflight: Inflight, since_ns: int, now_ns: int) -> None:
        """Count a response of a decoupled ensemble."""
        if since_ns:
            self.statistics.response_intervals.observe(now_ns - since_ns)
        else:
            trace = inflight.trace
            self.statistics.record_first_response(inflight, now_ns, "" if trace is None else trace.trace_id)

    def _on_done(self, inflight: Inflight, timing: ExecutionTiming, error: ModserveError | None) -> None:
        """Count a request that is over. The failure of a step is of the kind OTHER, as in Triton."""
        now_ns = time.monotonic_ns()
        if error is None:
            self.statistics.record_execution(timing, [inflight], int(time.time() * 1e3))
            self.statistics.record_successes([inflight], timing, now_ns)
        else:
            reason = FailureReason.CANCELED if error.code is Code.CANCELLED else FailureReason.OTHER
            self.statistics.record_failure(inflight, reason, now_ns)
        self.outstanding -= 1
        if not self.outstanding:
            self._settled.set()


@dataclass(frozen=True)
class LoadedEnsemble:
    """Data of an ensemble without its models."""

    complete: model_config.Complete
    labels: Mapping[str, tuple[str, ...]]


def nothing_to_borrow(name: str, version: int | None) -> Handle:
    """Implement `Borrow` for loaders of models that call no others."""
    raise not_found(f"model '{name}' cannot be called by other models here")


def assemble(model_id: ModelId, loaded: LoadedEnsemble, borrow: Borrow, clock: Clock) -> EnsembleModel:
    """Return the ensemble, checked against its models. For the event loop's thread.

    It is decoupled if one of them is. Outputs without a label file have the labels of the outputs they come from.
    Raises INVALID_ARG if a model is not READY or does not fit.
    """
    config, message = loaded.complete.config, loaded.complete.message
    with ExitStack() as stack:
        models = _borrow_all(config, borrow, stack)
        decoupled = validate_composition(config, {name: servable.config for (name, _), servable in models.items()})
        labels = {**_step_labels(config, models), **loaded.labels}
    message.model_transaction_policy.decoupled = decoupled
    return EnsembleModel(
        model_id,
        replace(config, decoupled=decoupled),
        message.SerializeToString(deterministic=True),
        borrow,
        clock,
        labels,
    )


def _borrow_all(config: ModelConfig, borrow: Borrow, stack: ExitStack) -> dict[tuple[str, int | None], Servable]:
    assert config.ensemble is not None, "only called for ensembles: this is a bug"
    models: dict[tuple[str, int | None], Servable] = {}
    for step in config.ensemble.steps:
        key = step.model, step.version
        if key in models:
            continue
        try:
            handle = borrow(*key)
        except ModserveError as error:
            raise invalid(f"ensemble '{config.name}' depends on '{step.model}': {error.message}") from error
        stack.callback(handle.release)
        models[key] = handle.servable
    return models


def _step_labels(config: ModelConfig, models: Mapping[tuple[str, int | None], Servable]) -> dict[str, tuple[str, ...]]:
    assert config.ensemble is not None, "only called for ensembles: this is a bug"
    labels: dict[str, tuple[str, ...]] = {}
    for step in config.ensemble.steps:
        step_labels = models[step.model, step.version].labels
        for name, tensor in step.outputs.items():
            if tensor in config.outputs_by_name and name in step_labels:
                labels.setdefault(tensor, step_labels[name])
    return labels

"""Models that stand before other models: they keep the responses, or their order."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse, Outcome, ResponseSink
from modserve.core.servable import Finisher, ReadinessChecker, RequestHolder, Servable, engine_report
from modserve.core.statistics import FailureReason
from modserve.core.tensor import Tensor
from modserve.resources.response_cache import ResponseCache, key
from modserve.scheduling.ordering import ResponseOrder
from modserve.scheduling.scheduler import Clock


class ModelWrapper:
    """Implements `core.servable.Servable` by what another one does."""

    def __init__(self, servable: Servable) -> None:
        self.id = servable.id
        self.config = servable.config
        self.config_message = servable.config_message
        self.statistics = servable.statistics
        self.labels = servable.labels
        self._servable = servable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._servable!r})"

    @property
    def behind(self) -> Servable:
        """What it stands before."""
        return self._servable

    def stand_before(self, servable: Servable) -> None:
        """Stand before another servable, made of the same model."""
        self._servable = servable

    def refresh(self) -> None:
        """The configuration of what it stands before has changed."""
        self.config, self.config_message = self._servable.config, self._servable.config_message

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        return self._servable.submit(request, sink, now_ns)

    @property
    def unready_reason(self) -> str | None:
        return self._servable.unready_reason

    @property
    def engine_report(self) -> Mapping[str, object]:
        return engine_report(self._servable)

    @property
    def outstanding(self) -> int:
        return self._servable.outstanding if isinstance(self._servable, RequestHolder) else 0

    @property
    def busy(self) -> bool:
        return isinstance(self._servable, Finisher) and self._servable.busy

    def hurry(self) -> None:
        if isinstance(self._servable, Finisher):
            self._servable.hurry()

    async def idle(self) -> None:
        if isinstance(self._servable, Finisher):
            await self._servable.idle()

    async def check_ready(self) -> bool:
        return not isinstance(self._servable, ReadinessChecker) or await self._servable.check_ready()

    async def drain(self) -> None:
        await self._servable.drain()

    async def close(self) -> None:
        await self._servable.close()


def wrappers(servable: Servable) -> "list[ModelWrapper]":
    """What stands before a model or an ensemble, the innermost first."""
    chain: list[ModelWrapper] = []
    while isinstance(servable, ModelWrapper):
        chain.insert(0, servable)
        servable = servable.behind
    return chain


WrapperT = TypeVar("WrapperT", bound=ModelWrapper)


def find(servable: Servable, kind: type[WrapperT]) -> WrapperT | None:
    """The wrapper of a kind that stands before a model."""
    return next((wrapper for wrapper in wrappers(servable) if isinstance(wrapper, kind)), None)


class OrderedModel(ModelWrapper):
    """Its responses leave in the order of the requests: ``preserve_ordering`` of the dynamic batcher."""

    def __init__(self, servable: Servable) -> None:
        super().__init__(servable)
        self._order = ResponseOrder()

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        held = self._order.behind(sink)
        try:
            inflight = self._servable.submit(request, held, now_ns)
        except BaseException:
            self._order.withdraw(held)
            raise
        inflight.ordered = True
        return inflight


class CachedModel(ModelWrapper):
    """Keeps the responses of a model or an ensemble that has one for each request: the same request does not run again.

    Of an ensemble the response of the whole is kept, and a hit runs none of its models.
    """

    def __init__(self, servable: Servable, cache: ResponseCache, clock: Clock) -> None:
        super().__init__(servable)
        self._cache = cache
        self._clock = clock
        self._stopped = False

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if self._stopped:  # it says so itself
            return self._servable.submit(request, sink, now_ns)
        start_ns = time.monotonic_ns()
        digest = key(request)
        kept = self._cache.get(self, digest)
        looked_ns = time.monotonic_ns() - start_ns
        if kept is not None:
            return self._hit(request, kept, sink, now_ns, start_ns, looked_ns)
        return self._servable.submit(request, _Keeper(self, digest, looked_ns, sink), now_ns)

    def stop(self) -> None:
        """Keep nothing any more."""
        self._stopped = True
        self._cache.forget(self)

    async def drain(self) -> None:
        self._stopped = True
        await self._servable.drain()

    async def close(self) -> None:
        self._cache.forget(self)
        await self._servable.close()

    def keep(self, digest: bytes, response: InferenceResponse, looked_ns: int) -> None:
        """The model has responded to a request that was not in the cache."""
        start_ns = time.monotonic_ns()
        if not self._stopped:
            self._cache.put(self, digest, response)
        self.statistics.record_cache_miss(looked_ns + time.monotonic_ns() - start_ns)

    def _hit(
        self,
        request: InferenceRequest,
        kept: InferenceResponse,
        sink: ResponseSink,
        now_ns: int,
        start_ns: int,
        looked_ns: int,
    ) -> Inflight:
        """Take a request whose response is known. It comes in the next turn of the event loop."""
        inflight = Inflight(request, sink, request.inputs, tuple(kept.outputs), 0, None, now_ns, request.deadline_ns)
        inflight.queue_start_ns = start_ns

        def respond() -> None:
            if inflight.settled:
                self.statistics.record_failure(inflight, FailureReason.CANCELED, time.monotonic_ns())
                return
            self.statistics.record_cache_hit(inflight, looked_ns, time.monotonic_ns())
            # New tensors: what is converted in them is kept no longer than the response.
            outputs = {name: Tensor.from_raw(one.datatype, one.shape, one.raw) for name, one in kept.outputs.items()}
            inflight.settle(replace(kept, id=request.id, outputs=outputs))

        self._clock.call_soon(respond)
        return inflight


@dataclass(slots=True, eq=False)
class _Keeper:
    """Implements `core.response.ResponseSink`: keeps the response on its way to the client."""

    _model: CachedModel
    _key: bytes
    _looked_ns: int
    _sink: ResponseSink

    def settle(self, outcome: Outcome, final: bool) -> None:
        try:
            if isinstance(outcome, InferenceResponse):
                self._model.keep(self._key, outcome, self._looked_ns)
        finally:
            self._sink.settle(outcome, final)

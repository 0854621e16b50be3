"""A model version whose answers are kept: a request like one before is answered without running it."""

import asyncio
import time
from dataclasses import replace

from modserve.core.errors import ModserveError
from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse, ResponseSink
from modserve.core.servable import RequestHolder, Servable, Submitter
from modserve.core.statistics import FailureReason
from modserve.core.tensor import Tensor
from modserve.core.tracing import ParentTrace
from modserve.resources.response_cache import ResponseCache, key
from modserve.scheduling.ordering import ResponseOrder


class CachedModel:
    """Implements `core.servable.Servable` before another one, which has one answer a request.

    Ensembles too: what is kept is the answer of the whole, and a hit asks none of its models.
    """

    def __init__(self, servable: Servable, cache: ResponseCache, loop: asyncio.AbstractEventLoop) -> None:
        self.id = servable.id
        self.config = servable.config
        self.config_message = servable.config_message
        self.statistics = servable.statistics
        self.labels = servable.labels
        self._servable = servable
        self._cache = cache
        self._loop = loop
        self._stopped = False
        policy = servable.config.dynamic_batching
        self._order = ResponseOrder() if policy is not None and policy.preserve_ordering else None

    def __repr__(self) -> str:
        return f"CachedModel({self._servable!r})"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if self._stopped:  # it says so itself
            return self._servable.submit(request, sink, now_ns)
        start_ns = time.monotonic_ns()
        found = key(request)
        kept = self._cache.get(self, found)
        looked_ns = time.monotonic_ns() - start_ns
        held = self._order.behind(sink) if self._order is not None else None
        if kept is not None:
            return self._answered(request, kept, held or sink, now_ns, start_ns, looked_ns)
        keeper = _Keeper(self, found, looked_ns, held or sink)
        if isinstance(sink, ParentTrace):
            keeper = _TracedKeeper(self, found, looked_ns, held or sink, sink)
        try:
            return self._servable.submit(request, keeper, now_ns)
        except BaseException:
            if self._order is not None and held is not None:
                self._order.withdraw(held)
            raise

    @property
    def unready_reason(self) -> str | None:
        return self._servable.unready_reason

    @property
    def outstanding(self) -> int:
        return self._servable.outstanding if isinstance(self._servable, RequestHolder) else 0

    async def drain(self) -> None:
        self._stopped = True
        await self._servable.drain()

    async def close(self) -> None:
        self._cache.forget(self)
        await self._servable.close()

    def keep(self, found: bytes, response: InferenceResponse, looked_ns: int) -> None:
        """The model has answered a request of which nothing was known."""
        start_ns = time.monotonic_ns()
        if not self._stopped:
            self._cache.put(self, found, response)
        self.statistics.record_cache_miss(looked_ns + time.monotonic_ns() - start_ns)

    def _answered(
        self,
        request: InferenceRequest,
        kept: InferenceResponse,
        sink: ResponseSink,
        now_ns: int,
        start_ns: int,
        looked_ns: int,
    ) -> Inflight:
        """A request whose answer is known, and comes when this has returned."""
        inflight = Inflight(request, sink, request.inputs, tuple(kept.outputs), 0, None, now_ns)
        inflight.queue_start_ns = start_ns

        def answer() -> None:
            if inflight.settled:
                self.statistics.record_failure(inflight, FailureReason.CANCELED, time.monotonic_ns())
                return
            self.statistics.record_cache_hit(inflight, looked_ns, time.monotonic_ns())
            # Tensors of their own: what is read from them is kept no longer than the answer.
            outputs = {name: Tensor.from_raw(one.datatype, one.shape, one.raw) for name, one in kept.outputs.items()}
            inflight.respond(replace(kept, id=request.id, outputs=outputs))

        self._loop.call_soon(answer)
        return inflight


class _Keeper:
    """Implements `core.response.ResponseSink`: the way of an answer that is to be kept."""

    __slots__ = ("_key", "_looked_ns", "_model", "_sink")

    def __init__(self, model: CachedModel, found: bytes, looked_ns: int, sink: ResponseSink) -> None:
        self._model = model
        self._key = found
        self._looked_ns = looked_ns
        self._sink = sink

    def respond(self, response: InferenceResponse, final: bool) -> None:
        try:
            self._model.keep(self._key, response, self._looked_ns)
        finally:
            self._sink.respond(response, final)

    def fail(self, error: ModserveError, final: bool) -> None:
        self._sink.fail(error, final)

    def complete(self) -> None:
        self._sink.complete()


class _TracedKeeper(_Keeper, ParentTrace):
    """The same where the request is traced, and those it makes are as well."""

    __slots__ = ("_trace",)

    def __init__(
        self, model: CachedModel, found: bytes, looked_ns: int, sink: ResponseSink, trace: ParentTrace
    ) -> None:
        super().__init__(model, found, looked_ns, sink)
        self._trace = trace

    def child(self, servable: Servable) -> Submitter:
        return self._trace.child(servable)

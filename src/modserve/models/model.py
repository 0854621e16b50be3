"""One loaded model version: checks requests, queues them, and knows when all are settled."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from modserve.backends.api import BackendModel, Executor
from modserve.core.errors import ModserveError, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.normalize import Signature
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.statistics import FailureReason, ModelStatistics, failure_reason
from modserve.core.tensor import Tensor
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.execution.quick import QuickRule, could_be_quick
from modserve.scheduling import batching
from modserve.scheduling.ordering import ResponseOrder
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import LoopClock, Scheduler
from modserve.scheduling.sequence import SequenceScheduler


class Model:
    """Implements `core.servable.Servable`. Made, and used, on the event loop's thread."""

    def __init__(
        self,
        model_id: ModelId,
        config: ModelConfig,
        config_message: bytes,
        engine: BackendModel,
        instances: Sequence[tuple[str, Executor]],
        loop: asyncio.AbstractEventLoop,
        *,
        any_thread: bool,
        labels: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        initial_states: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.id = model_id
        self.config = config
        self.config_message = config_message
        self.statistics = ModelStatistics()
        self.labels = labels
        self._engine = engine
        self._signature = Signature(config)
        policy = config.dynamic_batching
        self._order = ResponseOrder() if policy is not None and policy.preserve_ordering else None
        self._outstanding = 0
        self._settled = asyncio.Event()
        self._settled.set()
        quick = QuickRule() if any_thread and could_be_quick(config) else None
        self._pool = InstancePool(model_id, config, list(instances), self.statistics, self._on_settled, loop, quick)
        self._initial_states = initial_states
        self._scheduler = self._make_scheduler(LoopClock(loop))

    def __repr__(self) -> str:
        return f"Model({self.id.name}, version {self.id.version}, {self._outstanding} outstanding, {self._pool!r})"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = self._signature.accept(request, sink, now_ns)
        if self._order is not None:
            inflight.sink = held = self._order.behind(sink)
        try:
            self._scheduler.enqueue(inflight)
        except ModserveError:
            if self._order is not None:
                self._order.withdraw(held)
            self.statistics.record_failure(inflight, FailureReason.REJECTED, time.monotonic_ns())
            raise
        self.statistics.pending += 1
        self._outstanding += 1
        return inflight

    async def drain(self) -> None:
        self._scheduler.stop()
        if self._outstanding:
            self._settled.clear()
            await self._settled.wait()

    async def close(self) -> None:
        self._scheduler.close(unavailable(f"model '{self.id.name}' was unloaded before the request ran"))
        await asyncio.to_thread(self._close_engine)

    def _close_engine(self) -> None:
        try:
            self._pool.close()
        finally:
            self._engine.close()

    def _make_scheduler(self, clock: LoopClock) -> Scheduler:
        config = self.config
        policy = config.dynamic_batching
        if config.sequence_batching is not None:
            return SequenceScheduler(config, self._pool, clock, self._drop, self._initial_states)
        if policy is None:
            return QueuedScheduler(batching.direct, self._pool, clock, self._drop)
        return QueuedScheduler(
            batching.dynamic(policy, config.max_batch_size),
            self._pool,
            clock,
            self._drop,
            policy,
            ripe_size=batching.ripe_size(policy, config.max_batch_size),
        )

    def _drop(self, inflight: Inflight, error: ModserveError) -> None:
        """A request leaves the queue without having run."""
        self.statistics.pending -= 1
        self.statistics.record_failure(inflight, failure_reason(error, by_backend=False), time.monotonic_ns())
        inflight.fail(error)
        self._on_settled(1)

    def _on_settled(self, count: int) -> None:
        self._outstanding -= count
        if not self._outstanding:
            self._settled.set()

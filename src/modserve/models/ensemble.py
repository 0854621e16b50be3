"""A loaded ensemble: checks requests, lets other models run them, and knows when all are settled."""

import asyncio
import time
from collections.abc import Mapping
from types import MappingProxyType

from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.normalize import Signature
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.servable import Borrow
from modserve.core.statistics import FailureReason, ModelStatistics
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId
from modserve.scheduling.ensemble import EnsembleScheduler
from modserve.scheduling.scheduler import Clock


class EnsembleModel:
    """Implements `core.servable.Servable`. Made, and used, on the event loop's thread.

    Its statistics are like Triton's: next to no time in a queue, and the sum of its steps' compute times. The composing
    models count their own.
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
        self.labels = labels
        self._signature = Signature(config)
        self._outstanding = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._scheduler = EnsembleScheduler(config, model_id.version, borrow, clock, self._on_done)

    def __repr__(self) -> str:
        return f"EnsembleModel({self.id.name}, version {self.id.version}, {self._outstanding} outstanding)"

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = self._signature.accept(request, sink, now_ns)
        try:
            self._scheduler.enqueue(inflight)
        except BaseException:
            self.statistics.record_failure(inflight, FailureReason.REJECTED, time.monotonic_ns())
            raise
        self._outstanding += 1
        self._settled.clear()
        return inflight

    @property
    def outstanding(self) -> int:
        return self._outstanding

    async def drain(self) -> None:
        self._scheduler.stop()
        await self._settled.wait()

    async def close(self) -> None:
        self._scheduler.close(unavailable(f"model '{self.id.name}' was unloaded before the request was answered"))

    def _on_done(self, inflight: Inflight, timing: ExecutionTiming, error: ModserveError | None) -> None:
        """Count a request that is over. The failure of a step is of the kind OTHER, as in Triton."""
        now_ns = time.monotonic_ns()
        if error is None:
            self.statistics.record_execution(timing, [inflight], int(time.time() * 1e3))
            self.statistics.record_successes([inflight], timing, now_ns)
        else:
            reason = FailureReason.CANCELED if error.code is Code.CANCELLED else FailureReason.OTHER
            self.statistics.record_failure(inflight, reason, now_ns)
        self._outstanding -= 1
        if not self._outstanding:
            self._settled.set()

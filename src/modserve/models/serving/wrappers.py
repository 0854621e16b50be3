"""Models that stand before other models: they keep the order of the responses, or the responses (`cached.py`)."""

from collections.abc import Mapping
from typing import TypeVar

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.servable import Finisher, ReadinessChecker, RequestHolder, Servable, engine_report, process_ids
from modserve.scheduling.ordering import ResponseOrder


class ModelWrapper:
    """Implements `core.servable.Servable` by what another one does."""

    def __init__(self, servable: Servable) -> None:
        self.id = servable.id
        self.statistics = servable.statistics
        self.labels = servable.labels
        self._servable = servable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._servable!r})"

    @property
    def inner(self) -> Servable:
        """The servable that it stands before."""
        return self._servable

    @property
    def config(self) -> ModelConfig:
        return self._servable.config

    @property
    def config_message(self) -> bytes:
        return self._servable.config_message

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        return self._servable.submit(request, sink, now_ns)

    @property
    def unready_reason(self) -> str | None:
        return self._servable.unready_reason

    @property
    def engine_report(self) -> Mapping[str, object]:
        return engine_report(self._servable)

    @property
    def process_ids(self) -> list[int]:
        return process_ids(self._servable)

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


WrapperT = TypeVar("WrapperT", bound=ModelWrapper)


def find(servable: Servable, kind: type[WrapperT]) -> WrapperT | None:
    """Return the wrapper of a kind that stands before a model."""
    while isinstance(servable, ModelWrapper) and not isinstance(servable, kind):
        servable = servable.inner
    return servable if isinstance(servable, kind) else None


class OrderedModel(ModelWrapper):
    """Model with responses in the order of the requests: ``preserve_ordering`` of the dynamic batcher."""

    def __init__(self, servable: Servable, order: ResponseOrder) -> None:
        super().__init__(servable)
        self.order = order

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        held = self.order.next(sink)
        try:
            inflight = self._servable.submit(request, held, now_ns)
        except BaseException:
            self.order.withdraw(held)
            raise
        inflight.ordered = True
        return inflight

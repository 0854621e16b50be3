"""Models that stand before other models: they keep the order of the responses, or the responses (`cached.py`)."""

from collections.abc import Mapping
from typing import TypeVar

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.servable import Finisher, ReadinessChecker, RequestHolder, Servable, engine_report
from modserve.scheduling.ordering import ResponseOrder


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

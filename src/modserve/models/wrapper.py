"""What the models that stand before other models have in common."""

from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.servable import RequestHolder, Servable


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

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        return self._servable.submit(request, sink, now_ns)

    @property
    def unready_reason(self) -> str | None:
        return self._servable.unready_reason

    @property
    def outstanding(self) -> int:
        return self._servable.outstanding if isinstance(self._servable, RequestHolder) else 0

    async def drain(self) -> None:
        await self._servable.drain()

    async def close(self) -> None:
        await self._servable.close()

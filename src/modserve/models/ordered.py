"""A model version whose responses leave in the order of the requests: ``preserve_ordering`` of the dynamic batcher."""

from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.servable import Servable
from modserve.scheduling.ordering import ResponseOrder

from .wrapper import ModelWrapper


class OrderedModel(ModelWrapper):
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

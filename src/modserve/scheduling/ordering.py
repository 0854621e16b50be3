"""Responses in the order of the requests, as ``preserve_ordering`` of the dynamic batcher wants them."""

import logging
from collections import deque
from collections.abc import Callable

from modserve.core.errors import ModserveError
from modserve.core.response import InferenceResponse, ResponseSink
from modserve.core.servable import Servable, Submitter
from modserve.core.tracing import ParentTrace

_log = logging.getLogger(__name__)


class ResponseOrder:
    """Holds back what a request's sink would get until all requests before it are settled."""

    def __init__(self) -> None:
        self._open: deque[_Held] = deque()

    def behind(self, sink: ResponseSink) -> "_Held":
        """A sink for the next request, in front of its own. Call `withdraw` if the request is refused."""
        held = _TracedHeld(self, sink) if isinstance(sink, ParentTrace) else _Held(self, sink)
        self._open.append(held)
        return held

    def is_next(self, held: "_Held") -> bool:
        return self._open[0] is held

    def go_on(self) -> None:
        """The first has heard everything; those behind it hear what was held back."""
        while self._open and self._open[0].ended:
            self._open.popleft()
            if self._open:
                self._open[0].release()

    def withdraw(self, held: "_Held") -> None:
        self._open.remove(held)


class _Held:
    """Implements `core.response.ResponseSink`."""

    __slots__ = ("_order", "_releasing", "_sink", "_waiting", "ended")

    def __init__(self, order: ResponseOrder, sink: ResponseSink) -> None:
        self._order = order
        self._sink = sink
        self._waiting: deque[Callable[[], None]] = deque()
        self._releasing = False
        self.ended = False

    def respond(self, response: InferenceResponse, final: bool) -> None:
        self._say(lambda: self._sink.respond(response, final), final)

    def fail(self, error: ModserveError, final: bool) -> None:
        self._say(lambda: self._sink.fail(error, final), final)

    def complete(self) -> None:
        self._say(self._sink.complete, True)

    def release(self) -> None:
        self._releasing = True  # hearing something, a client may cancel the request: that comes last
        while self._waiting:
            try:
                self._waiting.popleft()()
            except Exception:  # of a sink, which costs the other requests nothing
                _log.exception("whoever waits for a response failed to take it")
        self._releasing = False

    def _say(self, say: Callable[[], None], final: bool) -> None:
        self.ended = self.ended or final
        if self._releasing or not self._order.is_next(self):
            self._waiting.append(say)
            return
        try:
            say()
        finally:
            if final:
                self._order.go_on()


class _TracedHeld(_Held, ParentTrace):
    """The same for a traced request."""

    __slots__ = ()

    def child(self, servable: Servable) -> Submitter:
        assert isinstance(self._sink, ParentTrace), "chosen for such sinks: this is a bug"
        return self._sink.child(servable)

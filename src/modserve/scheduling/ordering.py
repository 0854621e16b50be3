"""Delivers responses in the order of the requests, for ``preserve_ordering`` of the dynamic batcher."""

from collections import deque
from dataclasses import dataclass, field

from modserve.core.requests.response import Outcome, ResponseSink, hand_over


class ResponseOrder:
    """Holds back what a request's sink would get until all requests before it are settled."""

    def __init__(self) -> None:
        self._open: deque[_Held] = deque()

    def next(self, sink: ResponseSink) -> "_Held":
        """Make a sink for the next request, in front of its own. Call `withdraw` if the request is not taken."""
        held = _Held(self, sink)
        self._open.append(held)
        return held

    def is_next(self, held: "_Held") -> bool:
        return self._open[0] is held

    def go_on(self) -> None:
        """Release the held outcomes behind the first request, which is settled."""
        while self._open and self._open[0].ended:
            self._open.popleft()
            if self._open:
                self._open[0].release()

    def withdraw(self, held: "_Held") -> None:
        self._open.remove(held)


@dataclass(slots=True, eq=False)
class _Held:
    """Implements `core.requests.response.ResponseSink`."""

    _order: ResponseOrder
    _sink: ResponseSink
    _waiting: deque[tuple[Outcome, bool]] = field(default_factory=deque)
    _releasing: bool = False
    ended: bool = False

    def settle(self, outcome: Outcome, final: bool) -> None:
        self.ended = self.ended or final
        if self._releasing or not self._order.is_next(self):
            self._waiting.append((outcome, final))
            return
        hand_over(self._sink, outcome, final)
        if final:
            self._order.go_on()

    def release(self) -> None:
        # Re-entrancy: a sink may cancel the request from inside `settle`; that outcome comes last.
        self._releasing = True
        while self._waiting:
            hand_over(self._sink, *self._waiting.popleft())
        self._releasing = False

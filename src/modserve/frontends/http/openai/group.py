"""Several calls whose responses go into one HTTP response: the choices of a request."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from modserve.core.errors import ModserveError
from modserve.core.requests.response import Outcome
from modserve.frontends.http.streams import HttpStream
from modserve.protocol.response_form import ResponseForm
from modserve.settings import LoopLimits


class CallGroup:
    """Implements `StreamedCall` by several calls: their outcomes as they come, each from the call with index `current`.

    `ended` says that this was the last of that call. A failure of one ends them all.
    """

    def __init__(self, calls: Sequence[HttpStream]) -> None:
        self._calls = calls
        self._order: deque[int] = deque()
        """Of which call each outcome is that has come."""
        self._open = len(calls)
        self._arrival: Callable[[], None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.current = 0
        self.ended = False
        for index, call in enumerate(calls):
            call.listen(partial(self._came, index))

    @property
    def limits(self) -> LoopLimits:
        return self._calls[0].limits

    @property
    def response_form(self) -> ResponseForm:
        return self._calls[0].response_form

    @property
    def ready(self) -> bool:
        return bool(self._order)

    def listen(self, arrival: Callable[[], None]) -> None:
        self._arrival = arrival
        for _ in range(len(self._order)):
            arrival()

    def take(self) -> tuple[Outcome, bool]:
        """The next outcome of any call, and whether it is the last of all."""
        self.current = self._order.popleft()
        outcome, self.ended = self._calls[self.current].take()
        self._open -= self.ended
        return outcome, not self._open or (self.ended and isinstance(outcome, ModserveError))

    def acknowledge(self) -> None:
        self._calls[self.current].acknowledge()

    async def next(self) -> tuple[Outcome, bool]:
        self.acknowledge()
        while not self._order:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self.take()

    def _came(self, index: int) -> None:
        self._order.append(index)
        if self._arrival is not None:
            self._arrival()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def sent_some(self) -> None:
        self._calls[self.current].sent_some()

    def record_failure(self, error: ModserveError, status: int | str) -> None:
        self._calls[self.current].record_failure(error, status)

    def sending(self) -> None:
        self._calls[self.current].sending()

    def sent(self) -> None:
        self._calls[self.current].sent()

    def release(self) -> None:
        for call in self._calls:
            call.release()

    def close(self) -> None:
        self._arrival = None  # which leads back here
        for call in self._calls:
            call.close()

"""Several calls whose responses go into one HTTP response: the choices of a request."""

import asyncio
from collections.abc import Sequence

from modserve.core.errors import ModserveError
from modserve.core.requests.response import Outcome
from modserve.frontends.http.rest.streams import HttpStream
from modserve.protocol.response_form import ResponseForm
from modserve.settings import LoopLimits


class CallGroup:
    """Implements `StreamedCall` by several calls: their outcomes as they come, each from the call with index `current`.

    `ended` says that this was the last of that call. A failure of one ends them all.
    """

    def __init__(self, calls: Sequence[HttpStream]) -> None:
        self._calls = calls
        self._waiting: dict[asyncio.Task[tuple[Outcome, bool]], int] = {}
        self._open = set(range(len(calls)))
        self.current = 0
        self.ended = False

    @property
    def limits(self) -> LoopLimits:
        return self._calls[0].limits

    @property
    def response_form(self) -> ResponseForm:
        return self._calls[0].response_form

    async def next(self) -> tuple[Outcome, bool]:
        """The next outcome of any call, and whether it is the last of all."""
        idle = self._open - set(self._waiting.values())
        loop = asyncio.get_running_loop()
        self._waiting |= {loop.create_task(self._calls[index].next()): index for index in sorted(idle)}
        done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        first = min(done, key=self._waiting.__getitem__)
        self.current = self._waiting.pop(first)
        outcome, self.ended = first.result()
        if self.ended:
            self._open.discard(self.current)
        return outcome, not self._open or (self.ended and isinstance(outcome, ModserveError))

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
        for task in self._waiting:
            task.cancel()
        self._waiting.clear()
        for call in self._calls:
            call.close()

"""Streaming calls: one request with outcomes sent as they arrive."""

import asyncio
import time
from collections.abc import Callable

from modserve.core.errors import ModserveError, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.requests.shared_permit import SharedPermit
from modserve.core.requests.trace_context import TraceHeaders
from modserve.frontends.call import HTTP, InferenceCall, OutcomeQueue
from modserve.server import Server
from modserve.settings import LoopLimits

from .exchange import RequestInfo


class HttpStream(InferenceCall):
    """A call over HTTP with any number of responses, which `next` returns in order."""

    __slots__ = (
        "_arrival",
        "_kept",
        "_queue",
        "_streams",
        "_unsent",
        "_waiting",
        "keeps_outcomes",
        "limits",
        "on_close",
        "permit",
    )

    def __init__(self, streams: "Streams", model: str, version: int | None) -> None:
        super().__init__(streams.server, HTTP, streams.server.tenant, model, version)
        self.limits: LoopLimits = streams.limits
        self._streams = streams
        self._queue = OutcomeQueue(streams.server.memory)
        self._arrival: Callable[[], None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._unsent = False
        self.keeps_outcomes = False
        """True if the reader keeps outcomes; they then count as memory until the call is closed."""
        self._kept = 0
        self.permit: SharedPermit | None = None
        """Permit shared with other calls, which count as one."""
        self.on_close: Callable[[], None] | None = None
        """Callback for the end of the call, called once."""
        streams.open.add(self)

    @property
    def ready(self) -> bool:
        """True if `take` returns an outcome."""
        return len(self._queue) > 0

    def listen(self, arrival: Callable[[], None]) -> None:
        """Call `arrival` for each outcome: those already received, and later ones."""
        self._arrival = arrival
        for _ in range(len(self._queue)):
            arrival()

    def take(self) -> tuple[Outcome, bool]:
        """Return the next available outcome, and whether it is the last.

        With `keeps_outcomes`, a `MemoryExhaustedError` when the server has no memory for another outcome.
        """
        self.acknowledge()
        self._unsent = True
        outcome, final = self._queue.pop()
        if self.keeps_outcomes and isinstance(outcome, InferenceResponse):
            memory = self.server.memory
            memory.force(outcome.size)
            self._kept += outcome.size
            if memory.full:
                return memory.make_exhausted_error(outcome.size), final
        return outcome, final

    def acknowledge(self) -> None:
        """Confirm that the last outcome has been sent; the model may continue."""
        if self._unsent:
            self._unsent = False
            self._queue.on_first_sent(self.inflight)

    async def next(self) -> tuple[Outcome, bool]:
        """Wait for the next outcome and return it. Waiting confirms that the previous one has been sent."""
        self.acknowledge()
        while not self.ready:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self.take()

    def settle(self, outcome: Outcome, final: bool) -> None:
        if not self._queue.add(outcome, final):
            return
        if self._arrival is not None:
            self._arrival()
        elif self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            if not waiting.done():
                waiting.set_result(None)

    def on_part_sent(self) -> None:
        """Confirm that a part of an outcome has been sent."""
        if self.inflight is not None:
            self.inflight.on_progress()

    def cut(self) -> None:
        """End the call after the outcomes received so far; later ones are discarded."""
        self.settle(None, True)
        if self.inflight is not None:
            self.inflight.cancel()

    def end(self, error: ModserveError) -> None:
        """Report `error` instead of any further outcomes."""
        self.settle(error, True)
        if self.inflight is not None:
            self.inflight.cancel()

    def accept(self, request: InferenceRequest) -> Inflight:
        if self.permit is None:
            return super().accept(request)
        inflight = self._submit(request)
        self.permit.hold()
        inflight.permit = self.permit
        return inflight

    def close(self) -> None:
        self._streams.open.discard(self)
        if self.on_close is not None:
            self.on_close()
            self.on_close = None
        self._arrival = None  # breaks a reference cycle
        super().close()
        self._queue.close()
        kept, self._kept = self._kept, 0
        self.server.memory.give_back(kept)


class Streams:
    """Open streaming calls."""

    def __init__(self, server: Server, limits: LoopLimits) -> None:
        self.server = server
        self.limits = limits
        self.open: set[HttpStream] = set()

    def begin(self, note: RequestInfo, trace: TraceHeaders | None, model: str, version: int | None) -> HttpStream:
        """Begin a call with a request yet to be read; the current version serves it even if it is replaced meanwhile.

        The caller must close it.
        """
        call = HttpStream(self, model, version)
        note.add_call(call)
        try:
            call.borrow()
            call.begin(call.servable, time.monotonic_ns(), 0, trace)
        except BaseException:
            call.close()
            raise
        return call

    def stop(self) -> None:
        """End open streams with an error: the server's time to stop is up."""
        for call in list(self.open):
            call.end(unavailable("the server stopped before the request was answered to its end"))

"""Calls whose response is a stream: one request, its outcomes as they come, and an HTTP response made of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from fastapi import Request
from starlette.responses import StreamingResponse

from modserve.core.errors import ModserveError, unavailable
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.frontends import offload
from modserve.frontends.call import HTTP, InferenceCall, OutcomeQueue
from modserve.frontends.errors import to_client_error
from modserve.protocol import failures
from modserve.protocol.http.framing import Framing
from modserve.protocol.response_form import ResponseForm
from modserve.server import Server
from modserve.settings import LoopLimits

from .disconnect import unless_disconnected
from .identified import Note, begun, note_of
from .messages import trace_headers

Encode: TypeAlias = Callable[[Outcome, bool], bytes]
"""Makes a message of an outcome, and whether it is the last one; empty where there is none. Never raises on errors."""

_HEADERS = {"Cache-Control": "no-cache"}


class StreamMessage(NamedTuple):
    """`error` is what the message reports, or why it could not report what it should."""

    data: bytes
    error: ModserveError | None
    final: bool


class StreamedCall(Protocol):
    """What a `StreamedResponse` is made of: an `HttpStream`, or several."""

    @property
    def limits(self) -> LoopLimits: ...

    @property
    def response_form(self) -> ResponseForm: ...

    async def next(self) -> tuple[Outcome, bool]:
        """As `HttpStream` has it, and so are the others."""
        ...

    def record_failure(self, error: ModserveError, status: int | str) -> None: ...

    def sending(self) -> None: ...

    def sent_some(self) -> None: ...

    def sent(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class HttpStream(InferenceCall):
    """A call over HTTP with any number of responses, which `next` returns in their order."""

    __slots__ = ("_arrival", "_kept", "_queue", "_returned", "_streams", "keeps_outcomes", "limits")

    def __init__(self, streams: "Streams", model: str, version: int | None) -> None:
        super().__init__(streams.server, HTTP, model, version)
        self.limits = streams.limits
        self._streams = streams
        self._queue = OutcomeQueue(streams.server.memory)
        self._arrival = asyncio.Event()
        self._returned = False
        self.keeps_outcomes = False
        """Whoever reads them keeps them: they count as memory until the call is closed."""
        self._kept = 0
        streams.open.add(self)

    async def next(self) -> tuple[Outcome, bool]:
        """The next outcome, and whether it is the last. Waiting for one says that the one before it has been sent.

        With `keeps_outcomes`, a `MemoryExhaustedError` when the server has no room for another one.
        """
        if self._returned:
            self._queue.sent_first(self.inflight)
        self._returned = True
        while not self._queue:
            self._arrival.clear()
            await self._arrival.wait()
        outcome, final = self._queue.pop()
        if self.keeps_outcomes and isinstance(outcome, InferenceResponse):
            self.server.memory.force(outcome.size)
            self._kept += outcome.size
            if self.server.memory.full:
                return self.server.memory.exhausted(outcome.size), final
        return outcome, final

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self._queue.add(outcome, final):
            self._arrival.set()

    def sent_some(self) -> None:
        """A part of an outcome has been sent."""
        if self.inflight is not None:
            self.inflight.sent_some()

    def cut(self) -> None:
        """What is still to come is not wanted: the call ends after what has come."""
        self.settle(None, True)
        if self.inflight is not None:
            self.inflight.cancel()

    def end(self, error: ModserveError) -> None:
        """Report `error` in place of all that is still to come."""
        self.settle(error, True)
        if self.inflight is not None:
            self.inflight.cancel()

    def close(self) -> None:
        self._streams.open.discard(self)
        super().close()
        self._queue.close()
        kept, self._kept = self._kept, 0
        self.server.memory.give_back(kept)


class Streams:
    """The calls that are open."""

    def __init__(self, server: Server, limits: LoopLimits) -> None:
        self.server = server
        self.limits = limits
        self.open: set[HttpStream] = set()

    @contextmanager
    def begin(self, request: Request, model: str, version: int | None) -> Iterator[HttpStream]:
        """A call whose request is read and submitted in the block, by its model even if that is replaced meanwhile.

        It is closed if that fails.
        """
        call = HttpStream(self, model, version)
        begun(request, call)
        try:
            call.borrow()
            call.begin(call.servable, time.monotonic_ns(), 0, trace_headers(request))
            yield call
        except BaseException:
            call.close()
            raise

    def stop(self) -> None:
        """The server's time is up: what is still open ends with an error."""
        for call in list(self.open):
            call.end(unavailable("the server stopped before the request was answered to its end"))


async def respond(
    request: Request, call: StreamedCall, framing: Framing, encode: Encode, raise_failure: bool = False
) -> "StreamedResponse":
    """The HTTP response to a call that was submitted, once its first message is known.

    `raise_failure`: a failure before anything else is raised instead; the call is closed then.
    """
    try:
        first = await unless_disconnected(request, _next_message(call, encode))
        if raise_failure and first.error is not None:
            raise first.error
    except BaseException:
        call.close()
        raise
    return StreamedResponse(call, first, framing, encode, note_of(request))


class StreamedResponse(StreamingResponse):
    """The HTTP response to `call`, from its first message on. It ends early when the client goes away."""

    def __init__(self, call: StreamedCall, first: StreamMessage, framing: Framing, encode: Encode, note: Note) -> None:
        status, headers = 200, _HEADERS
        if first.error is not None:
            status, headers = failures.spelling(first.error).http, {**_HEADERS, **failures.headers(first.error)}
        super().__init__(self._frames(first), status, headers, framing.content_type)
        note.count = 0
        self._note = note
        self._call = call
        self._framing = framing
        self._encode = encode

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with suppress(ModserveError):  # the client has gone, and reads nothing
                await unless_disconnected(Request(scope, receive), self.stream_response(send))
        finally:
            self._call.close()

    async def _frames(self, message: StreamMessage) -> AsyncIterator[bytes]:
        call = self._call
        while True:
            if message.error is not None:
                call.record_failure(message.error, failures.spelling(message.error).http)
            if message.data:
                call.sending()
                frame, size = self._framing.frame(message.data), call.limits.part
                for start in range(0, len(frame), size):  # in parts, so that a slow reader is seen to read
                    yield frame[start : start + size]
                    call.sent_some()
                call.sent()
                self._note.count += 1
            if message.final:
                return
            message = await _next_message(call, self._encode)


async def _next_message(call: StreamedCall, encode: Encode) -> StreamMessage:
    """The call's next outcome as its client gets it."""
    outcome, final = await call.next()
    error = outcome if isinstance(outcome, ModserveError) else None
    try:
        if isinstance(outcome, InferenceResponse) and offload.is_long_response(
            outcome, call.response_form, call.limits
        ):
            data = await offload.on_thread(encode, outcome, final)
        else:
            data = encode(outcome, final)
    except Exception as failure:
        error = to_client_error(failure, "a response of a stream")
        data = encode(error, final)
    if final:
        call.release()
    return StreamMessage(data, error, final)

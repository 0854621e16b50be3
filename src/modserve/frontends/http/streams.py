"""Calls whose answer is a stream: one request, its answers as they come, and an HTTP answer made of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

from fastapi import Request
from starlette.responses import StreamingResponse

from modserve.core.errors import ModserveError, unavailable
from modserve.core.inflight import Inflight
from modserve.core.memory import UnsentResponses
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse, Outcome
from modserve.core.servable import Servable, submit_traced
from modserve.core.shared_memory import RegionLease
from modserve.frontends.threads import RequestMemory, has_many_elements, on_thread
from modserve.protocol import failures
from modserve.protocol.http import server_timing
from modserve.protocol.http.framing import Framing
from modserve.server import Server

from . import tracing
from .gone import unless_gone
from .infer import border

Encode: TypeAlias = Callable[[Outcome, bool], bytes]
"""An outcome, and whether it is the last one, as a message; empty where nothing is said. Failures never raise."""

_HEADERS = {"Cache-Control": "no-cache"}
_PART = 256 * 1024


class Message(NamedTuple):
    """`error` is what the message tells of, or why it could not tell what it should."""

    data: bytes
    error: ModserveError | None
    final: bool


class StreamCall:
    """One request, and the sink of its answers, which `answer` hands out in their order.

    `close` must be called in the end; it cancels what is not finished.
    """

    def __init__(self, streams: "Streams", servable: Servable, now_ns: int) -> None:
        self.servable = servable
        self.trace = tracing.begun(streams.server, servable, now_ns, now_ns) if streams.server.tracer.on else None
        self.lease: RegionLease | None = None
        """Of requests with tensors in shared memory."""
        self.memory = RequestMemory(streams.server.memory, asyncio.get_running_loop())
        self.id = ""
        self._streams = streams
        self._now_ns = now_ns
        self._answers: asyncio.Queue[tuple[Outcome, bool]] = asyncio.Queue()
        self._unsent = UnsentResponses(streams.server.memory)
        self._inflight: Inflight | None = None
        self._handed_out = False
        self._ended = False
        streams.opened(self)

    def lend(self) -> RegionLease:
        """The request's lease, which ends with the call."""
        self.lease = self._streams.server.shared_memory.lease()
        return self.lease

    def submit(self, request: InferenceRequest) -> None:
        """Raises what keeps the request from being accepted."""
        self.id = request.id
        if self.trace is None:
            self._inflight = self.servable.submit(request, self, self._now_ns)
        else:
            self._inflight = submit_traced(self.trace, self.servable, request, self, self._now_ns)
        self._streams.server.pace(self._inflight)

    async def answer(self) -> tuple[Outcome, bool]:
        """The next answer, and whether it is the last. Asking for one says that the one before it has been sent."""
        if self._handed_out:
            self._unsent.sent()
            if self._inflight is not None:
                self._inflight.sent()
        self._handed_out = True
        return await self._answers.get()

    def sent_some(self) -> None:
        """Of an answer, a part has been sent."""
        if self._inflight is not None:
            self._inflight.sent_some()

    @property
    def cost(self) -> str:
        """What the request has cost, as a header says it; empty if it has not run."""
        return "" if self._inflight is None else server_timing.value(self._inflight)

    def with_cost(self, response: InferenceResponse) -> InferenceResponse:
        """The last response, which tells the same."""
        return response if self._inflight is None else server_timing.with_cost(response, self._inflight)

    def settle(self, outcome: Outcome, final: bool) -> None:
        if not self._ended:
            self._ended = final
            self._unsent.add(outcome.size if isinstance(outcome, InferenceResponse) else 0)
            self._answers.put_nowait((outcome, final))

    def end(self, error: ModserveError) -> None:
        """Tell `error` in place of all that is still to come."""
        self.settle(error, True)
        if self._inflight is not None:
            self._inflight.cancel()

    def release(self) -> None:
        """What shared memory there was is no longer used: called before the client can hear of the end."""
        if self.lease is not None:
            self.lease.release()

    def close(self) -> None:
        """The client has all it gets, or has gone."""
        self._streams.closed(self)
        self._ended = True
        if self._inflight is not None:
            self._inflight.cancel()
        self.release()
        self.memory.release()
        self._unsent.release()
        if self.trace is not None:
            self.trace.end()

    def failed(self, error: ModserveError) -> None:
        """The client is told of `error` in the stream."""
        model, status = self.servable.id, failures.spelling(error).http
        self._streams.server.failure_log.record("HTTP", model.name, model.version, self.id, status, error.message)


class Streams:
    """The calls that are open."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._open: set[StreamCall] = set()

    def opened(self, call: StreamCall) -> None:
        self._open.add(call)

    def closed(self, call: StreamCall) -> None:
        self._open.discard(call)

    @property
    def count(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        """The server's time is up: what is still open ends with an error."""
        for call in list(self._open):
            call.end(unavailable("the server stopped before the request was answered to its end"))


@contextmanager
def borrowed(server: Server, model: str, version: int | None) -> Iterator[Servable]:
    """What `Server.model` gives, which takes requests throughout the block, also if it is replaced meanwhile."""
    handle = server.borrow(model, version)
    try:
        yield handle.servable
    finally:
        handle.release()


class StreamedAnswer(StreamingResponse):
    """The HTTP answer to `call`, from its first message on. It ends early when the client goes away."""

    def __init__(self, call: StreamCall, first: Message, framing: Framing, encode: Encode) -> None:
        status, headers = 200, _HEADERS
        if first.error is not None:
            status, headers = failures.spelling(first.error).http, {**_HEADERS, **failures.headers(first.error)}
        super().__init__(self._frames(first), status, headers, framing.content_type)
        self._call = call
        self._framing = framing
        self._encode = encode

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with suppress(ModserveError):  # the client has gone, and reads nothing
                await unless_gone(Request(scope, receive), self.stream_response(send))
        finally:
            self._call.close()

    async def _frames(self, message: Message) -> AsyncIterator[bytes]:
        trace = self._call.trace
        while True:
            if message.error is not None:
                self._call.failed(message.error)
            if message.data:
                if trace is not None:
                    trace.stamp("HTTP_SEND_START")
                for part in _parts(self._framing.frame(message.data)):
                    yield part
                    self._call.sent_some()
                if trace is not None:
                    trace.stamp("HTTP_SEND_END")
            if message.final:
                return
            message = await next_message(self._call, self._encode)


def _parts(frame: bytes) -> Iterator[bytes]:
    """A long one is sent in parts, so that it is known of a slow reader that it reads."""
    if len(frame) <= _PART:
        return iter((frame,))
    return (frame[start : start + _PART] for start in range(0, len(frame), _PART))


async def next_message(call: StreamCall, encode: Encode) -> Message:
    """The call's next answer as its client is told of it."""
    outcome, final = await call.answer()
    error = outcome if isinstance(outcome, ModserveError) else None
    try:
        if isinstance(outcome, InferenceResponse) and has_many_elements(outcome):
            data = await on_thread(encode, outcome, final)
        else:
            data = encode(outcome, final)
    except Exception as failure:
        error = border(failure)
        data = encode(error, final)
    if final:
        call.release()
    return Message(data, error, final)

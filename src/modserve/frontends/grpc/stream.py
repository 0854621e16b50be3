"""``ModelStreamInfer``: any number of requests on one RPC, answered in their order. No task a request."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from modserve.core.errors import ModserveError, internal, invalid, unavailable
from modserve.core.inflight import Inflight
from modserve.core.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.core.version import parse_requested
from modserve.pb import inference as pb
from modserve.protocol import classification, grpc_messages
from modserve.server import Server

_log = logging.getLogger(__name__)

MAX_OUTSTANDING = 1024
"""Requests of one stream that are read and not answered yet. While there are so many, no more are read, and flow
control makes the client wait."""

MAX_OUTSTANDING_BYTES = 64 * 1024 * 1024
"""The same for the sum of their sizes. One request may be larger, and is then the only one read."""

_HARD_ERRORS = ("triton_grpc_error", "true")
"""The metadata with which a client asks that the first error end the stream as the RPC's status."""

_STOPPING = "GRPC server is shutting down and has stopped accepting new requests."

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Outcome: TypeAlias = InferenceResponse | ModserveError


class InferStreams:
    """The streams that are open."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: set[_Stream] = set()
        self._stopped = False

    async def serve(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """One stream, from its first request to its end. Raises the `ModserveError` that ends it."""
        if self._stopped:
            raise unavailable(_STOPPING)
        stream = _Stream(self._server, context)
        self._open.add(stream)
        try:
            await stream.run(messages)
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        """Read no more requests; each stream ends as soon as those it has read are answered."""
        self._stopped = True
        for stream in self._open:
            stream.stop()


class _Call:
    """One request of a stream, and the sink of its answer."""

    __slots__ = ("class_counts", "id", "inflight", "outcome", "servable", "size", "stream")

    def __init__(self, stream: "_Stream", size: int) -> None:
        self.stream = stream
        self.size = size
        self.id = ""
        self.class_counts: Mapping[str, int] = {}
        self.servable: Servable | None = None
        self.inflight: Inflight | None = None
        self.outcome: Outcome | None = None

    def start(self, server: Server, data: bytes, now_ns: int) -> None:
        """Raises whatever keeps the request from being accepted."""
        try:
            message = pb.ModelInferRequest.FromString(data)
        except DecodeError:
            name = pb.ModelInferRequest.DESCRIPTOR.full_name
            raise invalid(f"Unable to parse request: {len(data)} bytes are no {name}") from None
        self.id = message.id
        self.servable = server.model(message.model_name, parse_requested(message.model_version))
        # The RPC's own deadline cancels the whole stream: no request needs it.
        request = grpc_messages.decode_request(message, now_ns)
        self.class_counts = grpc_messages.class_counts(message)
        self.inflight = self.servable.submit(request, self, now_ns)

    @property
    def accepted_by(self) -> str:
        """The model that took the request, empty for a request that was refused."""
        return self.inflight.request.model_name if self.inflight is not None else ""

    def respond(self, response: InferenceResponse, final: bool) -> None:
        self.settle(response)

    def fail(self, error: ModserveError) -> None:
        self.settle(error)

    def settle(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.stream.on_settled(self)

    def answer(self) -> pb.ModelStreamInferResponse:
        """What is sent. Raises the error of a request that failed, or whose answer can not be sent."""
        outcome = self.outcome
        if outcome is None or isinstance(outcome, ModserveError):
            raise outcome or internal("a request without an outcome was answered: this is a bug")
        assert self.servable is not None, "set before the request was submitted: this is a bug"
        response = classification.classified(outcome, self.class_counts, self.servable)
        return grpc_messages.encode_stream_response(response, final=True)


class _Stream:
    """One task reads and submits, this one writes; between them stand the calls, in order of arrival."""

    def __init__(self, server: Server, context: Context) -> None:
        self._server = server
        self._context = context
        self._hard_errors = _HARD_ERRORS in map(tuple, context.invocation_metadata() or ())
        self._calls: deque[_Call] = deque()
        self._bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self._half_closed = False
        self._stopping = False
        self._changed = asyncio.Event()
        """Set when there may be something to write, or the end has come."""
        self._room = asyncio.Event()

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._reading = tasks.create_task(self._read(messages))
                error = await self._write()
                self._reading.cancel()
        finally:
            for call in list(self._calls):
                if call.inflight is not None:
                    call.inflight.cancel()
        if error is not None:
            raise error

    def stop(self) -> None:
        self._stopping = True
        if self._reading is not None:
            self._reading.cancel()
        self._changed.set()

    def on_settled(self, call: _Call) -> None:
        if self._calls and self._calls[0] is call:
            self._changed.set()

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        async for data in messages:
            self._take(data)
            while len(self._calls) >= MAX_OUTSTANDING or self._bytes >= MAX_OUTSTANDING_BYTES:
                self._room.clear()
                await self._room.wait()
        self._half_closed = True
        self._changed.set()

    def _take(self, data: bytes) -> None:
        call = _Call(self, len(data))
        self._calls.append(call)
        self._bytes += call.size
        try:
            call.start(self._server, data, time.monotonic_ns())
        except Exception as error:
            call.settle(_foreseen(error))

    async def _write(self) -> ModserveError | None:
        """Send answers until the stream's end; the error that it ends with, None for a good end."""
        while True:
            while self._calls and self._calls[0].outcome is not None:
                try:
                    await self._send(self._calls[0])
                except ModserveError as error:
                    return error
                except grpc.aio.BaseError:
                    return None  # the client has gone, and the RPC's cancellation is on its way
                self._bytes -= self._calls.popleft().size
                self._room.set()
            if not self._calls and self._half_closed:
                return None
            if not self._calls and self._stopping:
                return unavailable(_STOPPING)
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, call: _Call) -> None:
        """Raises the request's error if that must end the stream, and grpc's own when nobody takes the answer."""
        try:
            answer = call.answer()
        except Exception as failure:
            error = _foreseen(failure)
            if self._hard_errors:
                raise error from None
            answer = grpc_messages.encode_stream_error(error, call.id, call.accepted_by)
        await self._context.write(answer)


def _foreseen(error: Exception) -> ModserveError:
    if isinstance(error, ModserveError):
        return error
    _log.error("a request of a stream failed unforeseen", exc_info=error)
    return internal(f"unforeseen {type(error).__name__}: {error}")

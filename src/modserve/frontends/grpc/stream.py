"""``ModelStreamInfer``: any number of requests on one RPC. No task a request.

Models with one response a request answer in the order of the requests; those of decoupled models leave as they come.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

import grpc

from modserve.core.errors import ModserveError, unavailable
from modserve.core.inflight import Inflight
from modserve.core.memory import MemoryBudget, UnsentResponses
from modserve.core.response import InferenceResponse, Outcome, bare_end
from modserve.core.servable import Servable, submit_traced
from modserve.core.shared_memory import Place, RegionLease
from modserve.core.tracing import RequestTrace
from modserve.core.version import parse_requested
from modserve.frontends.threads import RequestMemory, has_many_elements, on_thread
from modserve.protocol import classification, failures, header_forwarding, shared_memory
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http import server_timing
from modserve.server import Server

from . import tracing
from .border import foreseen, grpc_status
from .inflating import STARTS, Inflating
from .reading import Held, parse, read_request

MAX_OUTSTANDING = 1024
"""Requests of one stream that are read and not answered yet. While there are so many, no more are read, and flow
control makes the client wait."""

MAX_OUTSTANDING_BYTES = 64 * 1024 * 1024
"""The same for the sum of their sizes. One request may be larger, and is then the only one read."""

_HARD_ERRORS = ("triton_grpc_error", "true")
"""The metadata with which a client asks that the first error end the stream as the RPC's status."""

_NAME = "a request of a stream"

_STOPPING = "GRPC server is shutting down and has stopped accepting new requests."

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class InferStreams:
    """The streams that are open."""

    def __init__(
        self,
        server: Server,
        header_pattern: re.Pattern[str] | None = None,
        *,
        server_timing: bool = False,
        max_message: int = 0,
    ) -> None:
        self._server = server
        self._inflating = Inflating(server.memory, max_message)
        self._header_pattern = header_pattern
        self._server_timing = server_timing
        self._open: set[_Stream] = set()
        self._stopped = False

    async def serve(self, messages: AsyncIterator[bytes], context: Context) -> ModserveError | None:
        """One stream, from its first request to its end; the error that ends it, None for a good end."""
        if self._stopped:
            return unavailable(_STOPPING)
        forwarded = header_forwarding.from_metadata(self._header_pattern, context.invocation_metadata())
        stream = _Stream(self._server, context, forwarded, self._server_timing, self._inflating)
        self._open.add(stream)
        try:
            error = await stream.run(messages)
        finally:
            self._open.discard(stream)
            del stream
        return error

    def stop(self) -> None:
        """Read no more requests; each stream ends as soon as those it has read are answered."""
        self._stopped = True
        for stream in self._open:
            stream.stop()


class _Call:
    """One request of a stream, and the sink of its answers."""

    __slots__ = (
        "answers",
        "class_counts",
        "empty_final",
        "ended",
        "held",
        "id",
        "inflated",
        "inflight",
        "lease",
        "model",
        "ordered",
        "places",
        "read",
        "servable",
        "size",
        "stream",
        "trace",
        "unsent",
        "version",
    )

    def __init__(self, stream: "_Stream", size: int) -> None:
        self.stream = stream
        self.size = size
        self.held = 0
        """What it has taken of the server's memory."""
        self.id = self.model = self.version = ""
        self.class_counts: Mapping[str, int] = {}
        self.places: Mapping[str, Place] = {}
        self.lease: RegionLease | None = None
        self.inflated: RequestMemory | None = None
        """Of a message that came compressed."""
        self.read: Held | None = None
        """Of a request that was read slowly."""
        self.servable: Servable | None = None
        self.inflight: Inflight | None = None
        self.ordered = True
        """It is answered after the requests before it."""
        self.empty_final = False
        """The client wants to be told of the end, if that comes without a response."""
        self.answers: deque[tuple[Outcome, bool]] = deque()
        """What has not been sent yet, each with whether it is the last."""
        self.unsent = UnsentResponses(stream.memory)
        self.ended = False
        self.trace: RequestTrace | None = None

    async def start(self, server: Server, data: bytes, now_ns: int) -> None:
        """Raises whatever keeps the request from being accepted."""
        server.memory.take(self.size)
        self.held = self.size
        if data and data[0] in STARTS:
            data, self.inflated = await self.stream.inflating.inflated(data)
        message, tensors = await parse(data)
        self.id, self.model, self.version = message.id, message.model_name, message.model_version
        self.servable = server.model(message.model_name, parse_requested(message.model_version))
        if server.tracer.on:
            self.trace = tracing.begun(server, self.servable, now_ns)
        self.lease = server.shared_memory.lease()
        # The RPC's own deadline cancels the whole stream; until then its requests' batches are formed by it.
        deadline_ns = self.stream.deadline_ns
        if tensors is None and grpc_messages.is_plain(message):
            request = grpc_messages.decode_request(message, deadline_ns, self.lease)
        else:
            request, self.read = await read_request(server, self.servable, message, tensors, deadline_ns, self.lease)
        request = header_forwarding.with_headers(request, self.stream.forwarded)
        if request.outputs:
            self.places = grpc_messages.output_places(message, self.lease)
            self.class_counts = grpc_messages.class_counts(message)
        if message.parameters:
            self.empty_final = grpc_messages.wants_empty_final(message)
        # Said before, since a model may answer while the request is given to it.
        self.ordered = not self.servable.config.decoupled
        try:
            if self.trace is None:
                self.inflight = self.servable.submit(request, self, now_ns)
            else:
                self.inflight = submit_traced(self.trace, self.servable, request, self, now_ns)
        except BaseException:
            self.ordered = True
            raise
        if self.read is not None:
            self.read.give_back_model()
        if not self.ordered:
            server.pace(self.inflight)

    @property
    def accepted_by(self) -> str:
        """The model that took the request, empty for a request that was refused."""
        return self.inflight.request.model_name if self.inflight is not None else ""

    def settle(self, outcome: Outcome, final: bool) -> None:
        if not self.ended:
            self.ended = final
            self.answers.append((outcome, final))
            self.unsent.add(outcome.size if isinstance(outcome, InferenceResponse) else 0)
            self.stream.on_answer(self)

    def release(self) -> None:
        """What shared memory there was is no longer used: called before the client can hear of the end."""
        if self.lease is not None:
            self.lease.release()

    def close(self, server: Server) -> None:
        """It is over. What it holds is let go of, and it no longer holds who holds it."""
        self.ended = True
        if self.inflight is not None:
            self.inflight.cancel()  # which does nothing to a request that is settled
            self.inflight.flow = None  # it leads back to its request
        self.release()
        if self.read is not None:
            self.read.release()
        if self.inflated is not None:
            self.inflated.release()
        server.memory.give_back(self.held)
        self.held = 0
        self.unsent.release()
        if self.trace is not None:
            self.trace.end()
        self.inflight = self.trace = self.servable = self.read = None
        self.answers.clear()

    def is_long(self, outcome: Outcome) -> bool:
        """Whether making the message takes so long that others should not wait for it."""
        if not isinstance(outcome, InferenceResponse):
            return False
        return (
            grpc_messages.takes_long(outcome)
            or (bool(self.class_counts) and has_many_elements(outcome))
            or (bool(self.places) and self.stream.with_cuda)
        )

    def message(self, outcome: Outcome, final: bool) -> bytes | None:
        """What is sent of an answer that is no failure, if anything is. Raises what keeps it from being sent."""
        assert not isinstance(outcome, ModserveError), "a failure is no response: this is a bug"
        assert self.servable is not None, "set before the request was submitted: this is a bug"
        if outcome is None:
            if not self.empty_final:
                return None
            response = bare_end(self.servable.id, self.id)
        else:
            if self.places and self.lease is not None:
                outcome = shared_memory.moved(outcome, self.places, self.lease)
            response = classification.classified(outcome, self.class_counts, self.servable)
        if final and self.stream.timed and self.inflight is not None:
            response = server_timing.with_cost(response, self.inflight)
        return grpc_messages.encode_stream_response(response, final)


class _Stream:
    """One task reads and submits, this one writes; between them stand the calls."""

    def __init__(
        self, server: Server, context: Context, forwarded: Forwarded, timed: bool, inflating: Inflating
    ) -> None:
        self._server = server
        self.inflating = inflating
        self._context = context
        self.forwarded = forwarded
        """Metadata that go along with each request as its parameters."""
        self.timed = timed
        """The last message of each request tells what it has cost."""
        remaining: float | None = context.time_remaining()
        self.deadline_ns = 0 if remaining is None else time.monotonic_ns() + int(remaining * 1e9)
        self._hard_errors = _HARD_ERRORS in map(tuple, context.invocation_metadata() or ())
        self._open: set[_Call] = set()
        """The requests that are not answered to the end."""
        self._order: deque[_Call] = deque()
        """Those of them that are answered in order."""
        self._ready: deque[_Call] = deque()
        """Whose answers may be sent, once for each."""
        self._bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self._half_closed = False
        self._broken: ModserveError | None = None
        """What keeps it from reading on."""
        self._stopping = False
        self._changed = asyncio.Event()
        """Set when there may be something to write, or the end has come."""
        self._room = asyncio.Event()

    async def run(self, messages: AsyncIterator[bytes]) -> ModserveError | None:
        """Serve it to its end; the error that it ends with, None for a good end."""
        reading = self._reading = asyncio.ensure_future(self._read(messages))
        try:
            return await self._write()
        finally:
            # In place of a TaskGroup, which until Python 3.13 leaves a cycle when it is cancelled.
            await _ended(reading)
            for call in self._open:
                call.close(self._server)
            # Each of these holds what leads back to this stream: tasks keep the exceptions that ended them.
            self._reading = None
            self._open.clear()
            self._order.clear()
            self._ready.clear()

    @property
    def memory(self) -> MemoryBudget:
        return self._server.memory

    @property
    def with_cuda(self) -> bool:
        return self._server.shared_memory.with_cuda

    def stop(self) -> None:
        self._stopping = True
        if self._reading is not None:
            self._reading.cancel()
        self._changed.set()

    def on_answer(self, call: _Call) -> None:
        if not call.ordered or self._order[0] is call:
            self._ready.append(call)
            self._changed.set()

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async for data in messages:
                await self._take(data)
                while len(self._open) >= MAX_OUTSTANDING or self._bytes >= MAX_OUTSTANDING_BYTES:
                    self._room.clear()
                    await self._room.wait()
            self._half_closed = True
        except grpc.aio.BaseError:
            self._half_closed = True  # the client has gone
        except Exception as error:
            self._broken = foreseen(error, "reading a stream").with_traceback(None)
        finally:
            self._changed.set()

    async def _take(self, data: bytes) -> None:
        call = _Call(self, len(data))
        self._open.add(call)
        self._order.append(call)
        self._bytes += call.size
        try:
            await call.start(self._server, data, time.monotonic_ns())
        except Exception as error:
            # Without its traceback, which holds the frames that hold the error.
            call.settle(foreseen(error, _NAME).with_traceback(None), True)
        except asyncio.CancelledError:
            call.settle(unavailable(_STOPPING), True)  # it was still being read
            raise
        if not call.ordered:
            self._order.pop()

    def _over(self, call: _Call) -> None:
        """A request's last answer has been sent."""
        self._open.discard(call)
        call.close(self._server)
        self._bytes -= call.size
        self._room.set()
        if call.ordered:
            self._order.popleft()
            if self._order:
                self._ready.extend([self._order[0]] * len(self._order[0].answers))

    async def _write(self) -> ModserveError | None:
        """Send answers until the stream's end; the error that it ends with, None for a good end."""
        while True:
            while self._ready:
                call = self._ready.popleft()
                try:
                    error = await self._send(call, *call.answers.popleft())
                except grpc.aio.BaseError:
                    return None  # the client has gone, and the RPC's cancellation is on its way
                if error is not None:
                    return error
                call.unsent.sent()
                if call.inflight is not None:
                    call.inflight.sent()
                if call.ended and not call.answers:
                    self._over(call)
            if self._broken is not None:
                return self._broken
            if not self._open and self._half_closed:
                return None
            if not self._open and self._stopping:
                return unavailable(_STOPPING)
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, call: _Call, outcome: Outcome, final: bool) -> ModserveError | None:
        """The request's error if that must end the stream. Raises grpc's own error when nobody takes the answer."""
        data: bytes | None = None
        error: ModserveError | None = None
        if isinstance(outcome, ModserveError):
            error = outcome
        else:
            try:
                if call.is_long(outcome):
                    data = await on_thread(call.message, outcome, final)
                else:
                    data = call.message(outcome, final)
            except Exception as failure:
                error = foreseen(failure, _NAME).with_traceback(None)
        if error is not None:
            if self._hard_errors:
                return error
            self._server.failure_log.record(
                "gRPC", call.model, call.version, call.id, grpc_status(error).name, failures.public_message(error)
            )
            message = grpc_messages.encode_stream_error(error, call.id, call.accepted_by, final)
            data = message.SerializeToString()
        if final:
            call.release()
        if data is None:
            return None
        if call.trace is not None:
            call.trace.stamp("GRPC_SEND_START")
        await self._write_counted(data)
        if call.trace is not None:
            call.trace.stamp("GRPC_SEND_END")
        return None

    async def _write_counted(self, data: bytes) -> None:
        """What waits for a slow client counts as held."""
        memory = self._server.memory
        memory.force(len(data))
        try:
            await self._context.write(data)
        finally:
            memory.give_back(len(data))


async def _ended(task: "asyncio.Task[None]") -> None:
    """Cancel a task, and return when it has ended: what it has on a thread goes on until it is done."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            pass  # who calls this is at its end anyway

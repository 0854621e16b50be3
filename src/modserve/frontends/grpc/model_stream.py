"""``ModelStreamInfer``: any number of requests on one RPC, without a task for each request.

Responses of models with one response per request keep the order of the requests; responses of decoupled models are sent
as they arrive. One task reads messages and submits requests; the RPC's task writes. They share these collections:

- `_open`: all calls that are not over. `_order`: the calls in it with ordered responses.
- `_ready`: a call once for each outcome that may be written now. A call in `_order` enters it when it is first there,
  other calls when their outcomes arrive.

Only the reading task adds calls, and only the writing task removes them.
"""

import asyncio
import time
from collections import deque

from modserve.core.errors import ModserveError, unavailable
from modserve.core.requests import trace_context
from modserve.core.requests.response import InferenceResponse, Outcome, bare_end
from modserve.frontends import access as entries
from modserve.frontends import offload
from modserve.frontends.call import GRPC, InferenceCall, OutcomeQueue
from modserve.frontends.errors import to_client_error
from modserve.frontends.offload import RequestMemory, is_long_response
from modserve.observability.access_log import AccessLog
from modserve.protocol import failures, header_forwarding
from modserve.protocol.grpc import grpc_messages, response_writer
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.server import Server
from modserve.settings import GrpcSettings

from .heads import CANCELLED, OK
from .infer_requests import parse_infer, read_request, resolve_version
from .message_inflater import STARTS, MessageInflater
from .messages import size_of
from .rpc import ClientDisconnectedError, ReadingStoppedError, Response, RpcCall

_HARD_ERRORS = ("triton_grpc_error", "true")
"""Metadata by which a client requests that the first error end the stream with the RPC's status."""

_WHAT = "a request of a stream"

_FAREWELL = 0.25
"""Seconds between the last response and the error that ends a stream: on an error, gRPC's library drops the responses
that its caller has not read."""
_YOUNG = 5.0
"""Age in seconds up to which the first request of a stream is probably still on its way."""
_STOPPING = "GRPC server is shutting down and has stopped accepting new requests."


class InferStreams:
    """Open streams of a server."""

    def __init__(self, server: Server, options: GrpcSettings, inflater: MessageInflater) -> None:
        self.server = server
        self.options = options
        self.inflater = inflater
        self.reader = RequestReader(options.limits.split)
        self.writer = ResponseWriter()
        self._open: set[InferStream] = set()
        self.retiring = False
        """True if the server is about to stop: streams read only what has already arrived."""
        self._stopped = False

    async def serve(self, rpc: RpcCall) -> ModserveError | None:
        """Serve one stream to its end; return the error that ends it, or None on success."""
        if self._stopped:
            return unavailable(_STOPPING)
        stream = InferStream(self, rpc)
        self._open.add(stream)
        try:
            error = await stream.run()
        finally:
            self._open.discard(stream)
            del stream
        return error

    def retire(self) -> None:
        """Accept only requests that have arrived, and the first request of each young stream.

        Each stream ends once these are settled.
        """
        self.retiring = True
        for stream in self._open:
            if not stream.awaits_first:
                stream.stop()

    def arriving(self) -> int:
        """Return the number of streams that still read received data or await their first request."""
        return sum(stream.arriving for stream in self._open)

    def stop(self) -> None:
        """Accept only requests that have arrived, and no more streams."""
        self._stopped = True
        for stream in self._open:
            stream.stop()


class StreamRequest(InferenceCall):
    """A request of a stream."""

    def __init__(self, stream: "InferStream", size: int) -> None:
        super().__init__(stream.server, GRPC, stream.server.tenant)
        self.stream = stream
        self.queue = OutcomeQueue(stream.server.memory)
        self.size = size
        self.held = 0
        """Bytes of server memory held by the request."""
        self.inflated: RequestMemory | None = None
        """Memory of a decompressed message."""
        self.ordered = True
        """True if its responses follow the responses of earlier requests."""
        self.empty_final = False
        """True if the client requested a final message even without a response."""
        self.request_id, self.origin = stream.request_id, stream.origin
        self.sent_bytes = self.responses = 0
        """Bytes and responses sent to the client."""
        self.logged = False
        self.status = CANCELLED
        """Status for the access log, written when the last outcome has been sent."""
        self.accepted = ""
        """The model that accepted the request; empty if none has."""

    async def start(self, data: bytes, now_ns: int) -> None:
        """Start the request. Raises the reason if it is not accepted."""
        stream, server = self.stream, self.server
        server.memory.take(self.size)
        self.held = self.size
        if data and data[0] in STARTS:
            data, self.inflated = await stream.inflater.inflate(data)
        message = stream.reader.read(data) or await parse_infer(data, stream.limits)
        self.id, self.model = message.id, message.model_name
        self.version = resolve_version(server, message) if message.model_version else None
        self.begin(server.model(self.model, self.version), now_ns, 0, stream.trace_headers)
        # The RPC's own deadline cancels the whole stream; before that, batches are formed by it.
        request = await read_request(self, message, stream.deadline_ns, stream.forwarded, stream.limits)
        if message.parameters:
            self.empty_final = grpc_messages.wants_empty_final(message)
        # Set first: a model may respond while the request is submitted.
        self.ordered = not self.servable.config.decoupled
        try:
            self.submit_stream(request)
        except BaseException:
            self.ordered = True
            raise
        self.accepted = request.model_name

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self.queue.add(outcome, final):
            self.stream.on_outcome(self)

    def log(self, access: AccessLog) -> None:
        """Log the finished request."""
        counts = self.status, self.size, self.sent_bytes, self.responses
        entries.record(access, self, "ModelStreamInfer", *counts)

    def close(self) -> None:
        access = self.stream.access
        if access is not None and not self.logged:
            self.logged = True
            self.log(access)
        super().close()
        self.queue.close()
        if self.inflated is not None:
            self.inflated.release()
        self.server.memory.give_back(self.held)
        self.held = 0
        if self.inflight is not None:
            self.inflight.flow = None  # it leads back to its request
        self.inflight = self.trace = None

    def message(self, outcome: InferenceResponse | None, final: bool) -> Response | None:
        """Return the message for a successful outcome; None if there is none. Raises what prevents it."""
        if outcome is None:
            if not self.empty_final:
                return None
            response = bare_end(self.servable.id, self.id)
        else:
            response = self.render(outcome)
        if final and self.stream.timed:
            response = self.with_cost(response)
        return self.stream.writer.stream_parts(response, final)


class InferStream:
    """State and both tasks of one RPC."""

    def __init__(self, streams: InferStreams, rpc: RpcCall) -> None:
        options, metadata = streams.options, rpc.metadata
        self.server = streams.server
        self.inflater = streams.inflater
        self.reader = streams.reader
        self.writer = streams.writer
        self.limits = options.limits
        self.forwarded = header_forwarding.from_metadata(options.header_pattern, metadata)
        """Metadata that become parameters of each request."""
        self.trace_headers = trace_context.from_metadata(metadata)
        """The client's span, the parent of all requests."""
        self.timed = options.server_timing
        """True if the last message of each request states its cost."""
        self.deadline_ns = rpc.deadline_ns
        self.access = streams.server.access_log
        self.origin = rpc.origin
        self.request_id = rpc.request_id
        self._rpc = rpc
        self._hard_errors = _HARD_ERRORS in metadata
        self._open: set[StreamRequest] = set()
        self._order: deque[StreamRequest] = deque()
        self._ready: deque[StreamRequest] = deque()
        self._bytes = 0
        self._streams = streams
        self._opened = time.monotonic()
        self._reading: asyncio.Task[None] | None = None
        self._has_read = self._stopping = False
        """`_stopping`: only received data is still read."""
        self._half_closed = False
        self._broken: ModserveError | None = None
        """Error that ends reading."""
        self._stopped = False
        """True if the server stops and all requests received by then have been read."""
        self._changed = asyncio.Event()
        """Set when there may be something to write, or at the end."""
        self._room = asyncio.Event()

    async def run(self) -> ModserveError | None:
        """Serve the stream to its end; return the error that ends it, or None on success."""
        reading = self._reading = asyncio.ensure_future(self._read())
        try:
            return await self._write()
        finally:
            # Not a TaskGroup: until Python 3.13, a cancelled one leaves a reference cycle.
            await _end_task(reading)
            for call in self._open:
                call.close()
            # These refer back to this stream: tasks keep the exceptions that ended them.
            self._reading = None
            self._open.clear()
            self._order.clear()
            self._ready.clear()

    @property
    def awaits_first(self) -> bool:
        return not self._has_read and time.monotonic() - self._opened < _YOUNG

    @property
    def arriving(self) -> bool:
        if self._reading is None or self._reading.done():
            return False
        return self._stopping or self.awaits_first

    def stop(self) -> None:
        """Read only what has already arrived."""
        self._stopping = True
        self._rpc.stop_reading()

    def on_outcome(self, call: StreamRequest) -> None:
        if not call.ordered or self._order[0] is call:
            self._ready.append(call)
            self._changed.set()

    async def _read(self) -> None:
        limits = self.limits
        try:
            while (data := await self._rpc.read()) is not None:
                self._has_read = True
                if self._streams.retiring:
                    self.stop()
                await self._take(data)
                data = None  # it may be large, and would stay until the client's next message
                while len(self._open) >= limits.outstanding or self._bytes >= limits.outstanding_bytes:
                    self._room.clear()
                    await self._room.wait()
            self._half_closed = True
        except ClientDisconnectedError:
            self._half_closed = True
        except ReadingStoppedError:
            self._stopped = True
        except Exception as error:
            self._broken = to_client_error(error, "reading a stream")
        finally:
            self._changed.set()

    async def _take(self, data: bytes) -> None:
        call = StreamRequest(self, len(data))
        self._open.add(call)
        self._order.append(call)
        self._bytes += call.size
        try:
            await call.start(data, time.monotonic_ns())
        except Exception as error:
            call.settle(to_client_error(error, _WHAT), True)
        if not call.ordered:
            self._order.pop()

    def _over(self, call: StreamRequest) -> None:
        """Remove a request after its last outcome has been sent."""
        self._open.discard(call)
        call.close()
        self._bytes -= call.size
        self._room.set()
        if call.ordered:
            self._order.popleft()
            if self._order:
                self._ready.extend([self._order[0]] * len(self._order[0].queue))

    async def _write(self) -> ModserveError | None:
        """Send outcomes to the end of the stream; return the error that ends it, or None on success."""
        while True:
            while self._ready:
                call = self._ready.popleft()
                try:
                    error = await self._send(call, *call.queue.pop())
                except ClientDisconnectedError:
                    return None  # the RPC's cancellation is on its way
                if error is not None:
                    return error
                call.queue.on_first_sent(call.inflight)
                if call.queue.done:
                    self._over(call)
            if self._broken is not None:
                return self._broken
            if not self._open and self._half_closed:
                return None
            if not self._open and self._stopped:
                await asyncio.sleep(_FAREWELL)
                return unavailable(_STOPPING)
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, call: StreamRequest, outcome: Outcome, final: bool) -> ModserveError | None:
        """Send an outcome; return the request's error if it ends the stream. Raises `ClientDisconnectedError`."""
        data: Response | None = None
        error: ModserveError | None = None
        if isinstance(outcome, ModserveError):
            error = outcome
        else:
            try:
                if outcome is not None and (call.on_gpu or is_long_response(outcome, call.response_form, self.limits)):
                    data = await offload.on_thread(call.message, outcome, final)
                else:
                    data = call.message(outcome, final)
            except Exception as failure:
                error = to_client_error(failure, _WHAT)
        if error is not None:
            if self._hard_errors:
                call.status = failures.spelling(error).grpc
                return error
            call.record_failure(error, failures.grpc_name(error))
            call.status = failures.spelling(error).grpc
            message = response_writer.encode_stream_error(error, call.id, call.accepted, final)
            data = message.SerializeToString()
        if final:
            call.release()
            if call.status == CANCELLED:
                call.status = OK
        if data is None:
            return None
        call.on_sending()
        call.sent_bytes += size_of(data)
        call.responses += 1
        await self._write_counted(data)
        call.on_sent()
        return None

    async def _write_counted(self, data: Response) -> None:
        """Write data that counts as server memory while a slow client has not read it."""
        memory, size = self.server.memory, size_of(data)
        memory.force(size)
        try:
            await self._rpc.write(data)
        finally:
            memory.give_back(size)


async def _end_task(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end, including work it has on a thread."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            pass  # the caller is at its end anyway

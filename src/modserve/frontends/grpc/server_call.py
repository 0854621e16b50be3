"""A gRPC call on a stream of HTTP/2: messages in and out, its id, its status, its deadline, and what serves it.

A unary call is served when its message is complete, or when the client has ended without one. There are two ways: an
inference as most are goes to the `UnaryPath`, without task or coroutine; a task serves anything else, and streams.

What a client sends ahead on a stream counts as held by the server; the client may send more when it has been read.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from modserve.access.credentials import Credentials
from modserve.core.requests import request_ids
from modserve.core.requests.memory import MemoryExhaustedError
from modserve.core.requests.origin import Origin
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.call import InferenceCall
from modserve.frontends.http2.stream import Stream, StreamSender

from . import heads
from .call_log import CallLog
from .call_services import CallServices, open_cost
from .heads import DEADLINE_EXCEEDED, INTERNAL, RESOURCE_EXHAUSTED, GrpcHead
from .message_receiver import MessageReceiver, overdue_text
from .messages import COPIED, PREFIX, MessageError, frame_message, pack_message, size_of
from .rpc import ClientDisconnectedError, Refusal, Response

if TYPE_CHECKING:
    from modserve.access.identity import Identity


@final
class ServerCall(Stream):
    """Implementation of `rpc.RpcCall` on a stream."""

    def __init__(
        self, services: CallServices, connection: StreamSender, number: int, head: GrpcHead, window: int, room: int
    ) -> None:
        super().__init__(connection, number, head, window, room)
        self._services = services
        self.call_head = head
        self._log = None if services.access is None else CallLog(services.access)
        self._inference: InferenceCall | None = None
        """The inference that the call is."""
        self.request_id = request_ids.choose(head.request_id) if head.request_id else ""
        self.deadline_ns = time.monotonic_ns() + head.timeout_ns if head.timeout_ns >= 0 else 0
        self._status = -1
        """Status with which the call ended; -1: not yet."""
        self._held = 0
        """Bytes of the server's memory for the message that has come."""
        self._counted = 0
        """Bytes of the server's memory for the call itself, and for its response."""
        self._full = head.rpc is None
        """No more messages are taken: what follows is dropped."""
        self._streaming = head.rpc is not None and head.rpc.method.client_streaming
        """The client may send any number of messages."""
        self._started = self._waiting = False
        """`_waiting`: the call is not served yet, and all that it came with has been read."""
        self._message: bytes | None = None
        self._receiver: MessageReceiver | None = None
        """Receiver of messages that do not come as one whole."""
        self._writer: asyncio.Future[None] | None = None
        self._bucket = 0
        """Number of the call's bucket in the deadlines; 0: it is in none."""
        self._trailers: tuple[tuple[str, str], ...] = ()
        self._callbacks: list[Callable[[], None]] | None = None
        """Callbacks for the end of the call."""
        self._task: asyncio.Task[None] | None = None

    # As `RpcCall`

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self.call_head.metadata

    @property
    def credentials(self) -> Credentials:
        return self.call_head.credentials or self.connection.certificate

    @property
    def origin(self) -> Origin:
        return self.call_head.origin(self.connection.peer)

    def identify(self) -> str:
        if not self.request_id:
            call = self._inference
            self.request_id = request_ids.make() if call is None else call.identify()
        return self.request_id

    def set_identity(self, identity: "Identity") -> None:
        if self._log is not None:
            self._log.tenant, self.origin.caller = identity.tenant.name, identity.name

    def set_inference(self, call: InferenceCall) -> None:
        if self._log is not None:
            self.identify()
            self._log.inference, call.origin = call, self.origin
        self._inference = call
        call.request_id = self.request_id

    def on_end(self, callback: Callable[[], None]) -> None:
        if self.over:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    async def read(self) -> bytes | None:
        if not self._streaming:
            message, self._message = self._message, None
            self._services.memory.give_back(self._held)
            self._held = 0
            return message
        message = await self._receive().read()
        if self._log is not None and message is not None:
            self._log.received += len(message)
        return message

    @property
    def arriving(self) -> bool:
        """True if the call is not served yet, since its request has not come completely."""
        return not (self._started or self.over or self.final is not None)

    def stop_reading(self) -> None:
        if not self.ended:
            self._full = True
            self._receive().stop()

    async def write(self, message: Response) -> None:
        if self._log is not None:
            self._log.count_response(size_of(message))
        coding, compressed = self.call_head.coding, 0
        if coding and not self.over:
            message, compressed = await pack_message(message, coding, self._services.dispatcher.limits.compressed)
        if self.over:
            raise ClientDisconnectedError
        if not self.headers_sent:
            self._send_head(coding)
        self.send_data(frame_message(message, compressed))
        if self.connection.paused or size_of(message) > COPIED:
            self.connection.flush()  # which may be all that is needed
        if self.pending:
            self._writer = self._services.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
            if self.over:
                raise ClientDisconnectedError

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self._trailers = trailers

    def refuse(self, refusal: Refusal) -> None:
        if not self.over:
            self.request_id = refusal.request_id
            self.end_call(refusal.status, refusal.message, refusal.trailers)

    # The stream's side

    def end_received(self) -> None:
        receiver = self._receiver
        if receiver is not None and receiver.in_message:
            self.end_call(INTERNAL, "the client ended the call in the middle of a message")
        if receiver is not None:
            receiver.wake()
        if self._waiting:
            self.begin()

    def begin(self) -> None:
        """Serve the call, if what it needs has come."""
        if self._started or self.over or self.final is not None:
            return
        rpc = self.call_head.rpc
        if rpc is None:
            self._status = self.call_head.refusal_status
            has_trailers = self._status != heads.UNKNOWN
            self.finish(self.call_head.refusal + (self._services.load if has_trailers else b""))
            return
        if not self._streaming and self._message is None and not self.ended:
            if not self._waiting and self._count_open():
                self._waiting = True
                self.connection.watch(self)
                self._set_deadline()
            return
        self._started = True
        self._waiting = False
        if self.deadline_ns:
            self._set_deadline()
        message = self._message
        fast = rpc.direct and not self._held and not self.call_head.coding
        if fast and message is not None and self._services.unary.start(self, message):
            self._message = None
            return
        if rpc.method.server_streaming:
            if not self._count_open():
                return
            self.identify()
        self._task = self._services.loop.create_task(self._services.dispatcher.serve(rpc, self))

    def on_lost(self) -> None:
        self._cancel()
        self.on_finish()

    def on_finish(self) -> None:
        """End the call, which sends and hears no more, and release what it holds."""
        if self._status < 0:
            self._status = heads.CANCELLED
        rpc = self.call_head.rpc
        if rpc is None or not rpc.probes:
            self._services.dispatcher.statuses[self._status] += 1
        if self._bucket:
            self._services.deadlines.remove(self, self._bucket)
            self._bucket = 0
        if self._writer is not None:
            self.on_drain()
        if self._log is not None:
            self._log.record(self.call_head, self.origin, self._status, self.request_id)
            self._log = None
        self._full = True
        self._inference = None
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        held, self._held, self._counted = self._held + self._counted, 0, 0
        if held:
            self._services.memory.give_back(held)
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback()

    def on_error(self) -> None:
        self._fail(INTERNAL, "internal error")

    def on_drain(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def expects(self) -> bool:
        return not self._started or (self._receiver is not None and self._receiver.expects)

    def on_deadline(self) -> None:
        self._bucket = 0
        self._fail(DEADLINE_EXCEEDED, "Deadline Exceeded")

    # Its end

    def end_call(self, status: int, message: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """End the call with a status; what has not been sent by then is dropped if that is not OK."""
        if self.over or self.final is not None:
            return
        self._status = status
        metadata = (*self._trailers, *metadata)
        if self.request_id and not self.headers_sent:
            metadata = (*metadata, (request_ids.HEADER, self.request_id))
        if status:
            self.pending = None
        if self.headers_sent:
            self.finish(heads.trailers(status, message, metadata) + self._services.load)
        else:
            self.finish(heads.encode_refusal(status, message, metadata) + self._services.load)

    def stop(self) -> None:
        """End the call, since the server stops."""
        self._fail(heads.UNAVAILABLE, "the server is shutting down")

    def _cancel(self) -> None:
        """Cancel whatever serves the call."""
        if self._task is not None:
            self._task.cancel()
        elif self._inference is not None:
            self._inference.cancel()

    def _set_deadline(self) -> None:
        if self.deadline_ns and not self._bucket:
            self._bucket = self._services.deadlines.add(self, self.deadline_ns)

    def _fail(self, status: int, message: str) -> None:
        """End the call with an error, and cancel what serves it."""
        self._cancel()
        self.end_call(status, message)

    # Messages

    def data_received(self, data: bytes, start: int, end: int) -> None:
        if self._full or self.final is not None:
            return
        message: bytes | None = None
        # Without this, a unary inference takes 1.15 times the CPU time (`benchmarks/wire_shortcuts.py`).
        if self._receiver is None and not self._streaming and end - start >= PREFIX and not data[start]:
            size = int.from_bytes(data[start + 1 : start + PREFIX], "big")
            stop, most = start + PREFIX + size, self._services.max_message
            if stop <= end and (size <= most or not most):
                message = data[start + PREFIX : stop]
        if message is None and (message := self._assemble(data, start, end)) is None:
            return
        self._message = message
        self._full = True
        if self._log is not None:
            self._log.received += len(message)
        if self._waiting:
            self.connection.begin_soon(self)

    def _assemble(self, data: bytes, start: int, end: int) -> bytes | None:
        """Feed the receiver. Returns the message of a unary call once it is complete, otherwise None."""
        receiver = self._receive()
        try:
            receiver.feed(data, start, end)
        except MessageError as error:
            self._fail(error.status, error.text)
            return None
        if not self._streaming and (entry := receiver.pop()) is not None:
            message, self._held = entry
            return message
        if not self.watched and self.expects() and not self.over:
            self.connection.watch(self)
        return None

    def _receive(self) -> MessageReceiver:
        """Return the receiver of messages in parts and of streams, made on first use."""
        if self._receiver is None:
            services, coding = self._services, self.call_head.encoding
            self._receiver = MessageReceiver(
                self, services.memory, services.limits, services.max_message, coding, self._streaming
            )
        return self._receiver

    def on_overdue(self) -> None:
        self._fail(DEADLINE_EXCEEDED, overdue_text(self, self._services.limits))

    # The server's memory

    def _count_open(self) -> bool:
        """Hold what an open call costs; False if there is too little, and the call has ended."""
        if not self._counted:
            cost = open_cost(self.call_head)
            try:
                self._services.memory.take(cost)
            except MemoryExhaustedError as error:
                self._fail(RESOURCE_EXHAUSTED, error.message)
                return False
            self._counted = cost
        return True

    def _count_unsent(self, size: int) -> None:
        """Hold a response of `size` bytes, if it waits for its client."""
        if not self.over:
            if not self._counted:
                size += open_cost(self.call_head)
            self._services.memory.force(size)
            self._counted += size

    # Its responses

    def _send_head(self, coding: str) -> None:
        block = heads.COMPRESSED[coding] if coding else heads.HEADERS
        self.send_headers(heads.with_id(block, self.request_id) if self.request_id else block)

    def respond(self, parts: list[Buffer], size: int) -> None:
        """Send the response of a unary call, of `size` bytes, unless it has got its status."""
        if self.over or self.final is not None:
            return
        self._status = heads.OK
        if self._log is not None:
            self.identify()
            self._log.count_response(size)
        trailers = self._services.trailers
        if self._trailers:
            trailers = heads.trailers(heads.OK, "", self._trailers) + self._services.load
        prefix = b"\0" + size.to_bytes(4, "big")
        if size <= COPIED:
            block = heads.with_id(heads.HEADERS, self.request_id) if self.request_id else heads.HEADERS
            self.connection.respond(self, block, prefix, parts, PREFIX + size, trailers)
        else:
            self._send_head("")
            self.send_data([prefix, *parts])
            self.finish(trailers)
        if not self.over:
            self._count_unsent(size)

    async def send_response(self, response: Response) -> None:
        coding = self.call_head.coding
        if not coding:
            self.respond([response] if isinstance(response, bytes) else response, size_of(response))
            return
        message, compressed = await pack_message(response, coding, self._services.dispatcher.limits.compressed)
        if self.over or self.final is not None:
            return
        self._status = heads.OK
        if self._log is not None:
            self.identify()
            self._log.count_response(size_of(response))
        self._send_head(coding)
        self.send_data(frame_message(message, compressed))
        self.finish(heads.trailers(heads.OK, "", self._trailers) + self._services.load)
        self._count_unsent(len(message))

    def end_stream(self) -> None:
        if not self.headers_sent and not self.over:
            self._send_head("")
        self.end_call(heads.OK, "")

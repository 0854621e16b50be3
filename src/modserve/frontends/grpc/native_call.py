"""A gRPC call on a stream of HTTP/2: messages in and out, its id, its status, its deadline, and what serves it.

A unary call is served when its message is complete, or when the client has ended without one: by a `PlainCall` if it is
an inference as most are, without task or coroutine, and by a task if it is anything else, as streams are.

What a client sends ahead on a stream counts as held by the server; the client may send more when it has been read.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from modserve.core.requests import request_ids
from modserve.core.tensors.tensor import Buffer

from . import heads
from .call_log import CallLog
from .collecting import PREFIX, Collecting
from .heads import DEADLINE_EXCEEDED, INTERNAL, GrpcHead
from .rpc import ClientGoneError, Refusal, Response, Rpc
from .writing import COPIED, framed, packed, size_of

if TYPE_CHECKING:
    from modserve.frontends.call import Call
    from modserve.frontends.http2.sending import Sending

    from .native_site import GrpcSite
    from .plain import PlainCall

_logger = logging.getLogger(__name__)


@final
class NativeCall(Collecting):
    """Implements `rpc.RpcCall`."""

    __slots__ = (
        "_bucket",
        "_callbacks",
        "_inference",
        "_log",
        "_message",
        "_messages",
        "_plain",
        "_reader",
        "_started",
        "_streaming",
        "_task",
        "_trailers",
        "_waiting",
        "_writer",
        "deadline_ns",
        "request_id",
        "rpc",
    )

    def __init__(self, site: "GrpcSite", connection: "Sending", number: int, head: GrpcHead, window: int, room: int):
        super().__init__(site, connection, number, head, window, room)
        self.rpc: Rpc | None = head.rpc
        self._log = None if site.access is None else CallLog(site.access, self.peer)
        self._inference: Call | None = None
        """The inference that the call is, unless that is a plain one."""
        self.request_id = request_ids.chosen(head.request_id) if head.request_id else ""
        self.deadline_ns = 0
        self._streaming = False
        """The client may send any number of messages."""
        self._started = self._waiting = False
        """It is not served yet, and what it came with has been read."""
        self._message: bytes | None = None
        self._messages: deque[tuple[bytes, int, int]] | None = None
        """With the bytes of each that are to be credited, and those that are held."""
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._bucket = 0
        self._trailers: tuple[tuple[str, str], ...] = ()
        self._callbacks: list[Callable[[], None]] | None = None
        """What is called when it is over."""
        self._plain: PlainCall | None = None
        self._task: asyncio.Task[None] | None = None
        if head.timeout_ns >= 0:
            self.deadline_ns = time.monotonic_ns() + head.timeout_ns
        if self.rpc is not None:
            self._streaming = self.rpc.method.client_streaming
        else:
            self.full = True

    # As `RpcCall`

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self.call_head.metadata

    @property
    def peer(self) -> object:
        transport = self.connection.transport
        return None if transport is None else transport.get_extra_info("peername")

    def identify(self) -> str:
        if not self.request_id:
            call = self._inference
            self.request_id = request_ids.make() if call is None else call.identify()
        return self.request_id

    def serving(self, call: "Call") -> None:
        if self._log is not None:
            self.identify()
            self._log.inference = call
        self._inference = call
        call.request_id = self.request_id

    def serving_plainly(self, call: "PlainCall") -> None:
        """The same for an inference that is served without a handler."""
        self._plain = call
        if self._log is not None:
            self._log.inference = call

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
            self.release(self.held)
            self.held = 0
            return message
        while not self._messages:
            if self.over:
                raise ClientGoneError
            if self.ended:
                return None
            self._reader = self.port.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message, consumed, held = self._messages.popleft()
        self.release(held)
        self.credit(consumed)
        if self.collecting and self.expects():
            self.heard = self.advanced = self.connection.site.seconds
            self.connection.watch(self)
        return message

    async def write(self, message: Response) -> None:
        if self._log is not None:
            self._log.responded(size_of(message))
        coding, compressed = self.call_head.coding, 0
        if coding and not self.over:
            message, compressed = await packed(message, coding, self.port.dispatcher.limits.compressed)
        if self.over:
            raise ClientGoneError
        if not self.headers_sent:
            self.send_head(coding)
        self.send_data(framed(message, compressed))
        if self.connection.paused or size_of(message) > COPIED:
            self.connection.flush()  # which may be all that is needed
        if self.pending:
            self._writer = self.port.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
            if self.over:
                raise ClientGoneError

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self._trailers = trailers

    def refuse(self, refusal: Refusal) -> None:
        """End a unary call that failed."""
        if not self.over:
            self.request_id = refusal.request_id
            self.end(refusal.status, refusal.message, refusal.trailers)

    # The stream's side

    def end_received(self) -> None:
        if self._buffer is not None or self._prefix:
            self.end(INTERNAL, "the client ended the call in the middle of a message")
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self._waiting:
            self.begin()

    def begin(self) -> None:
        """Serve the call, if what it needs has come."""
        if self._started or self.over or self.final is not None:
            return
        rpc = self.rpc
        if rpc is None:
            self.count_end(self.call_head.refusal_status)
            self.finish(self.call_head.refusal)
            return
        if not self._streaming and self._message is None and not self.ended:
            if not self._waiting and self.count_open():
                self._waiting = True
                self.connection.watch(self)
                self._set_deadline()
            return
        self._started = True
        self._waiting = False
        if self.deadline_ns:
            self._set_deadline()
            if self.over:
                return
        if rpc.plain is not None and not self.call_head.coding:
            message = self._message
            if message is not None and not self.held and rpc.plain.start(self.port.dispatcher, self, message):
                self._message = None
                return
        if rpc.method.server_streaming:
            if not self.count_open():
                return
            self.identify()
        self._task = self.port.loop.create_task(self._serve(rpc))

    def lost(self) -> None:
        self.count_end(heads.CANCELLED)
        self._settle()
        self._cancel()

    def finished(self) -> None:
        self._settle()

    def broken(self) -> None:
        self.fail(INTERNAL, "internal error")

    def drained(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def expects(self) -> bool:
        """While messages before it wait to be read, nothing has to come of one: its client may have no window."""
        return not self._started or (self.collecting and not self._messages)

    def on_deadline(self) -> None:
        self._bucket = 0
        self.end(DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._cancel()

    # Its end

    def end(self, status: int, message: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """End the call with a status; what has not been sent by then is dropped if that is not OK."""
        if self.over or self.final is not None:
            return
        self.count_end(status)
        metadata = (*self._trailers, *metadata)
        if self.request_id and not self.headers_sent:
            metadata = (*metadata, (request_ids.HEADER, self.request_id))
        if status:
            self.pending = None
        if self.headers_sent:
            self.finish(heads.trailers(status, message, metadata))
        else:
            self.finish(heads.refused(status, message, metadata))

    def stop(self) -> None:
        """The server ends it."""
        self.end(heads.UNAVAILABLE, "the server is shutting down")
        self._cancel()

    def _settle(self) -> None:
        """Nothing more is sent or heard: let go of what the call holds."""
        if self._bucket:
            self.port.deadlines.remove(self, self._bucket)
            self._bucket = 0
        if self._streaming or self._writer is not None:
            for waiting in (self._reader, self._writer):
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
        if self._log is not None:
            self._log.record(self.call_head, self.status, self.request_id)
            self._log = None
        self.full = True
        self._inference = None
        if self._buffer is not None or self._prefix or self.held:
            self.collect_no_more()
        if self._messages is not None:
            for _, _, held in self._messages:
                self.release(held)
            self._messages = None
        if self.counted:
            self.count_no_more()
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback()

    def _cancel(self) -> None:
        """Whatever serves the call stops."""
        if self._plain is not None:
            self._plain.cancel()
        if self._task is not None:
            self._task.cancel()

    def _set_deadline(self) -> None:
        if self.deadline_ns and not self._bucket:
            self._bucket = self.port.deadlines.add(self, self.deadline_ns)

    # Messages

    def fail(self, status: int, message: str) -> None:
        self.end(status, message)
        self._cancel()

    def message_received(self, message: bytes, consumed: int, held: int) -> None:
        if self._log is not None:
            self._log.received += len(message)
        if not self._streaming:
            self._message, self.held = message, held
            self.full = True
            if self._waiting:
                self.connection.begin_soon(self)
            return
        if not held and message and not (held := self.hold(len(message))):
            return
        if self._messages is None:
            self._messages = deque()
        self._messages.append((message, consumed, held))
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # Its responses

    def send_head(self, coding: str) -> None:
        block = heads.COMPRESSED[coding] if coding else heads.HEADERS
        self.send_headers(heads.with_id(block, self.request_id) if self.request_id else block)

    def respond(self, parts: list[Buffer], size: int) -> None:
        """The response of a unary call, of `size` bytes, unless it has got its status."""
        if self.over or self.final is not None:
            return
        self.count_end(heads.OK)
        if self._log is not None:
            self.identify()
            self._log.responded(size)
        trailers = heads.trailers(heads.OK, "", self._trailers) if self._trailers else heads.TRAILERS
        prefix = b"\0" + size.to_bytes(4, "big")
        if size <= COPIED:
            block = heads.with_id(heads.HEADERS, self.request_id) if self.request_id else heads.HEADERS
            self.connection.respond(self, block, prefix, parts, PREFIX + size, trailers)
        else:
            self.send_head("")
            self.send_data([prefix, *parts])
            self.finish(trailers)
        if not self.over:
            self.count_unsent(size)

    async def _respond_packed(self, response: Response, coding: str) -> None:
        message, compressed = await packed(response, coding, self.port.dispatcher.limits.compressed)
        if self.over or self.final is not None:
            return
        self.count_end(heads.OK)
        if self._log is not None:
            self.identify()
            self._log.responded(size_of(response))
        self.send_head(coding)
        self.send_data(framed(message, compressed))
        self.finish(heads.trailers(heads.OK, "", self._trailers))
        self.count_unsent(len(message))

    # Its task

    async def _serve(self, rpc: Rpc) -> None:
        dispatcher, coding = self.port.dispatcher, self.call_head.coding
        try:
            if rpc.method.server_streaming:
                self._end_stream(await dispatcher.stream(rpc, self))
                return
            outcome = await dispatcher.unary(rpc, self)
            if isinstance(outcome, Refusal):
                self.refuse(outcome)
            elif coding:
                await self._respond_packed(outcome, coding)
            else:
                parts: list[Buffer] = [outcome] if isinstance(outcome, bytes) else outcome
                self.respond(parts, size_of(outcome))
        except asyncio.CancelledError:
            self.end(heads.CANCELLED, "the call was cancelled")
        except Exception:
            _logger.exception("a gRPC call failed unexpectedly")
            self.end(INTERNAL, "internal error")
        finally:
            self._task = None

    def _end_stream(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.end(refusal.status, refusal.message, refusal.trailers)
            return
        if not self.headers_sent and not self.over:
            self.send_head("")
        self.end(heads.OK, "")

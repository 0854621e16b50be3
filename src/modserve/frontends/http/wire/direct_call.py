"""A request that the port serves by a coroutine of its own: no task, and no framework.

The coroutine is driven here. Most run to the first wait for a model at once, and to their end when that has answered.
What a stream sends is written once in a turn of the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

from modserve.core.requests.origin import Origin
from modserve.core.tenants import Tenant
from modserve.core.tensors.tensor import Buffer
from modserve.frontends import offload
from modserve.frontends.access import GONE
from modserve.frontends.http import exchange
from modserve.frontends.http.error_forms import encode_message
from modserve.frontends.http.exchange import (
    CompleteRequest,
    ResponseStream,
    StreamMessage,
    WholeResponse,
    make_request_info,
)
from modserve.protocol import failures
from modserve.protocol.http.request_head import RequestHead

from .access import ConnectionLog
from .asgi import format_path
from .context import HttpContext
from .responses import CLOSE, CONTINUE, KEEP_ALIVE, persistence, response_head
from .send_buffer import keep_little

_log = logging.getLogger(__name__)


class DirectCall:
    """A request. `send` writes a whole response, which is made of parts; its first number is the length of the body,
    and the last says whether the connection ends with it. `ending`: the server stops, and nothing more has come.

    `done` is called when the last part of a stream is with the transport, with whether the connection may stay open.
    `caller` is the context that identifies the caller, and `tenant` the caller's tenant, where there are keys.
    """

    __slots__ = (
        "_begun",
        "_caller",
        "_cancelled",
        "_chunked",
        "_closing",
        "_complete",
        "_context",
        "_done",
        "_ending",
        "_head",
        "_keep_alive",
        "_log",
        "_note",
        "_over",
        "_parts",
        "_paused",
        "_scheduled",
        "_send",
        "_sent",
        "_status",
        "_stream",
        "_tenant",
        "_transport",
        "_waiting",
        "_work",
    )

    def __init__(
        self,
        context: HttpContext,
        transport: asyncio.Transport,
        head: RequestHead,
        keep_alive: bool,
        log: ConnectionLog | None,
        send: Callable[[int, list[Buffer], bool], None],
        done: Callable[[bool], None],
        ending: Callable[[], bool],
        origin: Origin,
        caller: Context | None = None,
        tenant: Tenant | None = None,
    ) -> None:
        self._caller = caller
        self._tenant = "" if tenant is None else tenant.name
        self._context = context
        self._transport = transport
        self._head = head
        self._keep_alive = keep_alive
        self._send = send
        self._done = done
        self._ending = ending
        self._work: Coroutine[Any, Any, WholeResponse | ResponseStream] | None = None
        self._waiting: asyncio.Future[Any] | None = None
        self._stream: ResponseStream | None = None
        self._parts: deque[tuple[bytes, bool]] = deque()
        """Parts of the stream for the transport, and whether each ends its message."""
        self._scheduled = False
        self._complete = False  # the last message has been made
        self._over = False
        self._cancelled = False  # the coroutine has been told so, which is done once: it may have to wait all the same
        self._chunked = False
        self._closing = False
        self._begun = False
        self._paused = False
        self._log = log
        self._note = make_request_info(head.request_id, origin, log is not None)
        self._status = 0
        self._sent = 0
        """Bytes of the body of the response."""

    @property
    def begun(self) -> bool:
        return self._begun

    @property
    def filler(self) -> bytes:
        if not self._begun:
            return CONTINUE
        return b"0" if self._chunked else b""  # the size of the next chunk begins with it

    @property
    def left(self) -> int:
        return 0

    def start(self, body: Buffer) -> None:
        """Start the call. Never raises."""
        direct = self._context.direct
        assert direct is not None, "heads have a route where there are such calls: this is a bug"
        self._work = direct.handler(self._head)(CompleteRequest(self._head, bytes(body), self._note))
        self._step(None)

    def cancel(self) -> None:
        if self._over:
            return
        self._end(GONE)
        self._parts.clear()
        if self._stream is not None:
            self._stream.call.close()
            self._stream = None
        if self._waiting is not None:
            self._cancelled = self._waiting.cancel()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._stream is not None:
            self._pump()

    # The coroutine

    def _step(self, waited: "asyncio.Future[Any] | None") -> None:
        """Run it to its next wait, or its end."""
        work, self._waiting = self._work, None
        assert work is not None, "it runs until it has ended: this is a bug"
        try:
            waiting = work.send(None) if self._caller is None else self._caller.run(work.send, None)
        except StopIteration as end:
            self._work = None
            self._respond(end.value)
        except asyncio.CancelledError:
            self._work = None
            self._give_up()
        except Exception as error:
            self._work = None
            self._fail(error)
        else:
            if waiting is None:  # as `asyncio.sleep(0)` has it
                waiting = self._context.loop.create_future()
                waiting.set_result(None)
            else:
                waiting._asyncio_future_blocking = False  # how awaited futures tell a task, which there is none of
            self._waiting = waiting
            waiting.add_done_callback(self._step)
            if self._over and not self._cancelled:
                self._cancelled = waiting.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._over:
            path = format_path(self._head.route)
            _log.error("POST %s failed unexpectedly", path, exc_info=error)
            self._respond(WholeResponse(encode_message(path, "Internal Server Error", 500), 500))

    def _give_up(self) -> None:
        """Give up: other code has cancelled the work, and there will be no response."""
        if not self._over:
            self._end(GONE)
            self._transport.abort()

    def _end(self, status: int) -> None:
        """End the call, and log it with its status."""
        self._over = True
        if self._log is not None:
            self._log.other(self._note, format_path(self._head.route), status, self._sent, self._tenant)

    # The response

    def _respond(self, response: WholeResponse | ResponseStream) -> None:
        if self._over:
            if isinstance(response, ResponseStream):
                response.call.close()
            return
        try:
            if isinstance(response, ResponseStream):
                self._begin_stream(response)
                return
            self._sent = len(response.body)
            head = self._first_lines(response.status, response.headers, response.content_type, len(response.body))
            self._begun = True
            self._end(response.status)
            self._send(len(response.body), [head, response.body], self._closing)
        except Exception:
            _log.exception("a response could not be written; its connection is closed")
            self._transport.abort()

    def _first_lines(self, status: int, headers: exchange.Headers, content_type: str, length: int) -> bytes:
        """Return the head of the response. `length` is that of its body; -1 for one in parts."""
        context, head = self._context, self._head
        self._closing = not self._keep_alive or self._ending()
        kept = persistence(not self._closing, head.old)
        named = [(b"Content-Type", content_type.encode())]
        named += [(name.encode(), value.encode()) for name, value in headers]
        if length >= 0:
            named.append((b"Content-Length", b"%d" % length))
        elif head.old:
            # Its clients know no chunks: the end of the connection is that of the body.
            kept, self._closing = kept.replace(KEEP_ALIVE, b"") or CLOSE, True
        else:
            self._chunked = True
            named.append((b"Transfer-Encoding", b"chunked"))
        if self._note.echoed or status >= 400:
            named.append((b"X-Request-ID", self._note.request_id.encode()))
        context.statuses[status] += 1
        load = context.load_lines.get(head.report_format, b"") if head.report_format else b""
        return response_head(status, named, context.date + load + head.cors + kept)

    # A stream

    def _begin_stream(self, response: ResponseStream) -> None:
        self._stream = response
        self._status = response.status
        self._note.count = 0
        keep_little(self._transport)
        head = self._first_lines(response.status, response.headers, response.framing.content_type, -1)
        self._begun = True
        self._parts.append((head, False))
        self._add(response.first)
        response.call.listen(self._on_arrival)
        self._pump()

    def _on_arrival(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._context.loop.call_soon(self._turn, context=self._caller)

    def _turn(self) -> None:
        self._scheduled = False
        if self._stream is not None:
            self._pump()

    def _pump(self) -> None:
        """Make messages of what has come, and write as much as the client takes. Never raises."""
        try:
            self._take()
            self._flush()
        except Exception:
            _log.exception("a stream could not be written; its connection is closed")
            self._transport.abort()

    def _take(self) -> None:
        stream = self._stream
        assert stream is not None, "so say its callers: this is a bug"
        call = stream.call
        while call.ready and not self._complete and not self._paused and self._waiting is None:
            outcome, final = call.take()
            if exchange.is_long(call, outcome):
                making = offload.in_background(partial(exchange.message_of, stream.encode, outcome, final))
                self._waiting = making
                making.add_done_callback(self._on_message)
                return
            message = exchange.message_of(stream.encode, outcome, final)
            if final:
                call.release()
            self._add(message)

    def _on_message(self, making: "asyncio.Future[StreamMessage]") -> None:
        """Take a message that a thread has made."""
        self._waiting = None
        if self._stream is None or making.cancelled():
            return
        message = making.result()
        if message.final:
            self._stream.call.release()
        self._add(message)
        self._pump()

    def _add(self, message: StreamMessage) -> None:
        stream = self._stream
        assert stream is not None, "messages are those of a stream: this is a bug"
        call = stream.call
        self._complete = message.final
        if message.error is not None:
            call.record_failure(message.error, failures.spelling(message.error).http)
        if message.data:
            call.on_sending()
            frame, size = stream.framing.frame(message.data), call.limits.part
            self._sent += len(frame)
            for start in range(0, len(frame), size):  # in parts, so that a slow reader is seen to read
                part = frame[start : start + size]
                end = start + size >= len(frame)
                self._parts.append((b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part, end))
            self._note.count += 1
        if message.final and self._chunked:
            self._parts.append((b"0\r\n\r\n", False))

    def _flush(self) -> None:
        """Write what there is: small parts together."""
        stream = self._stream
        assert stream is not None, "so say its callers: this is a bug"
        call = stream.call
        while self._parts and not self._paused:
            pieces: list[bytes] = []
            size = count = 0
            while self._parts and (not pieces or size + len(self._parts[0][0]) <= call.limits.part):
                piece, end = self._parts.popleft()
                pieces.append(piece)
                size += len(piece)
                count += end
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._transport.write(data)
            call.on_part_sent()
            if count:
                call.on_sent()
        if self._stream is None or self._parts or self._paused:
            return
        call.acknowledge()
        if self._complete:
            self._end(self._status)
            self._stream = None
            call.close()
            self._done(not self._closing)

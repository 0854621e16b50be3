"""One HTTP/1.1 connection: framing by httptools, one request at a time, responses in order.

The plain path is httptools for heads and chunked bodies. Beside it runs one short cut: a head seen before, on an
inference request that arrives whole, is not parsed again (`Site.heads`). Bodies with a Content-Length are counted here.

What a connection is doing follows from a few attributes:

- `_request` is a request of which a part has come, and `_call` one that is being answered. They exclude each other:
  what a client sends before it has its response stays in `_rest`, unread, and above `_AHEAD` bytes the client is read
  no further. So nothing a client sends ahead is worth more than its bytes.
- `_keep_alive` turns False when the request at hand is the last one: nothing that comes afterwards is looked at.
- `_blocked` while the client does not take what was written: then no request is begun.
- `_half_closed` when the client sends no more, but waits for responses.

Only `_advance` reads requests from `_rest`. It stops while there is a call, while the client is blocked, and when the
time for this turn of the event loop is over; then `_done`, `resume_writing` or `go_on` call it again.
"""

import asyncio
import logging
import socket
import time
from contextlib import suppress
from typing import NoReturn, cast

import httptools

from modserve.core.errors import ModserveError
from modserve.core.memory import MemoryExhaustedError
from modserve.core.tensor import Buffer
from modserve.protocol import compression, failures, header_forwarding
from modserve.protocol.failures import STATUS
from modserve.protocol.http import infer_response
from modserve.protocol.http.infer_body import InferHead, check_json_size
from modserve.protocol.http.infer_response import Body

from . import asgi, cors
from .asgi import AsgiCall
from .incoming import IncomingRequest, RefusedRequestError
from .infer import InferCall
from .responses import CONTINUE, json_response, persistence, reason
from .routes import InferRoute, without_origin
from .site import Site

_log = logging.getLogger(__name__)

_MAX_HEAD = 64 * 1024
"""Bytes of a head, and as many of the framing of a chunked body: chunk extensions and trailers."""

_AHEAD = 64 * 1024
"""Bytes that a client may send ahead before it is read no further."""

_MAX_EMPTY_LINES = 64 * 1024
"""Bytes of empty lines before a request, which a server should overlook (RFC 9112, 2.2)."""

_MAX_CHUNKS = 65536
_TOO_MANY_CHUNKS = (
    f"Chunked request body exceeds maximum of {_MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
)
_TOO_MUCH_FRAMING = f"the chunk extensions and trailers of the request's body exceed {_MAX_HEAD} bytes"
_SMALL_BODY = 64 * 1024
"""Bytes of a body that does not count against the memory budget if it comes in one piece."""

_UNSENT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_KEPT = 64 * 1024
"""Bytes that the system keeps of an answer in parts beside those on their way. Otherwise it would take megabytes, and a
slow reader would look like one that does not read."""

_LINGER = 2.0
"""Seconds in which a refused client may read why, before the connection goes."""

_LINGERING = 8
"""Connections above the limit that may do so at the same time."""

_LOOK = 0.1
"""Seconds between two looks whether a client that sends no more is there to read."""

_END = b"\r\n\r\n"
"""Ends every head, and every chunked body with its trailers."""


class Connection(asyncio.Protocol):
    """Implements the parser's callbacks too: the lower half of its methods."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        """Made when there is a head to be parsed, and dropped when it has been left inside a request. It refers back to
        the connection."""
        self._request: IncomingRequest | None = None
        self._call: InferCall | AsgiCall | None = None
        self._rest = b""
        self._at = 0
        """Where in `_rest` reading goes on."""
        self._tail = b""
        """The last bytes that the parser got of an incomplete head or chunked body; its end may be cut in two."""
        self._empty_lines = 0
        """Bytes of empty lines since the last request."""
        self._complete = False
        """The parser has come to the end of a request."""
        self._refused: tuple[int, str] | None = None
        """Status and message with which a callback has stopped the parser. The exception itself may get lost on its
        way, if another one was being handled."""
        self._advancing = False
        self._queued = False
        """`go_on` will be called."""
        self._keep_alive = True
        self._old = False
        self._cors = b""
        self._half_closed = False
        self._blocked = False
        self._writable = asyncio.Event()
        """Set unless blocked, for who waits."""
        self._writable.set()
        self._reading = True
        self._held = 0
        """Bytes of the memory budget for the body of the request at hand."""
        self._held_ahead = 0
        """The same for what was sent ahead."""
        self._held_unsent = 0
        """The same for what the client has not taken."""
        self._active = True
        """Something has come since the last look at the time-outs."""
        self._since = 0.0
        """When the client was last seen to do something."""
        self._unsent = 0
        """Bytes the client had not taken then."""
        self._peer: tuple[str, int] | None = None
        self._local: tuple[str, int] | None = None
        self._scheme = "http"

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = _address(transport.get_extra_info("peername"))
        self._local = _address(transport.get_extra_info("sockname"))
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        full = self.site.is_full()
        self.site.opened(self)
        if full:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        self.site.closed(self)
        self._transport = None
        self._parser = None
        self._forget()
        self._give_back()
        self.site.memory.give_back(self._held_unsent)
        self._held_unsent = 0
        self._writable.set()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def eof_received(self) -> bool:
        """The client sends no more: what it has asked for is answered to the end, and then the connection closes.

        A client that is gone sends no more either. Only what is written shows whether it still reads, so something is
        at once, which changes nothing; but HTTP/1.0 has nothing of that kind.
        """
        if self._scheme == "https" or self._transport is None or (self._call is None and not self._rest):
            return False
        if not self._half_closed:
            self._half_closed = True
            if not self._old:
                self.write(self._call.filler if isinstance(self._call, AsgiCall) else CONTINUE)
            self._look()
        return True

    def _look(self) -> None:
        """Whether what was written has been refused. The event loop would not tell: it reads no more."""
        if self._transport is None:
            return
        opened: socket.socket | None = self._transport.get_extra_info("socket")
        if opened is not None and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        else:
            self.site.loop.call_later(_LOOK, self._look)

    def pause_writing(self) -> None:
        """The client does not read its responses: it gets to send no more until it does."""
        self._blocked = True
        self._writable.clear()
        if self._transport is not None:
            self._hold_unsent(self._transport.get_write_buffer_size())
        self._choose_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._writable.set()
        self._hold_unsent(0)
        if self._rest:
            self._advance()
        else:
            self._choose_reading()

    def data_received(self, data: bytes) -> None:
        self._active = True
        if not self._keep_alive:
            return
        if self._call is None and self._request is None and not self._rest and not self._blocked:
            end = data.find(_END) + 4
            if end > 3:
                route = self.site.heads.get(data[:end])
                if route is not None and len(data) == end + route.content_length <= _SMALL_BODY:
                    self._infer(route, data[end:])
                    return
        if self._rest:
            self._rest = self._rest[self._at :] + data
            self._at = 0
        else:
            self._rest = data
        self._advance(True)

    # What calls write

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def date(self) -> bytes:
        return self.site.date

    def keep_little(self) -> None:
        opened = None if self._transport is None else self._transport.get_extra_info("socket")
        if opened is not None and _UNSENT is not None:
            with suppress(OSError):  # no TCP
                opened.setsockopt(socket.IPPROTO_TCP, _UNSENT, _KEPT)

    async def writable(self) -> None:
        await self._writable.wait()

    # What the listener asks for

    def close_when_idle(self) -> None:
        """Answer what is under way, then close."""
        self._keep_alive = False
        if self._call is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """End the connection if its client has done nothing for too long at `now`.

        A complete request has all the time of the world: its deadlines are other people's business.
        """
        transport, request = self._transport, self._request
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if self._active or unsent != self._unsent:
            self._active = False
            self._unsent = unsent
            self._since = now
            if self._blocked:
                self._hold_unsent(unsent)
        options = self.site.options
        silent = now - self._since
        if self._blocked or transport.is_closing() or (unsent and self._call is None):
            if 0 < options.client_timeout <= silent:
                transport.abort()
        elif self._call is not None or self._rest:
            self._since = now  # the client waits for the server
        elif request is None:
            if 0 < options.idle_timeout <= silent:
                transport.close()
        elif request.complete_head:
            if 0 < options.client_timeout <= silent:
                self._refuse(408, f"no more of the request's body has come for {options.client_timeout:g} s")
        elif request.waiting_since is None:
            request.waiting_since = now
        elif 0 < options.client_timeout <= now - request.waiting_since:
            # However much of it has come: some send a byte from time to time.
            self._refuse(408, f"the request's head has not come to its end within {options.client_timeout:g} s")

    def go_on(self) -> None:
        self._queued = False
        self._advance()

    def _turn_away(self) -> None:
        """There are too many connections. A few clients get the time to read so."""
        site = self.site
        site.turned_away()
        message = f"the server has {site.options.max_connections} connections open, which is its limit; try again later"
        if len(site.connections) <= site.options.max_connections + _LINGERING:
            self._refuse(503, message)
        elif self._transport is not None:
            self._keep_alive = False
            self._transport.write(self._refusal(503, message, b""))
            self._transport.close()

    # Requests in

    def _advance(self, just_come: bool = False) -> None:
        """Read requests from what has come until one has to be waited for. Never raises.

        What has `just_come` from the client is read at once; the rest is only read while there is time in this turn of
        the event loop.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._at < len(self._rest) and self._call is None and self._keep_alive and not self._blocked:
                if not just_come and not self.site.turns.time_left():
                    if not self._queued:
                        self._queued = True
                        self.site.turns.later(self)
                    break
                just_come = False
                self._read()
            self._after_reading()
        except RefusedRequestError as refusal:
            self._refuse(refusal.status, refusal.message)
        except MemoryExhaustedError as error:
            self._refuse(failures.spelling(error).http, error.message)
        except httptools.HttpParserCallbackError as error:
            # Not the client's mistake, unless a callback says so.
            if self._refused is not None:
                self._refuse(*self._refused)
            else:
                self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed HTTP request: {error}")
        except Exception as error:
            self._fail(error)
        finally:
            self._advancing = False

    def _read(self) -> None:
        """Read one piece of what has come, at most to the end of a request, which is then begun."""
        data, start, request = self._rest, self._at, self._request
        if request is None:
            end = data.find(_END, start) + 4
            if end > 3:
                self._read_whole_head(data[start:end], end)
            else:
                self._at = len(data)
                self._parse_head(data[start:])
        elif request.missing:
            end = min(start + request.missing, len(data))
            piece = data[start:end]
            request.add(piece)
            request.missing -= len(piece)
            self._complete = not request.missing
            self._at = end
        else:
            end = self._next_end(data, start)
            self._at = end
            if request.complete_head:
                self._parse_chunks(request, data[start:end])
            else:
                self._parse_head(data[start:end])
        if self._complete:
            self._complete = False
            self._begin()

    def _read_whole_head(self, head: bytes, end: int) -> None:
        self._at = end
        route = self.site.known(head)
        if route is None:
            self._parse_head(head)
            request = self._request
            if request is not None and request.route is not None and request.plain and not request.chunked:
                self.site.remember(head, request.route)
            return
        length = route.content_length
        self._request = IncomingRequest(missing=length, complete_head=True, route=route, cors=route.cors)
        if self.site.server.tracer.on:
            self._request.received_ns = time.monotonic_ns()
        self._complete = not length

    def _next_end(self, data: bytes, start: int) -> int:
        """The end of the next piece that may end a head or a chunked body which has begun before `start`."""
        if self._tail:
            early = (self._tail + data[start : start + 3]).find(_END)
            if early >= 0:
                return start + early + 4 - len(self._tail)
        end = data.find(_END, start)
        return len(data) if end < 0 else end + 4

    def _parse_head(self, piece: bytes) -> None:
        """Parse a head, or a part of it. One that is complete and has a body leaves the parser's business."""
        before = self._request
        if (0 if before is None else before.head_size) + len(piece) > _MAX_HEAD:
            raise RefusedRequestError(431, f"the request's head exceeds {_MAX_HEAD} bytes")
        self._parse(piece)
        request = self._request
        if request is None:
            self._empty_lines += len(piece)
            if self._empty_lines > _MAX_EMPTY_LINES:
                raise RefusedRequestError(400, f"empty lines before the request exceed {_MAX_EMPTY_LINES} bytes")
        elif not self._complete:
            if request.complete_head:
                request.head_size = 0
                if request.missing:
                    self._parser = None
            else:
                request.head_size += len(piece)

    def _parse_chunks(self, request: IncomingRequest, piece: bytes) -> None:
        progress = request.chunks + request.size
        self._parse(piece)
        if request.chunks + request.size != progress:
            request.head_size = 0
            return
        request.head_size += len(piece)
        if request.head_size > _MAX_HEAD:
            raise RefusedRequestError(431, _TOO_MUCH_FRAMING)

    def _parse(self, piece: bytes) -> None:
        """Raises httptools.HttpParserError for what is no HTTP, of which a callback's error is one kind."""
        declined: bytes | None = None
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # An upgrade nobody here speaks is declined by answering the request as it is.
            self._parser = None
            request, self._request = self._request, None
            self._complete = False
            declined = b"" if request is None else request.without_upgrade()
        if declined is not None:
            self._parse(declined)
            if self._request is not None:
                self._request.plain = False
            return
        self._tail = b"" if self._complete else (self._tail + piece[-3:])[-3:]

    def _after_reading(self) -> None:
        """Account for what has not been read, and for a request that is not complete."""
        waiting = len(self._rest) - self._at
        if not waiting or not self._keep_alive:
            self._rest = b""
            self._at = waiting = 0
        self._hold_ahead(waiting if waiting > _AHEAD else 0)
        self._choose_reading()
        request = self._request
        if request is not None:
            if request.size:
                self._hold(request.size)
                request.expecting = False
            elif request.expecting and request.complete_head:
                request.expecting = False
                self.write(CONTINUE)
        if self._half_closed and self._call is None and not waiting and self._transport is not None:
            self._transport.close()

    def _choose_reading(self) -> None:
        """Read from the client unless it does not read itself, or has sent much ahead."""
        reading = not self._blocked and not self._held_ahead
        if reading is not self._reading and self._transport is not None:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _begin(self) -> None:
        """Answer the request that has come in."""
        site, request = self.site, self._request
        assert request is not None, "a request is begun when it is complete: this is a bug"
        if request.size > _SMALL_BODY or self._held:
            self._hold(request.size)
        self._request = None
        body = request.whole_body()
        if request.route is not None:
            self._infer(request.route, body, request.received_ns)
            return
        self._keep_alive = self._keep_alive and request.keep_alive
        self._old = request.version == "1.0"
        self._cors = request.cors
        scope = asgi.scope(
            request.method,
            request.target,
            request.version,
            request.headers,
            client=self._peer,
            server=self._local,
            scheme=self._scheme,
            extensions={asgi.HEADERS_AS_SENT: request.forwarded},
        )
        lines = request.cors + persistence(self._keep_alive, self._old)
        self._call = call = AsgiCall(self, scope, bytes(body), lines, self._done)
        site.turns.calls += 1
        site.tasks.create_task(call.run(site.app))

    def _infer(self, route: InferRoute, body: Buffer, received_ns: int = 0) -> None:
        self._keep_alive = self._keep_alive and route.keep_alive
        self._old = route.old
        self._cors = route.cors
        self._empty_lines = 0
        self._call = call = InferCall(self.site.context, self._answer)
        call.start(route.model, route.version, route.head, body, received_ns)

    # Responses out

    def _answer(self, outcome: Body | ModserveError) -> None:
        """Write the outcome of an inference. Never raises: the caller has other requests to look after."""
        connection = self._cors
        try:
            if self._old or not self._keep_alive:
                connection += persistence(self._keep_alive, self._old)
            if self._transport is not None:
                if isinstance(outcome, Body):
                    self._write_body(outcome, connection)
                else:
                    body = infer_response.encode_error(outcome)
                    for name, value in failures.headers(outcome).items():
                        connection += b"%b: %b\r\n" % (name.encode(), value.encode())
                    status = failures.spelling(outcome).http
                    head = self.site.json_head % (status, reason(status), len(body), connection)
                    self._transport.write(head + body)
            self._done(True)
        except Exception:
            _log.exception("a response could not be written; its connection is closed")
            self.abort()

    def _write_body(self, body: Body, connection: bytes) -> None:
        assert self._transport is not None, "checked by the caller: this is a bug"
        parts = body.parts
        size = sum(map(len, parts))
        if body.server_timing:
            connection += b"Server-Timing: %b\r\n" % body.server_timing.encode()
        if body.encoding is not None:
            connection += b"Content-Encoding: %b\r\n" % body.encoding.encode()
        if body.header_length is None:
            head = self.site.json_head % (200, b"OK", size, connection)
        else:
            head = self.site.binary_head % (body.header_length, size, connection)
        if size <= _SMALL_BODY:
            self._transport.write(b"".join((head, *parts)))
        else:
            self._transport.writelines((head, *parts))

    def _done(self, complete: bool) -> None:
        """The response to the request at hand has been written; on to the next."""
        self._call = None
        if self._held:
            self._give_back()
        if self._transport is None:
            return
        if not complete or not self._keep_alive or self.site.closing:
            self._transport.close()
        elif self._rest:
            self._advance()
        elif self._half_closed:
            self._transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Say what is wrong and close: what follows on the connection cannot be understood, or shall not be read."""
        cors_lines = b"" if self._request is None else self._request.cors
        self._forget()
        if self._call is not None:
            return  # the connection closes with its response
        self._give_back()
        transport = self._transport
        if transport is None:
            return
        transport.write(self._refusal(status, message, cors_lines))
        # Closing with unread data would reset the connection, and the client might not see the response.
        if transport.can_write_eof():
            transport.write_eof()
        if not self._blocked:
            self._choose_reading()
        self.site.loop.call_later(_LINGER, transport.close)

    def _refusal(self, status: int, message: str, lines: bytes) -> bytes:
        lines += self.site.date + persistence(False, False)
        return json_response(status, infer_response.encode_message(message), lines)

    def _fail(self, error: BaseException) -> None:
        """Something of ours has raised while a request was read: it costs this connection only."""
        try:
            _log.error("an HTTP request could not be read, unforeseen", exc_info=error)
            if self._call is not None:
                self.abort()
            elif isinstance(error, MemoryError):
                self._refuse(503, "the server is out of memory. Try again later.")
            else:
                self._refuse(500, "Internal Server Error")
        except Exception:
            self.abort()

    def _forget(self) -> None:
        """Read nothing more, and drop what has been read of the next request."""
        self._keep_alive = False
        if self._request is not None:
            self._request.release(self.site.loop)
        self._request = None
        self._rest = self._tail = b""
        self._at = 0
        self._complete = False
        self._hold_ahead(0)

    # The memory budget

    def _hold(self, size: int) -> None:
        """The request at hand has `size` bytes. Raises MemoryExhaustedError."""
        if size > self._held:
            self.site.memory.take(size - self._held)
            self._held = size

    def _give_back(self) -> None:
        self.site.memory.give_back(self._held)
        self._held = 0

    def _hold_ahead(self, size: int) -> None:
        """So much was sent ahead. Raises MemoryExhaustedError."""
        if size > self._held_ahead:
            self.site.memory.take(size - self._held_ahead)
        else:
            self.site.memory.give_back(self._held_ahead - size)
        self._held_ahead = size

    def _hold_unsent(self, size: int) -> None:
        """So much was written and not taken: it cannot be refused any more."""
        self.site.memory.give_back(self._held_unsent)
        self._held_unsent = size
        self.site.memory.force(size)

    # The parser's side (names are httptools')

    def on_message_begin(self) -> None:
        self._request = IncomingRequest()
        self._empty_lines = 0
        if self.site.server.tracer.on:
            self._request.received_ns = time.monotonic_ns()

    def on_url(self, url: bytes) -> None:
        self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._current
        if request.complete_head:
            # A trailer is no header (RFC 9110, 6.5.1), and nothing here has a use for one.
            request.trailer_size += len(name) + len(value) + 4
            if request.trailer_size > _MAX_HEAD:
                self._stop(431, _TOO_MUCH_FRAMING)
            return
        request.headers.append((name.lower(), value))
        if self.site.options.header_pattern is not None:
            request.forwarded.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        request = self._current
        options = self.site.options
        parser = self._parser
        assert parser is not None, "it is the parser that calls: this is a bug"
        request.complete_head = True
        request.target = without_origin(request.target)
        request.method = parser.get_method()
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        if parser.should_upgrade() and request.method != b"CONNECT":
            request.upgrade = True
            return
        if options.cors_origins:
            request.cors = cors.header_block(options.cors_origins, request.method, request.headers)
        try:
            request.read_head()
        except RefusedRequestError as refused:
            self._stop(refused.status, refused.message)
        length = request.content_length or 0
        memory = self.site.memory
        if request.limited:
            self._check_size(length)
        if memory.limit and length > memory.limit:
            self._stop(413, memory.exhausted(length).message)
        if request.infer is not None:
            request.route = self._route(request, *request.infer)

    def _route(self, request: IncomingRequest, model: str, version: int | None) -> InferRoute | None:
        """None for what is refused: that goes to the application, which says so, and its head is not remembered."""
        options = self.site.options
        restriction = options.restrictions.get("inference")
        if restriction is not None and not restriction.granted(request.headers):
            return None
        head = InferHead(
            request.header_length,
            request.content_encoding,
            compression.choose(request.accept_encoding),
            header_forwarding.matching(options.header_pattern, request.forwarded),
            tuple(request.timeouts),
        )
        length = request.content_length or 0
        return InferRoute(model, version, length, head, request.keep_alive, request.version == "1.0", request.cors)

    def on_chunk_header(self) -> None:
        self._current.chunks += 1

    def on_body(self, body: bytes) -> None:
        request = self._current
        if request.chunks > _MAX_CHUNKS:  # the chunk that ends a body has none of it
            self._stop(400, _TOO_MANY_CHUNKS)
        if request.limited:
            self._check_size(request.size + len(body))
        request.add(body)

    def on_message_complete(self) -> None:
        if not self._current.upgrade:
            self._complete = True

    @property
    def _current(self) -> IncomingRequest:
        if self._request is None:
            raise RuntimeError("the parser reports on a message it has not begun: this is a bug")
        return self._request

    def _check_size(self, size: int) -> None:
        try:
            check_json_size(size, self.site.options.max_json)
        except ModserveError as error:
            self._stop(STATUS[error.code].http, error.message)

    def _stop(self, status: int, message: str) -> NoReturn:
        """Leave the parser: the connection cannot go on after this request."""
        self._refused = status, message
        raise RefusedRequestError(status, message)


def _address(name: object) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None

"""One HTTP/1.1 connection: framing by httptools, one request at a time, answers in order.

The plain path is httptools for everything. Beside it runs one short cut: a head seen before, byte for byte, on an
inference request that arrives whole is not parsed again (`Site.heads`).
"""

import asyncio
import logging
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import httptools

from modserve.core.errors import ModserveError
from modserve.protocol import compression, deadlines, failures, header_forwarding, http_infer
from modserve.protocol.http_infer import Body
from modserve.protocol.status import STATUS

from . import asgi, cors
from .asgi import AsgiCall
from .infer import InferCall, InferHead, check_json_size
from .responses import BINARY_HEAD, CONTINUE, JSON_HEAD, json_response, persistence
from .routes import InferRoute, match_infer, may_be_binary, without_origin
from .site import Site

_log = logging.getLogger(__name__)

_MAX_HEAD = 64 * 1024
_MAX_PIPELINED = 16
_MAX_CHUNKS = 65536
_TOO_MANY_CHUNKS = (
    f"Chunked request body exceeds maximum of {_MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
)
_SMALL_BODY = 64 * 1024
_UNSENT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_KEPT = 64 * 1024
"""Bytes that the system keeps of an answer in parts beside those on their way. Otherwise it would take megabytes, and a
slow reader would look like one that does not read."""

_LINGER = 2.0
"""Seconds in which a refused client may read why, before the connection goes."""

_LOOK = 0.1
"""Seconds between two looks whether a client that sends no more is there to read."""

_HEADER_LENGTH = http_infer.HEADER_LENGTH.encode()


@dataclass(slots=True)
class _Request:
    """A request as it comes in."""

    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    size: int = 0
    method: bytes = b""
    version: str = "1.1"
    keep_alive: bool = True
    infer: tuple[str, int | None] | None = None
    header_length: bytes | None = None
    content_encoding: bytes | None = None
    accept_encoding: str | None = None
    content_length: int | None = None
    chunks: int = 0
    expecting: bool = False
    """It waits for leave to send its body."""
    forwarded: list[tuple[str, str]] = field(default_factory=list)
    timeouts: list[tuple[str, str]] = field(default_factory=list)
    """Headers that tell how long its client waits."""
    cors: bytes = b""
    """Header lines for its answer."""
    limited: bool = True
    """Its body counts against the limit on JSON: all but inference requests with a JSON length of their own."""
    received_ns: int = 0
    """When it began to come in; known while requests are traced."""
    upgrade: bool = False
    """It asks for another protocol, and httptools takes its body for a part of that."""

    def without_upgrade(self) -> bytes:
        """Its head, as if it had not asked."""
        lines = [b"%b %b HTTP/%b" % (self.method, self.target, self.version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class Connection(asyncio.Protocol):
    """Implements the parser's callbacks too: the lower half of its methods."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._request: _Request | None = None
        self._waiting: deque[_Request] = deque()
        self._call: InferCall | AsgiCall | None = None
        self._keep_alive = True
        self._old = False
        self._cors = b""
        self._head_size = 0
        self._first_head: bytes | None = None
        self._first_size = 0
        self._refusal: bytes | None = None
        self._deaf = False
        """Nothing that still comes is looked at: a request was refused, or was to be the last."""
        self._advancing = False
        self._half_closed = False
        """The client sends no more, and waits for answers."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._peer: tuple[str, int] | None = None
        self._local: tuple[str, int] | None = None
        self._scheme = "http"

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = _address(transport.get_extra_info("peername"))
        self._local = _address(transport.get_extra_info("sockname"))
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self.site.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.site.closed(self)
        self._transport = None
        self._waiting.clear()
        self._writable.set()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def eof_received(self) -> bool:
        """The client sends no more: what it has asked for is answered to the end, and then the connection closes.

        A client that is gone sends no more either. Only what is written shows whether it still reads, so something is
        at once, which changes nothing; but HTTP/1.0 has nothing of that kind.
        """
        if self._scheme == "https" or self._transport is None or (self._call is None and not self._waiting):
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
        """The client does not read its answers: it gets to send no more until it does."""
        self._writable.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._call is None and self._waiting and not self._advancing:
            self._advance()
        else:
            self._read_on()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        before = self._request
        if before is None:
            end = data.find(b"\r\n\r\n") + 4
            if end > 3:
                head = data[:end]
                route = self.site.heads.get(head)
                free = self._call is None and not self._waiting and self._writable.is_set()
                if route is not None and free and len(data) == end + route.content_length:
                    self._infer(route, data[end:])
                    return
                self._first_head = head
                self._first_size = len(data)
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # An upgrade nobody here speaks is declined by answering the request as it is.
                self._parser = httptools.HttpRequestParser(self)
                request, self._request = self._request, None
                head = b"" if request is None else request.without_upgrade()
                data = head + data[upgrade.args[0] :]
                continue
            except httptools.HttpParserError as error:
                if not self._deaf:
                    self._refuse(400, f"malformed HTTP request: {error}")
                return
            break
        # What came together with the end of the request before does not count; a complete head is measured then.
        if self._request is not None and self._request is before and self._head_size >= 0:
            self._head_size += len(data)
            if self._head_size > _MAX_HEAD:
                self._refuse_head()

    # What calls write

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def keep_little(self) -> None:
        opened = None if self._transport is None else self._transport.get_extra_info("socket")
        if opened is not None and _UNSENT is not None:
            with suppress(OSError):  # no TCP
                opened.setsockopt(socket.IPPROTO_TCP, _UNSENT, _KEPT)

    async def writable(self) -> None:
        await self._writable.wait()

    # Requests in and answers out

    def close_when_idle(self) -> None:
        """Answer what is under way, then close."""
        self._keep_alive = False
        if self._call is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _infer(self, route: InferRoute, body: bytes, received_ns: int = 0) -> None:
        self._keep_alive = self._keep_alive and route.keep_alive
        self._old = route.old
        self._cors = route.cors
        self._call = call = InferCall(self._answer)
        site = self.site
        call.start(site.server, route.model, route.version, route.head, body, site.options, site.loop, received_ns)

    def _answer(self, outcome: Body | ModserveError) -> None:
        connection = self._cors
        if self._old or not self._keep_alive:
            connection += persistence(self._keep_alive, self._old)
        if self._transport is not None:
            if isinstance(outcome, Body):
                self._write_body(outcome, connection)
            else:
                body = http_infer.encode_error(outcome)
                for name, value in failures.headers(outcome).items():
                    connection += b"%b: %b\r\n" % (name.encode(), value.encode())
                self._transport.write(json_response(failures.spelling(outcome).http, body, connection))
        self._done(True)

    def _write_body(self, body: Body, connection: bytes) -> None:
        assert self._transport is not None, "checked by the caller: this is a bug"
        parts = body.parts
        size = sum(map(len, parts))
        if body.server_timing:
            connection += b"Server-Timing: %b\r\n" % body.server_timing.encode()
        if body.encoding is not None:
            connection += b"Content-Encoding: %b\r\n" % body.encoding.encode()
        if body.header_length is None:
            head = JSON_HEAD % (200, b"OK", size, connection)
        else:
            head = BINARY_HEAD % (body.header_length, size, connection)
        if size <= _SMALL_BODY:
            self._transport.write(b"".join((head, *parts)))
        else:
            self._transport.writelines((head, *parts))

    def _done(self, complete: bool) -> None:
        """The answer to the request at hand has been written; on to the next."""
        self._call = None
        if self._transport is None:
            return
        if not complete or not self._keep_alive or self.site.closing:
            self._transport.close()
        elif not self._advancing:
            self._advance()

    def _advance(self) -> None:
        """Begin what waits. In a loop, since requests may be answered at once, and there may be thousands.

        While the client does not read its answers, no more are made.
        """
        self._advancing = True
        try:
            while self._waiting and self._call is None and self._keep_alive and self._writable.is_set():
                self._begin(self._waiting.popleft())
        finally:
            self._advancing = False
        if self._call is None and self._waiting and not self._writable.is_set():
            return
        if self._call is None and self._refusal is not None and self._keep_alive:
            self._say_refusal(self._refusal)
        elif self._call is None and self._half_closed and self._transport is not None:
            self._transport.close()
            return
        self._let_continue()
        self._read_on()

    def _begin(self, request: _Request) -> None:
        site = self.site
        body = b"".join(request.body) if len(request.body) != 1 else request.body[0]
        old = request.version == "1.0"
        restriction = site.options.restrictions.get("inference")
        # What is refused goes to the application, which says so; its head is not remembered.
        if request.infer is not None and (restriction is None or restriction.granted(request.headers)):
            name, version = request.infer
            answer_encoding = compression.choose(request.accept_encoding)
            forwarded = header_forwarding.matching(site.options.header_pattern, request.forwarded)
            timeouts = tuple(request.timeouts)
            head = InferHead(request.header_length, request.content_encoding, answer_encoding, forwarded, timeouts)
            route = InferRoute(name, version, len(body), head, request.keep_alive, old, request.cors)
            if self._first_head is not None:
                if self._first_size == len(self._first_head) + len(body):
                    site.remember(self._first_head, route)
                self._first_head = None
            self._infer(route, body, request.received_ns)
            return
        self._first_head = None
        self._keep_alive = self._keep_alive and request.keep_alive
        self._old = old
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
        answer_lines = request.cors + persistence(self._keep_alive, old)
        self._call = call = AsgiCall(self, scope, body, answer_lines, self._done)
        site.tasks.create_task(call.run(site.app))

    def _read_on(self) -> None:
        if self._transport is not None and self._writable.is_set() and len(self._waiting) < _MAX_PIPELINED:
            self._transport.resume_reading()

    def _refuse(self, status: int, message: str) -> None:
        """Say what is wrong and close: what follows on the connection can not be understood, or shall not be read.

        The requests before it are answered first.
        """
        if self._deaf:
            return
        self._deaf = True
        lines = persistence(False, False) if self._request is None else self._request.cors + persistence(False, False)
        self._refusal = json_response(status, http_infer.encode_message(message), lines)
        if self._call is None and not self._waiting:
            self._say_refusal(self._refusal)

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request's head exceeds {_MAX_HEAD} bytes")

    def _say_refusal(self, refusal: bytes) -> None:
        self._refusal = None
        self._keep_alive = False
        if self._transport is not None:
            self._transport.write(refusal)
            # Closing with unread data would reset the connection, and the client might not see the answer.
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self.site.loop.call_later(_LINGER, self._transport.close)

    # The parser's side (names are httptools')

    def on_message_begin(self) -> None:
        self._request = _Request()
        if self.site.server.tracer.on:
            self._request.received_ns = time.monotonic_ns()
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers.append((name.lower(), value))
        if self.site.options.header_pattern is not None:
            self._current.forwarded.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        request = self._current
        self._head_size = -1
        parser = self._parser
        request.target = without_origin(request.target)
        request.method = parser.get_method()
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        if parser.should_upgrade() and request.method != b"CONNECT":
            request.upgrade = True
            return
        if len(request.target) + sum(len(name) + len(value) for name, value in request.headers) > _MAX_HEAD:
            self._refuse_head()
        if self.site.options.cors_origins:
            request.cors = cors.header_block(self.site.options.cors_origins, request.method, request.headers)
        plain = True
        for name, value in request.headers:
            if name == b"content-length":
                request.content_length = int(value)
            elif name == _HEADER_LENGTH:
                request.header_length = value
            elif name == b"accept-encoding":
                given = value.decode("latin-1")
                request.accept_encoding = f"{request.accept_encoding}, {given}" if request.accept_encoding else given
            elif name == b"content-encoding":
                request.content_encoding = value
            elif name in deadlines.RAW_HEADERS:
                request.timeouts.append((name.decode(), value.decode("latin-1")))
            elif name in (b"expect", b"upgrade"):
                plain = False
                if name == b"expect" and value.lower() == b"100-continue":
                    request.expecting = request.version != "1.0"
        if request.method == b"POST":
            request.infer = match_infer(request.target)
        if request.header_length is not None and may_be_binary(request.target):
            request.limited = False
        if request.infer is None or not plain or request.content_length is None:
            self._first_head = None
        if request.limited:
            self._check_size(request.content_length or 0)
        self._let_continue()

    def _let_continue(self) -> None:
        """Tell a client that waits with its body to send it, once the requests before are answered."""
        request = self._request
        if request is None or not request.expecting or self._deaf or self._call is not None or self._waiting:
            return
        request.expecting = False
        self.write(CONTINUE)

    def on_chunk_header(self) -> None:
        self._current.chunks += 1

    def on_body(self, body: bytes) -> None:
        request = self._current
        request.expecting = False
        if request.chunks > _MAX_CHUNKS:  # the chunk that ends a body has none of it
            self._refuse(400, _TOO_MANY_CHUNKS)
        request.size += len(body)
        if not self._deaf:
            request.body.append(body)
            if request.limited and request.content_length is None:
                self._check_size(request.size)

    def on_message_complete(self) -> None:
        request = self._current
        if request.upgrade:
            return
        self._request = None
        if self._deaf:
            return
        self._deaf = not request.keep_alive
        if self._call is None and not self._waiting and self._writable.is_set():
            self._begin(request)
        else:
            self._first_head = None
            self._waiting.append(request)
            if len(self._waiting) >= _MAX_PIPELINED and self._transport is not None:
                self._transport.pause_reading()

    @property
    def _current(self) -> _Request:
        if self._request is None:
            raise RuntimeError("the parser reports on a message it has not begun: this is a bug")
        return self._request

    def _check_size(self, size: int) -> None:
        try:
            check_json_size(size, self.site.options.max_json)
        except ModserveError as error:
            self._refuse(STATUS[error.code].http, error.message)


def _address(name: object) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None

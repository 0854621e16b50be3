"""Runs requests in the ASGI application: everything but inference."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote_to_bytes

from modserve.access.credentials import Credentials
from modserve.access.permissions import SLASH, template_of
from modserve.core.requests.origin import Origin, lines_of
from modserve.core.runtime import unix_socket
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.http.error_forms import encode_message
from modserve.frontends.listening import peer_of
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.restricted import PATH_CATEGORY

from .context import STATUSES, HttpContext, Message
from .responses import CLOSE, CONTINUE, KEEP_ALIVE, json_response, persistence, response_head
from .send_buffer import keep_little

_log = logging.getLogger(__name__)

HEADERS_AS_SENT = "modserve.headers_as_sent"
"""Scope extension: headers as the client spelled them; only where headers are forwarded to models."""
CERTIFICATE = "modserve.certificate"
"""Scope extension: credentials from the client's TLS certificate (`access.credentials`)."""
IDENTITY = "modserve.identity"
"""Scope key: the caller, if a key identifies one. Permission for the call is a separate matter."""
NOTE = "modserve.note"
"""Scope key: information about the request (`rest.identified`)."""
_ENCODED_SLASH = re.compile(rb"%2[fF]")


class AsgiCall:
    """Run of the application on one complete request; writes the response.

    `writable` returns when the client has read enough of the written data. `done` is called when all is written, with a
    flag that the connection may stay open. `ending`: the server stops, and no further data has arrived on the
    connection.
    """

    def __init__(
        self,
        context: HttpContext,
        transport: asyncio.Transport,
        head: RequestHead,
        body: Buffer,
        keep_alive: bool,
        writable: Callable[[], Awaitable[None]],
        done: Callable[[bool], None],
        ending: Callable[[], bool],
        certificate: Credentials = (),
    ) -> None:
        self._context = context
        self._transport = transport
        self._scope = scope(head, transport, certificate)
        self._old = head.old
        self._body: bytes | None = bytes(body)
        self._lines = head.cors
        if head.report_format:
            self._lines += context.load_lines.get(head.report_format, b"")
        self._keep_alive = keep_alive
        self._writable = writable
        self._done = done
        self._ending = ending
        self._gone = asyncio.Event()
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._started = False
        self._chunked = False
        self._complete = False
        self._closing = False
        self._in_parts = False

    @property
    def filler(self) -> bytes:
        if not self._started:
            return CONTINUE
        return b"0" if self._chunked and not self._complete else b""  # the next chunk's size begins with it

    @property
    def begun(self) -> bool:
        return self._started

    @property
    def left(self) -> int:
        return 0

    def pause(self) -> None:
        """Do nothing: the application waits in `writable`."""

    def resume(self) -> None:
        """Do nothing, like `pause`."""

    async def run(self) -> None:
        """Run the application. Raises nothing but CancelledError: a failure costs this connection only."""
        try:
            await self._respond()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            self._transport.abort()
            raise
        except BaseException:
            self._log_failure()
            self._transport.abort()

    async def _respond(self) -> None:
        try:
            await self._context.app(self._scope, self._receive, self._send)
        except Exception:
            if not self._gone.is_set():
                self._log_failure()
        if self._gone.is_set():
            return
        if not self._started:
            lines = self._context.date + self._lines + self._persistence()
            self._count(500)
            body = encode_message(self._scope["path"], "Internal Server Error", 500)
            self._transport.write(json_response(500, body, lines))
            self._complete = True
        self._done(self._complete and not self._closing)

    def _count(self, status: int) -> None:
        template, _ = template_of(self._scope["method"], self._scope["path"])
        if 0 <= status < STATUSES and PATH_CATEGORY.get(template) != "health":
            self._context.statuses[status] += 1

    def _log_failure(self) -> None:
        _log.exception("%s %s failed unexpectedly", self._scope["method"], self._scope["path"])

    def cancel(self) -> None:
        """Tell the application of the client's disconnect: it reads ``http.disconnect``."""
        self._gone.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            return
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if self._scope["method"] == "HEAD":
            body = b""
        data = body
        if not self._started:
            data = self._start(body, more)
        elif self._chunked:
            data = _chunk(body)
        if more and not self._in_parts:
            self._in_parts = True
            keep_little(self._transport)
        if self._chunked and not more:
            data += b"0\r\n\r\n"
        self._transport.write(data)
        if more:
            await self._writable()
        else:
            self._complete = True

    def _persistence(self) -> bytes:
        """Return the head's lines about the connection, which closes after the response if the server stops."""
        self._closing = self._ending()
        return persistence(self._keep_alive and not self._closing, self._old)

    def _start(self, body: bytes, more: bool) -> bytes:
        self._started = True
        self._lines += self._persistence()
        self._count(self._status)
        names = {name.lower() for name, _ in self._headers}
        if b"content-length" not in names and self._scope["method"] != "HEAD":
            if more and self._old:
                # HTTP/1.0 clients know no chunks: the end of the connection ends the body.
                self._lines = self._lines.replace(KEEP_ALIVE, CLOSE)
                self._closing = True
            elif more:
                self._chunked = True
                self._headers.append((b"transfer-encoding", b"chunked"))
                body = _chunk(body)
            else:
                self._headers.append((b"content-length", b"%d" % len(body)))
        lines = self._lines if b"date" in names else self._context.date + self._lines
        return response_head(self._status, self._headers, lines) + body


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""


def decode_path(path: bytes) -> str:
    if b"%" not in path:
        return path.decode(errors="replace")
    parts = _ENCODED_SLASH.split(path)
    return SLASH.join(unquote_to_bytes(part).decode(errors="replace") for part in parts)


def format_path(path: bytes) -> str:
    """Return a path in the form of logs."""
    return decode_path(path).replace(SLASH, "%2F")


def _address(name: object) -> tuple[str, int] | None:
    if name == unix_socket.PEER:
        return unix_socket.PEER, 0
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None


def origin_of(scope: Message) -> Origin:
    """Return the origin of a scope's request."""
    return Origin(scope.get("client"), lines_of(scope["headers"]), scope["path"].replace(SLASH, "%2F"))


def scope(head: RequestHead, transport: asyncio.BaseTransport, certificate: Credentials = ()) -> Message:
    """Return the ASGI scope of a request."""
    path, _, query = head.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": head.version,
        "method": head.method.decode("ascii").upper(),
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "path": decode_path(path),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": head.headers,
        "client": _address(peer_of(transport)),
        "server": _address(transport.get_extra_info("sockname")),
        "extensions": {HEADERS_AS_SENT: head.as_sent, CERTIFICATE: certificate},
    }

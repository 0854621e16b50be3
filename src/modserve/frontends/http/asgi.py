"""One request to the ASGI application, for everything that is not inference."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from modserve.protocol.http.infer_response import encode_message

from .responses import CLOSE, CONTINUE, KEEP_ALIVE, head, json_response
from .site import AsgiApp, Message

_log = logging.getLogger(__name__)

SLASH = "\udc2f"
"""Stands in a scope's path for a slash that was sent as ``%2F``: part of a name, which separates nothing.

No text of a client holds it, since it is no character.
"""
HEADERS_AS_SENT = "modserve.headers_as_sent"
"""A scope's extension: names as the client spelled them, with values; only where headers are forwarded to models."""
_ENCODED_SLASH = re.compile(rb"%2[fF]")


class Wire(Protocol):
    """The connection as the application's answer needs it."""

    def write(self, data: bytes) -> None: ...

    def keep_little(self) -> None:
        """An answer comes in parts: let the system take no more of them than it sends on."""
        ...

    async def writable(self) -> None:
        """Return when the client has taken enough of what was written."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    @property
    def date(self) -> bytes:
        """The Date line of responses."""
        ...


class AsgiCall:
    """Runs the application on one complete request and writes its answer. `done` tells whether it may stay open."""

    def __init__(
        self, wire: Wire, scope: Message, body: bytes, connection: bytes, done: Callable[[bool], None]
    ) -> None:
        self._wire = wire
        self._scope = scope
        self._body: bytes | None = body
        self._connection = connection
        self._done = done
        self._gone = asyncio.Event()
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._started = False
        self._chunked = False
        self._complete = False
        self._closing = False
        self._started_parts = False

    @property
    def filler(self) -> bytes:
        """What may be written now and changes nothing for a client of HTTP/1.1; empty where there is no such thing."""
        if not self._started:
            return CONTINUE
        return b"0" if self._chunked and not self._complete else b""  # the size of the next chunk begins with it

    async def run(self, app: AsgiApp) -> None:
        """Never raises, but for cancellation: what fails, also after the response, costs this connection only."""
        try:
            await self._respond(app)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            self._wire.abort()
            raise
        except BaseException:
            _log.exception("%s %s failed unforeseen", self._scope["method"], self._scope["path"])
            self._wire.abort()

    async def _respond(self, app: AsgiApp) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        except Exception:
            if not self._gone.is_set():
                _log.exception("%s %s failed unforeseen", self._scope["method"], self._scope["path"])
        if self._gone.is_set():
            return
        if not self._started:
            lines = self._wire.date + self._connection
            self._wire.write(json_response(500, encode_message("Internal Server Error"), lines))
            self._complete = True
        self._done(self._complete and not self._closing)

    def cancel(self) -> None:
        """The client has gone: the application reads ``http.disconnect``."""
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
        if more and not self._started_parts:
            self._started_parts = True
            self._wire.keep_little()
        if self._chunked and not more:
            data += b"0\r\n\r\n"
        self._wire.write(data)
        if more:
            await self._wire.writable()
        else:
            self._complete = True

    def _start(self, body: bytes, more: bool) -> bytes:
        self._started = True
        names = {name.lower() for name, _ in self._headers}
        if b"content-length" not in names and self._scope["method"] != "HEAD":
            if more and self._scope["http_version"] == "1.0":
                # Its clients know no chunks: the end of the connection is that of the body.
                self._connection = self._connection.replace(KEEP_ALIVE, CLOSE)
                self._closing = True
            elif more:
                self._chunked = True
                self._headers.append((b"transfer-encoding", b"chunked"))
                body = _chunk(body)
            else:
                self._headers.append((b"content-length", b"%d" % len(body)))
        lines = self._connection if b"date" in names else self._wire.date + self._connection
        return head(self._status, self._headers, lines) + body


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""


def _decoded(path: bytes) -> str:
    if b"%" not in path:
        return path.decode(errors="replace")
    parts = _ENCODED_SLASH.split(path)
    return SLASH.join(unquote_to_bytes(part).decode(errors="replace") for part in parts)


def scope(method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]], **more: Any) -> Message:
    """The ASGI scope of a request; `more` adds to it, or says it better."""
    path, _, query = target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": version,
        "method": method.decode("ascii").upper(),
        "scheme": "http",
        "path": _decoded(path),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        **more,
    }

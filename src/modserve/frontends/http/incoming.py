"""A request as it comes in, and what its head must say for the request to be taken (RFC 9112)."""

import asyncio
import re
from dataclasses import dataclass, field

from modserve.core.tensor import Buffer
from modserve.protocol.http import deadlines, infer_request

from .routes import InferRoute, match_infer, may_be_binary

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
"""RFC 3986, 3.2.2 and 3.2.3; empty for a target without an authority."""

_VERSIONS = ("1.1", "1.0")
_HEADER_LENGTH = infer_request.HEADER_LENGTH.encode()
_LONGEST_NUMBER = 20
"""Digits of a Content-Length."""

_MAX_SHOWN = 100
"""Characters of a client's header that a refusal repeats."""


class RefusedRequestError(Exception):
    """The connection cannot go on after this request: it is answered `status` with `message`, and closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


_LONG_BODY = 32 * 1024 * 1024
"""Bytes of the longest body that is put together when it is complete, which holds the event loop for 10 ms. A longer
one grows as it arrives: its memory is a mapping of its own, which the system enlarges without copying it."""


@dataclass(slots=True)
class IncomingRequest:
    """A request of which something has come."""

    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Names in lower case, as sent otherwise. Trailers are not among them."""
    body: list[bytes] = field(default_factory=list)
    """Pieces of the body, as they came."""
    long_body: bytearray | None = None
    """In their place, of a body that is too long to be put together in one go."""
    size: int = 0
    """Bytes of the body so far."""
    missing: int = 0
    """Bytes of a body with a Content-Length that have not come."""
    method: bytes = b""
    version: str = "1.1"
    keep_alive: bool = True
    route: InferRoute | None = None
    """Of an inference request that goes around the application."""
    infer: tuple[str, int | None] | None = None
    """The model and version whose inference the target names."""
    header_length: bytes | None = None
    content_encoding: bytes | None = None
    accept_encoding: str | None = None
    content_length: int | None = None
    complete_head: bool = False
    chunked: bool = False
    chunks: int = 0
    head_size: int = 0
    """Bytes of an incomplete head, or of the framing since the last chunk of a body."""
    trailer_size: int = 0
    expecting: bool = False
    """The client waits for leave to send the body."""
    plain: bool = True
    """The head asks for nothing unusual, and may be remembered."""
    forwarded: list[tuple[str, str]] = field(default_factory=list)
    timeouts: list[tuple[str, str]] = field(default_factory=list)
    """Headers that tell how long the client waits."""
    cors: bytes = b""
    """Header lines for the response."""
    limited: bool = True
    """The body counts against the limit on JSON: all but inference requests with a JSON length of their own."""
    received_ns: int = 0
    """When it began to come in; known while requests are traced."""
    upgrade: bool = False
    """It asks for another protocol, and httptools takes its body for a part of that."""
    waiting_since: float | None = None
    """When its incomplete head was first looked at by the connection's time-outs."""

    def add(self, piece: bytes) -> None:
        """A piece of the body has come."""
        self.size += len(piece)
        if self.long_body is not None:
            self.long_body += piece
            return
        self.body.append(piece)
        if self.size > _LONG_BODY:
            self.long_body = bytearray().join(self.body)
            self.body.clear()

    def release(self, loop: asyncio.AbstractEventLoop) -> None:
        """Free a body that nobody will read: half of it in each turn of the event loop, since the system takes 0.1 ms
        to take back a megabyte."""
        self.body.clear()
        body = self.long_body
        if body is not None and len(body) > _LONG_BODY:
            del body[len(body) // 2 :]
            loop.call_soon(self.release, loop)

    def whole_body(self) -> Buffer:
        """The body of a request that is complete."""
        if self.long_body is not None:
            return memoryview(self.long_body).toreadonly()
        return self.body[0] if len(self.body) == 1 else b"".join(self.body)

    def without_upgrade(self) -> bytes:
        """The head, as if it had not asked for another protocol."""
        lines = [b"%b %b HTTP/%b" % (self.method, self.target, self.version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def read_head(self) -> None:
        """Check the complete head and note what the headers say. Raises RefusedRequestError."""
        if self.version not in _VERSIONS:
            raise RefusedRequestError(
                505, f"HTTP/{self.version} is not supported on this port, only HTTP/1.1 and HTTP/1.0 are"
            )
        if self.method == b"CONNECT":
            # What follows would not be a body but another protocol, of which nothing may be taken for a request.
            raise RefusedRequestError(501, "the method CONNECT is not supported: this server is not a proxy")
        hosts = []
        for name, value in self.headers:
            if name == b"content-length":
                self._read_length(value)
            elif name == b"host":
                hosts.append(value)
            elif name == b"transfer-encoding":
                self._read_transfer_encoding(value)
            elif name == _HEADER_LENGTH:
                self.header_length = value
            elif name == b"accept-encoding":
                text = value.decode("latin-1")
                self.accept_encoding = f"{self.accept_encoding}, {text}" if self.accept_encoding else text
            elif name == b"content-encoding":
                self.content_encoding = value
            elif name in deadlines.RAW_HEADERS:
                self.timeouts.append((name.decode(), value.decode("latin-1")))
            elif name == b"upgrade":
                self.plain = False
            elif name == b"expect":
                self.plain = False
                self.expecting = value.lower() == b"100-continue" and self.version != "1.0"
        self._check_host(hosts)
        if self.method == b"POST":
            self.infer = match_infer(self.target)
        if self.header_length is not None and may_be_binary(self.target):
            self.limited = False

    def _check_host(self, hosts: list[bytes]) -> None:
        """RFC 9112, 3.2: a request of HTTP/1.1 has one Host; no request has several, or one that is no host."""
        if len(hosts) > 1 or (not hosts and self.version != "1.0"):
            raise RefusedRequestError(400, f"a request needs exactly one Host header, this one has {len(hosts)}")
        if hosts and _HOST.fullmatch(hosts[0]) is None:
            raise RefusedRequestError(400, f"the Host header is no host and port: '{_shown(hosts[0])}'")

    def _read_length(self, value: bytes) -> None:
        if len(value.lstrip(b"0")) > _LONGEST_NUMBER:
            raise RefusedRequestError(400, f"the Content-Length is no length: '{_shown(value)}'")
        self.content_length = self.missing = int(value.lstrip(b"0") or b"0")

    def _read_transfer_encoding(self, value: bytes) -> None:
        """RFC 9112, 6.1."""
        if self.version == "1.0":
            raise RefusedRequestError(400, "a request of HTTP/1.0 cannot have a Transfer-Encoding")
        if self.chunked or value.lower() != b"chunked":
            raise RefusedRequestError(
                501, f"the Transfer-Encoding '{_shown(value)}' is not supported, only 'chunked' is"
            )
        self.chunked = True


def _shown(value: bytes) -> str:
    text = value[: _MAX_SHOWN + 1].decode("latin-1")
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"

"""Requests over HTTP without sockets: by the port, which runs the calls of texts itself, or by the application."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from modserve import InferenceServer
from modserve.access.authority import Authority
from modserve.frontends.http.application import guard_app, scope_server
from modserve.frontends.http.direct import DirectCalls
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.wire.connection import HttpConnection
from modserve.frontends.http.wire.context import HttpContext
from modserve.settings import HttpSettings, PlatformRoutes

from .ledger import NEVER
from .simulation import SimulatedLoop

_ROUTES = PlatformRoutes("/ping", "/vertex", "application/x;size=", "x-redirect", instances=True)


class Site:
    """A server's HTTP front end. Both ways run the same calls, and share what they know. Vertex AI may call it."""

    def __init__(self, server: InferenceServer, loop: SimulatedLoop, authority: Authority | None) -> None:
        options = HttpSettings(routes=_ROUTES)
        direct = DirectCalls(CallContext(scope_server(server, authority), options))
        tasks: Any = SimpleNamespace(create_task=loop.create_task)  # which the application's calls are
        app = create_app(scope_server(server, authority), options, direct, authority)
        self.app: Any = guard_app(app, server, authority)
        by_port = direct if authority is None else None  # as `HttpListener` has it
        self.context = HttpContext(server, self.app, tasks, loop, options, True, by_port, authority)
        self.loop = loop
        self.streams = direct.streams


class Post:
    """One request, and what its client has got. `by_port`: not by the application.

    `by_platform`: the client, which is one of the port, sends it to the path of predictions.
    """

    def __init__(
        self, path: str, document: dict[str, Any], timeout_s: float, *, by_port: bool, by_platform: bool = False
    ) -> None:
        self.path = path
        self.by_port = by_port
        self.by_platform = by_platform
        self.status = 0
        self.body = b""
        self.gone = False
        self._content = json.dumps(document).encode()
        self._headers = [(b"x-request-timeout-ms", b"%d" % round(timeout_s * 1000))] if timeout_s else []
        self._sent = False
        self._left = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: _Connection | None = None

    def __repr__(self) -> str:
        way = "the platform's path" if self.by_platform else "the port" if self.by_port else "the application"
        return f"{self.path} by {way} ({self.status}, {self.body!r}, gone: {self.gone})"

    def show(self, secret: str) -> None:
        """Have the key with this secret."""
        self._headers.append((b"x-api-key", secret.encode()))

    def begin(self, site: Site) -> None:
        if not self.by_port:
            self._task = site.loop.create_task(self._run(site.app))
            return
        lines = [b"Host: x", b"Connection: close", b"Content-Length: %d" % len(self._content)]
        lines += [b"%b: %b" % header for header in self._headers]
        path = self.path
        if self.by_platform:
            lines.append(b"%b: %b" % (_ROUTES.redirect_header.encode(), path.removeprefix("/").encode()))
            path = _ROUTES.predict
        head = b"POST %b HTTP/1.1\r\n%b\r\n\r\n" % (path.encode(), b"\r\n".join(lines))
        self._connection = _Connection(HttpConnection(site.context), site.loop, self._read)
        site.loop.act(partial(self._connection.send, head + self._content))

    @property
    def over(self) -> bool:
        if self._connection is not None:
            return self._connection.lost
        return self._task is not None and self._task.done()

    def leave(self) -> None:
        """The client does not want the response any more."""
        self.gone = True
        self._left.set()
        if self._connection is not None:
            self._connection.lose()

    def check(self) -> None:
        """When all is over. Raises AssertionError."""
        assert self.over, f"{self!r} is not over"
        if self._task is not None:
            assert self._task.exception() is None, f"{self!r} failed with {self._task.exception()!r}"
        assert self.status or self.gone, f"{self!r} has no response"
        assert self.status != 405, f"{self!r} has become another call"

    def check_error(self, message: str) -> None:
        """That of a failure."""
        assert not any(part in message for part in NEVER if part != "Server not ready"), f"{self!r}: {message}"

    async def _run(self, app: Any) -> None:
        path = self.path
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        await app({**scope, "headers": self._headers, "root_path": ""}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")

    def _read(self, written: bytes) -> None:
        """The whole response of the port, or what there is of it when the client leaves."""
        head, end, rest = written.partition(b"\r\n\r\n")
        if not end:
            assert self.gone or not written, f"half a head: {written!r}"
            return
        self.status = int(head.split(b" ", 2)[1])
        if b"\r\ntransfer-encoding: chunked" not in head.lower():
            self.body = rest
            return
        size = -1
        while rest and size:
            line, _, rest = rest.partition(b"\r\n")
            size = int(line, 16)
            self.body, rest = self.body + rest[:size], rest[size + 2 :]
        assert self.gone or size == 0, f"the response breaks off: {written!r}"


class _Connection(asyncio.Transport):
    """Keeps what is written. As with a socket, the connection is lost one turn after it was closed."""

    def __init__(self, protocol: HttpConnection, loop: SimulatedLoop, ended: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("192.0.2.1", 1234), "sockname": ("192.0.2.2", 8000)})
        self._protocol = protocol
        self._loop = loop
        self._ended = ended
        self._written = bytearray()
        self._closing = False
        self.lost = False

    def send(self, data: bytes) -> None:
        self._protocol.connection_made(self)
        self._protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closing, f"written after the end: {bytes(data)!r}"
        self._written += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.lose)

    def lose(self) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self._protocol.connection_lost(None)
            self._ended(bytes(self._written))

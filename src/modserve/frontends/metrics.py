"""The metrics port: a listener of its own, which can be kept inside where the others are open to clients.

It shares the event loop with them: the page is made between two of their requests.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from modserve.frontends.offload import on_thread
from modserve.protocol import compression


class MetricsListener:
    """Serves what `render` gives at ``/metrics``; other paths are empty, as in Triton."""

    def __init__(
        self,
        render: Callable[[], bytes | Awaitable[bytes]],
        content_type: str,
        address: str,
        port: int,
        tasks: asyncio.TaskGroup,
        reuse_port: bool = False,
    ) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._address = address
        self._port = port
        self._tasks = tasks
        self._reuse_port = reuse_port
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        place = (self._address, self._port)
        listening = socket.create_server(place, family=family, backlog=128, reuse_port=self._reuse_port)
        config = uvicorn.Config(
            self._app, interface="asgi3", lifespan="off", log_config=None, access_log=False, ws="none"
        )
        self._server = _Uvicorn(config)
        self._serving = self._tasks.create_task(self._server.serve(sockets=[listening]))
        port: int = listening.getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def _app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            return
        rendered = self._render() if scope["path"] == "/metrics" else b""
        body = rendered if isinstance(rendered, bytes) else await rendered
        headers = [(b"content-type", self._content_type), (b"vary", b"accept-encoding")]
        accepted = b", ".join(value for name, value in scope["headers"] if name == b"accept-encoding")
        encoding = compression.choose(accepted.decode("latin-1")) if body else None
        if encoding is not None:
            # The page of a hundred models is a megabyte of text that hardly differs from line to line.
            body = await on_thread(compression.encode, [body], encoding)
            headers.append((b"content-encoding", encoding.encode()))
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class _Uvicorn(uvicorn.Server):
    """Signals are the application's business, not a listener's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

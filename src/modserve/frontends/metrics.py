"""The metrics port: a listener of its own, which can be kept inside where the others are open to clients."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from modserve.frontends import browsers
from modserve.frontends.offload import on_thread
from modserve.protocol import compression
from modserve.protocol.accept import weights

_WHERE = b"The metrics of this server are at /metrics, for Prometheus.\n"
_OPENMETRICS = "application/openmetrics-text"


class OpenMetrics(NamedTuple):
    """The page in the format of OpenMetrics, for clients that take it."""

    render: Callable[[], Awaitable[bytes]]
    content_type: str
    preferred: Callable[[], bool]
    """Whether it has more to show than the usual one. Then clients that take either get it."""


def takes_openmetrics(accept: str, preferred: bool) -> bool:
    """By a request's Accept header. Prometheus names both formats, this one first.

    The names of Triton's counters are not those that OpenMetrics has for counters: it says nothing of their kind, which
    clients that take both would lose for nothing.
    """
    by_type = weights(accept)
    own, usual = by_type.get(_OPENMETRICS, 0.0), max(by_type.get("text/plain", 0.0), by_type.get("*/*", 0.0))
    return own > 0 and (usual == 0 or (preferred and own >= usual))


class MetricsListener:
    """Serves what `render` gives at ``/metrics``; ``/`` says so, and other paths are empty, as in Triton."""

    def __init__(
        self,
        render: Callable[[], bytes | Awaitable[bytes]],
        content_type: str,
        address: str,
        port: int,
        tasks: asyncio.TaskGroup,
        reuse_port: bool = False,
        openmetrics: OpenMetrics | None = None,
        allow_host: frozenset[str] = frozenset(),
    ) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._address = address
        self._port = port
        self._tasks = tasks
        self._reuse_port = reuse_port
        self._openmetrics = openmetrics
        self._allow_host = allow_host | {address}
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
        refusal = browsers.name_refusal(_header(scope, b"host").encode("latin-1"), _marks(scope), self._allow_host)
        if refusal:
            await _respond(send, 403, [(b"content-type", b"text/plain; charset=utf-8")], refusal.encode())
            return
        body, kind = _WHERE if scope["path"] == "/" else b"", self._content_type
        if scope["path"] == "/metrics":
            other = self._openmetrics
            if other is not None and takes_openmetrics(_header(scope, b"accept"), other.preferred()):
                body, kind = await other.render(), other.content_type.encode()
            else:
                rendered = self._render()
                body = rendered if isinstance(rendered, bytes) else await rendered
        headers = [(b"content-type", kind), (b"vary", b"accept, accept-encoding")]
        encoding = compression.choose(_header(scope, b"accept-encoding")) if body else None
        if encoding is not None:
            # The page of a hundred models is a megabyte of text that hardly differs from line to line.
            body = await on_thread(compression.encode, [body], encoding)
            headers.append((b"content-encoding", encoding.encode()))
        await _respond(send, 200, headers, body)


async def _respond(send: ASGISendCallable, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _marks(scope: HTTPScope) -> dict[bytes, bytes]:
    return {name: value for name, value in scope["headers"] if name in browsers.MARKS}


def _header(scope: HTTPScope, name: bytes) -> str:
    return b", ".join(value for header, value in scope["headers"] if header == name).decode("latin-1")


class _Uvicorn(uvicorn.Server):
    """Signals are the application's business, not a listener's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

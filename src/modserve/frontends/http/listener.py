"""The HTTP port: opens, stops accepting, waits for what is under way."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from modserve.frontends.certificates import Certificates
from modserve.server import Server
from modserve.settings import HttpSettings

from .connection import Connection
from .rest import create_app
from .site import Site
from .streams import Streams

_HANDSHAKE = 20.0
"""Seconds a client may take to agree on TLS."""

_FAREWELL = 2.0
"""Seconds a client may take to say good-bye over TLS."""

_FLUSH = 1.0
"""Seconds for answers on their way when the port closes."""

_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""The system asks a silent client after so many seconds whether it is there, then so often, and gives up after so many
questions without an answer: a client that has vanished costs nothing after two minutes."""


class HttpListener:
    """Serves `server` on one port. `tasks` is the parent of the application's tasks."""

    def __init__(
        self, server: Server, address: str, port: int, options: HttpSettings, tasks: asyncio.TaskGroup
    ) -> None:
        self._server = server
        self._address = address
        self._port = port
        self._options = options
        self._tasks = tasks
        self._site: Site | None = None
        self._streams: Streams | None = None
        self._socket: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return 0 if self._site is None else len(self._site.connections)

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError, or CertificateError."""
        loop = asyncio.get_running_loop()
        app = create_app(self._server, self._options)
        self._streams = app.state.streams
        site = self._site = Site(self._server, app, self._tasks, loop, self._options)
        factory: Callable[[], Connection] = lambda: Connection(site)  # noqa: E731
        tls: dict[str, Any] = {}
        if self._options.tls is not None:
            context = Certificates(self._options.tls).server_context()
            tls = {"ssl": context, "ssl_handshake_timeout": _HANDSHAKE, "ssl_shutdown_timeout": _FAREWELL}
        self._socket = await loop.create_server(
            factory, self._address, self._port, backlog=2048, reuse_port=self._options.reuse_port or None, **tls
        )
        for listening in self._socket.sockets:
            _keep_alive(listening)
        site.start_ticking()
        port: int = self._socket.sockets[0].getsockname()[1]
        return port

    def stop_accepting(self) -> None:
        """Take no new connections; those there are answered and then closed."""
        if self._socket is not None:
            self._socket.close()
        if self._site is not None:
            self._site.closing = True
            for connection in list(self._site.connections):
                connection.close_when_idle()

    async def close(self) -> None:
        """Stop accepting, end streams, give what has been written a moment to leave, and close what is left."""
        self.stop_accepting()
        if self._streams is not None:
            self._streams.stop()
        site = self._site
        if site is None:
            return
        try:
            async with asyncio.timeout(_FLUSH):
                await site.idle.wait()
        except TimeoutError:
            for connection in list(site.connections):
                connection.abort()
            await site.idle.wait()
        finally:
            site.stop_ticking()


def _keep_alive(listening: socket.socket) -> None:
    """Let the system look after silent clients of all connections, which inherit it from the port's socket."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):  # where it is missing, the system's own times hold
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

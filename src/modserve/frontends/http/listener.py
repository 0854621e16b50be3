"""The HTTP port: opens, stops accepting, waits for what is under way."""

import asyncio
from collections.abc import Callable

from modserve.server import Server

from .connection import Connection
from .options import HttpOptions
from .rest import create_app
from .site import Site

_FLUSH = 1.0
"""Seconds for answers on their way when the port closes."""


class HttpListener:
    """Serves `server` on one port. `tasks` is the parent of the application's tasks."""

    def __init__(self, server: Server, address: str, port: int, options: HttpOptions, tasks: asyncio.TaskGroup) -> None:
        self._server = server
        self._address = address
        self._port = port
        self._options = options
        self._tasks = tasks
        self._site: Site | None = None
        self._socket: asyncio.Server | None = None

    async def start(self) -> int:
        """Open the port and return its number. Raises OSError."""
        loop = asyncio.get_running_loop()
        app = create_app(self._server, self._options)
        site = self._site = Site(self._server, app, self._tasks, loop, self._options)
        factory: Callable[[], Connection] = lambda: Connection(site)  # noqa: E731
        self._socket = await loop.create_server(factory, self._address, self._port, backlog=2048)
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
        """Stop accepting, give answers that have been written a moment to leave, and close what is left."""
        self.stop_accepting()
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

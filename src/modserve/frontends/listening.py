"""What every port of ours does alike: it opens and closes, has the times of TLS, and the system looks after clients."""

import asyncio
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from modserve.core.runtime import unix_socket

HANDSHAKE: Final = 20.0
"""Seconds a client may take to agree on TLS."""

FAREWELL: Final = 2.0
"""Seconds a client may take to close TLS."""

_BACKLOG: Final = 2048

_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""After so many seconds the system probes a silent client, then at this interval, and gives up after so many probes
without a reply: a client that has vanished costs nothing after two minutes."""

_OWN_CLEANUP: Final[Mapping[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Event loops would remove a file that other workers still serve."""


class ListeningSocket:
    """Connections come here until it is closed. `port` is 0 for a Unix socket."""

    def __init__(self, server: asyncio.Server, port: int, file: unix_socket.SocketFile | None = None) -> None:
        self.port = port
        self._server = server
        self._file = file

    def close(self) -> None:
        """Take no new connections. May be called again."""
        if self._file is not None:
            self._file.remove()
        self._server.close()


async def listen(
    protocol: Any, address: str, port: int, reuse_port: bool, tls: Mapping[str, Any] | None = None
) -> ListeningSocket:
    """Open a host's port, or a Unix socket (``unix:PATH``). `protocol` makes one for each connection. Raises OSError.

    An inherited socket (``fd@NUMBER``) stays open for other workers, and so does its file.
    """
    loop, tls = asyncio.get_running_loop(), tls or {}
    if unix_socket.path_of(address):
        opened = unix_socket.opened(address, _BACKLOG)
        server = await loop.create_unix_server(protocol, sock=opened, backlog=_BACKLOG, **_OWN_CLEANUP, **tls)
        own = address.startswith(unix_socket.PREFIX)
        return ListeningSocket(server, 0, unix_socket.SocketFile(opened) if own else None)
    server = await loop.create_server(protocol, address, port, backlog=_BACKLOG, reuse_port=reuse_port or None, **tls)
    for listening in server.sockets:
        keep_alive(listening)
    return ListeningSocket(server, server.sockets[0].getsockname()[1])


def keep_alive(listening: socket.socket) -> None:
    """Let the system probe the silent clients of all connections, which inherit this from the port's socket."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):  # where it is missing, the system's own times hold
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def peer_of(transport: asyncio.BaseTransport) -> object:
    """The client's address as a socket has it; a word for the nameless ones of Unix sockets."""
    name: object = transport.get_extra_info("peername")
    return unix_socket.PEER if name == "" else name

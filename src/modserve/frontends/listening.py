"""Listening sockets of all ports: opening and closing, TLS time limits, and keep-alive probes."""

import array
import asyncio
import os
import socket
import struct
import sys
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from modserve.core.runtime import unix_socket

HANDSHAKE: Final = 20.0
"""Seconds allowed for the TLS handshake."""

FAREWELL: Final = 2.0
"""Seconds allowed for closing TLS."""

_BACKLOG: Final = 2048

_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Seconds of silence before the first probe, interval of the probes, and number of unanswered probes that close the
connection: a vanished client costs nothing after two minutes."""

_OWN_CLEANUP: Final[Mapping[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Keeps event loops from removing a socket file that other workers still serve."""


_HALF_OPEN: Final = 0.05
"""Seconds for connection attempts under way when a port closes: more than a round trip within a data centre."""

_AGREEMENT: Final = 1.0
"""Seconds for TLS handshakes under way when a port closes."""

_POLL_INTERVAL: Final = 0.005
"""Seconds between checks of these handshakes."""

_TURNS: Final = 5
"""Turns of the event loop to wait, more than it takes to serve accepted connections."""

_SO_ATTACH_FILTER: Final = 26
"""Number from Linux's headers; Python has no name for it."""

_ATTEMPTS: Final = struct.pack(
    "HBBI" * 4,
    *(0x30, 0, 0, 13),  # the byte with TCP's flags
    *(0x45, 0, 1, 0x02),  # SYN?
    *(0x06, 0, 0, 0),  # then drop the packet
    *(0x06, 0, 0, 0xFFFFFFFF),  # else keep all of it
)
"""Packet filter that drops connection attempts. Connections inherit it and are not affected."""


class _Handshake(asyncio.Protocol):
    """Placeholder for a connection during its TLS handshake; dropped if that fails."""

    def __init__(self, protocol: Any, handshakes: "weakref.WeakSet[_Handshake]") -> None:
        self._protocol = protocol()
        handshakes.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made: Any = transport
        made.set_protocol(self._protocol)
        protocol, self._protocol = self._protocol, None
        protocol.connection_made(transport)

    @property
    def pending(self) -> bool:
        return self._protocol is not None


class ListeningSocket:
    """A socket that accepts connections until it is closed. `port` is 0 for a Unix socket."""

    def __init__(
        self,
        server: asyncio.Server,
        port: int,
        protocol: Any,
        tls: Mapping[str, Any],
        file: unix_socket.SocketFile | None = None,
        handshakes: Collection[_Handshake] = (),
    ) -> None:
        self.port = port
        self._handshakes = handshakes
        self._server = server
        self._protocol = protocol
        self._tls = tls
        self._file = file
        self._closed = False

    async def accept(self) -> None:
        """Accept connections from now on. Idempotent."""
        if not self._closed:
            await self._server.start_serving()

    async def close(self) -> None:
        """Accept no new connections, except all that clients already consider open. Idempotent.

        The system resets connections in the backlog of a closed socket. Therefore new attempts are dropped first; their
        clients repeat them until they are refused, or reach another process at the port.
        """
        if self._closed:
            return
        self._closed = True
        if self._file is not None:
            self._file.remove()
        waiting = [socket.socket(fileno=os.dup(each.fileno())) for each in self._server.sockets]
        last: list[socket.socket] = []
        try:
            for each in waiting:
                _drop_attempts(each)
            await asyncio.sleep(_HALF_OPEN)
        finally:
            self._server.close()
            for each in waiting:
                last += _accept_waiting(each)
                each.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_AGREEMENT):
                await asyncio.gather(*map(self._take, last))
                while any(each.pending for each in self._handshakes):  # noqa: ASYNC110 - some fail unheard
                    await asyncio.sleep(_POLL_INTERVAL)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def _take(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # the client has disconnected, or the handshake failed
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, accepted, **self._tls)


def _drop_attempts(listening: socket.socket) -> None:
    """Make the system ignore connection attempts. No effect except on Linux."""
    if listening.family != socket.AF_UNIX and sys.platform == "linux":
        program = array.array("B", _ATTEMPTS)
        with suppress(OSError):
            pointer = struct.pack("HP", len(_ATTEMPTS) // 8, program.buffer_info()[0])
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _accept_waiting(listening: socket.socket) -> list[socket.socket]:
    """Return the connections in the backlog. A Unix socket shared with other processes may always have more."""
    accepted: list[socket.socket] = []
    listening.setblocking(False)
    with suppress(OSError):
        while len(accepted) < _BACKLOG:
            connection, _ = listening.accept()
            connection.setblocking(False)
            accepted.append(connection)
    return accepted


async def listen(
    protocol: Any,
    address: str,
    port: int,
    reuse_port: bool,
    tls: Mapping[str, Any] | None = None,
    accepting: bool = True,
) -> ListeningSocket:
    """Open a host's port or a Unix socket (``unix:PATH``). `protocol` creates one protocol per connection. Raises
    OSError.

    Without `accepting`, the port is reserved, and accepts connections only after `ListeningSocket.accept`.
    An inherited socket (``fd@NUMBER``) stays open for other workers, and so does its file.
    """
    loop, tls = asyncio.get_running_loop(), tls or {}
    handshakes: weakref.WeakSet[_Handshake] = weakref.WeakSet()
    if tls:
        protocol = partial(_Handshake, protocol, handshakes)
    if unix_socket.path_of(address):
        opened = unix_socket.open_listener(address, _BACKLOG)
        server = await loop.create_unix_server(protocol, sock=opened, backlog=_BACKLOG, **_OWN_CLEANUP, **tls)
        own = address.startswith(unix_socket.PREFIX)
        file = unix_socket.SocketFile(opened) if own else None
        return ListeningSocket(server, 0, protocol, tls, file, handshakes)
    how: Any = {"backlog": _BACKLOG, "reuse_port": reuse_port or None, "start_serving": accepting, **tls}
    server = await loop.create_server(protocol, address, port, **how)
    for listening in server.sockets:
        keep_alive(listening)
    return ListeningSocket(server, server.sockets[0].getsockname()[1], protocol, tls, None, handshakes)


def keep_alive(listening: socket.socket) -> None:
    """Enable keep-alive probes; all connections inherit this from the port's socket."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):  # elsewhere, the system's defaults apply
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def peer_of(transport: asyncio.BaseTransport) -> object:
    """Return the client's address in socket format; a placeholder for clients of Unix sockets, which have none."""
    name: object = transport.get_extra_info("peername")
    return unix_socket.PEER if name == "" else name

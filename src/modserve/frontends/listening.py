"""What every port of ours does alike: the times of TLS, and the system's own look after silent clients."""

import socket
from typing import Final

HANDSHAKE: Final = 20.0
"""Seconds a client may take to agree on TLS."""

FAREWELL: Final = 2.0
"""Seconds a client may take to close TLS."""

_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""After so many seconds the system probes a silent client, then at this interval, and gives up after so many probes
without a reply: a client that has vanished costs nothing after two minutes."""


def keep_alive(listening: socket.socket) -> None:
    """Let the system probe the silent clients of all connections, which inherit this from the port's socket."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):  # where it is missing, the system's own times hold
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""Limit for the unsent part of a response that the system keeps."""

import asyncio
import socket
from contextlib import suppress

_UNSENT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_KEPT = 64 * 1024
"""Bytes that the system keeps of a response in parts, besides bytes on their way. Otherwise it would take megabytes,
and a slow reader would look like one that does not read."""


def keep_little(transport: asyncio.Transport) -> None:
    """Let the system take no more of a response in parts than it sends on."""
    connected = transport.get_extra_info("socket")
    if connected is not None and _UNSENT is not None:
        with suppress(OSError):  # no TCP
            connected.setsockopt(socket.IPPROTO_TCP, _UNSENT, _KEPT)

"""Whether a client that sends no more is there to read."""

import asyncio
import socket

_LOOK = 0.1
"""Seconds between two looks."""


def look_after(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Abort when what was written has been refused. The event loop would not notice: it reads no more."""
    if transport.is_closing():
        return
    opened: socket.socket | None = transport.get_extra_info("socket")
    if opened is not None and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        transport.abort()
    else:
        loop.call_later(_LOOK, look_after, transport, loop)

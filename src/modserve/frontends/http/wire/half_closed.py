"""Connections of which one direction has ended: clients that send no more, and clients that are told no more."""

import asyncio
import socket

_LOOK = 0.1
"""Seconds between two looks."""

_LINGER = 2.0
"""Seconds in which a refused client may read why, before the connection closes."""


def close_later(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Write no more, and close a little later.

    Closing with unread data would reset the connection, and the client might not see the response.
    """
    if transport.can_write_eof():
        transport.write_eof()
    loop.call_later(_LINGER, transport.close)


def look_after(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Abort when what was written has been refused. The event loop would not notice: it reads no more."""
    if transport.is_closing():
        return
    opened: socket.socket | None = transport.get_extra_info("socket")
    if opened is not None and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        transport.abort()
    else:
        loop.call_later(_LOOK, look_after, transport, loop)

"""The ends of connections: clients that send no more, clients that are told no more, and what has come by then."""

import asyncio
import select
import socket

_POLL_INTERVAL = 0.1
"""Seconds between checks of a connection that is closing."""

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
        loop.call_later(_POLL_INTERVAL, look_after, transport, loop)


def has_unread(transport: asyncio.Transport | None) -> bool:
    """True if the system has unread bytes from the client, or its end."""
    opened: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
    if opened is None or opened.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(opened.fileno(), select.POLLIN)
    return len(poll.poll(0)) > 0

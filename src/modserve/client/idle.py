"""Connections that are kept for the next call."""

import select
from typing import Protocol


class Descriptor(Protocol):
    """A socket, of whichever kind."""

    def fileno(self) -> int: ...


def has_ended(sock: Descriptor | None) -> bool:
    """True if the server has closed an idle connection, or sent something unrequested."""
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))

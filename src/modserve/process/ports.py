"""Checks whether a port can be opened, and explains why not."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

from modserve.resources.port_owner import owner


class PortError(Exception):
    """A port cannot be opened; the text says which, why, and which option changes that."""


_ADVICE = {
    errno.EADDRINUSE: "the port is in use{1}; '--{0}-port' chooses another one",
    errno.EACCES: "this user may not open it; '--{0}-port' chooses another one",
    errno.EADDRNOTAVAIL: "this machine does not have that address; '--{0}-address' chooses another one",
}


@contextlib.contextmanager
def opening(name: str, address: str, port: int) -> Iterator[None]:
    """Raises PortError for the OSError with which a port of the front end `name` is refused."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0) or f"{error}; see '--{{0}}-address' and '--{{0}}-port'"
        place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        user = owner(port) if error.errno == errno.EADDRINUSE else ""
        by = f" by {user}" if user else ", perhaps by another server"
        raise PortError(f"cannot open the {name} port {place}: {advice.format(name.lower(), by)}") from error


async def probe_port(address: str, port: int) -> None:
    """See whether a port can be opened for listening, without doing so. Raises OSError.

    Of a name's addresses those that this machine does not have may be left out, as long as one can be opened.
    """
    if port == 0:
        return
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    failures = []
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
            failures.append(error)
    if len(failures) == len(places):
        raise failures[0]

"""Checks whether ports can be opened, and explains why not."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modserve.resources.port_owner import owner


@dataclass(frozen=True, slots=True)
class RefusedPort:
    """The port of the front end `name` that cannot be opened. `user` names the process that has it, if known."""

    name: str
    address: str
    port: int
    text: str
    in_use: bool = False
    user: str = ""

    @property
    def place(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def option(self) -> str:
        return f"--{self.name.lower()}-port"


class PortError(Exception):
    """Ports cannot be opened; the text says which, why, and which options change that."""

    def __init__(self, refusals: Sequence[RefusedPort]) -> None:
        super().__init__(_text(refusals))
        self.refusals = tuple(refusals)


def _text(refusals: Sequence[RefusedPort]) -> str:
    first, *others = refusals
    if others and all(each.in_use and each.user == first.user for each in refusals):
        places = listed([f"{each.place} ({each.name})" for each in refusals])
        options = listed([f"'{each.option}'" for each in refusals])
        return f"cannot open the ports {places}: they are in use{_by(first.user)}; {options} choose others"
    return "; ".join(f"cannot open the {each.name} port {each.place}: {each.text}" for each in refusals)


def listed(words: Sequence[str]) -> str:
    """One or more words as a list in a sentence."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _by(user: str) -> str:
    return f" by {user}" if user else ", perhaps by another server"


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
        in_use = error.errno == errno.EADDRINUSE
        user = owner(port) if in_use else ""
        text = advice.format(name.lower(), _by(user))
        raise PortError([RefusedPort(name, address, port, text, in_use, user)]) from error


class PortOpenings:
    """Opens the ports of several front ends, so that one PortError names all that are refused."""

    def __init__(self) -> None:
        self._refusals: list[RefusedPort] = []

    @property
    def failed(self) -> bool:
        """Whether a port was refused: the others are only probed from then on."""
        return bool(self._refusals)

    @contextlib.contextmanager
    def opening(self, name: str, address: str, port: int) -> Iterator[None]:
        """As the function of that name, but the error comes from `end`."""
        try:
            with opening(name, address, port):
                yield
        except PortError as error:
            self._refusals += error.refusals

    def end(self) -> None:
        """Raises PortError if a port was refused."""
        if self._refusals:
            raise PortError(self._refusals)


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

"""Checks whether ports can be opened, and explains failures."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modserve.core.runtime import unix_socket
from modserve.resources.posix import owner


@dataclass(frozen=True, slots=True)
class RefusedPort:
    """A port or Unix socket of the front end `name` that cannot be opened. `user`: the process using it, if known."""

    name: str
    address: str
    port: int
    text: str
    in_use: bool = False
    user: str = ""

    @property
    def place(self) -> str:
        if unix_socket.path_of(self.address):
            return unix_socket.format_address(self.address)
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def option(self) -> str:
        return _option(self.name, self.address)

    def option_with(self, port: int) -> str:
        """Return the option that chooses another port."""
        place = RefusedPort(self.name, self.address, port, "").place
        return f"{self.option}={place if self.option.endswith('-address') else port}"

    @property
    def sentence(self) -> str:
        kind = "socket" if unix_socket.path_of(self.address) else "port"
        return f"cannot open the {self.name} {kind} {self.place}: {self.text}"


def _option(name: str, address: str) -> str:
    """Return the option that chooses another port or socket."""
    of_address = name == "admin" or unix_socket.path_of(address)
    return f"--{name.lower()}-{'address' if of_address else 'port'}"


class PortError(Exception):
    """Ports that cannot be opened; the text names them with reasons and the options that help."""

    def __init__(self, refusals: Sequence[RefusedPort]) -> None:
        super().__init__(_text(refusals))
        self.refusals = tuple(refusals)


def _text(refusals: Sequence[RefusedPort]) -> str:
    first, *others = refusals
    if others and all(each.in_use and each.user == first.user for each in refusals):
        places = join_words([f"{each.place} ({each.name})" for each in refusals])
        options = join_words([f"'{each.option}'" for each in refusals])
        return f"cannot open the ports {places}: they are in use{_by(first.user)}; {options} choose others"
    return "; ".join(each.sentence for each in refusals)


def join_words(words: Sequence[str]) -> str:
    """Return words as an enumeration in a sentence."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _by(user: str) -> str:
    return f" by {user}" if user else ", perhaps by another server"


_ADVICE = {
    errno.EADDRINUSE: "the port is in use{by}; '--{name}-port' chooses another one",
    errno.EACCES: "this user may not open it; '--{name}-port' chooses another one",
    errno.EADDRNOTAVAIL: "this machine does not have that address; '--{name}-address' chooses another one",
}
_NO_FILES = "this user may not make files in {directory}; '{option}' chooses another place"
_SOCKET_ADVICE = {
    errno.EADDRINUSE: "another server listens there; '{option}' chooses another place",
    errno.EEXIST: "there is something that is no socket; remove it, or '{option}' chooses another place",
    errno.ENOENT: "there is no directory {directory}; make it, or '{option}' chooses another place",
    errno.ENOTDIR: "{directory} is no directory; '{option}' chooses another place",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _NO_FILES),
}


@contextlib.contextmanager
def opening(name: str, address: str, port: int) -> Iterator[None]:
    """Convert the OSError of opening a port or Unix socket of the front end `name` to PortError."""
    try:
        yield
    except OSError as error:
        path, option = unix_socket.path_of(address), _option(name, address)
        number = error.errno or 0
        in_use = number == errno.EADDRINUSE and not path
        user = owner(port) if in_use else ""
        advice = (_SOCKET_ADVICE if path else _ADVICE).get(number) or "{error}; see '--{name}-address' and '{option}'"
        directory = os.path.dirname(path) or os.curdir
        words = {"name": name.lower(), "option": option, "by": _by(user), "directory": directory, "error": error}
        text = advice.format(**words).replace("--admin-port", option)
        raise PortError([RefusedPort(name, address, port, text, in_use, user)]) from error


class PortOpenings:
    """Opens the ports of several front ends; a single PortError names all refused ones."""

    def __init__(self) -> None:
        self._refusals: list[RefusedPort] = []

    @property
    def failed(self) -> bool:
        """True if a port was refused; the others are then only probed."""
        return bool(self._refusals)

    @contextlib.contextmanager
    def opening(self, name: str, address: str, port: int) -> Iterator[None]:
        """Open a port like the function `opening`, but defer the error to `end`."""
        try:
            with opening(name, address, port):
                yield
        except PortError as error:
            self._refusals += error.refusals

    def end(self) -> None:
        """Raise PortError if a port was refused."""
        if self._refusals:
            raise PortError(self._refusals)


async def probe_port(address: str, port: int) -> None:
    """Check that a port or Unix socket can be opened for listening, without doing so. Raises OSError.

    Addresses of a host name that this machine does not have are ignored if another one works.
    """
    if path := unix_socket.path_of(address):
        unix_socket.probe(path)
        return
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

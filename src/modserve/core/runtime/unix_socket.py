"""Unix sockets of servers, for clients on the same machine.

A socket's file outlives its process. The next server replaces the file unless its server is still running; the
directory is locked during the check and the creation.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

PREFIX: Final = "unix:"
_INHERITED: Final = "fd@"
LONGEST: Final = 107
"""System limit of a path, in bytes."""
MODE: Final = 0o660
"""Mode of the socket file: connecting requires write access. The directory's permissions apply as well."""
PEER: Final = "unix"
"""Stand-in for the address of clients of a Unix socket."""


def path_of(address: str) -> str:
    """Return the path of ``unix:PATH``, ``unix:///PATH`` or the socket in ``fd@NUMBER``; empty for other addresses."""
    if address.startswith(PREFIX):
        path = address.removeprefix(PREFIX)
        return path[2:] if path.startswith("///") else path
    if not address.startswith(_INHERITED):
        return ""
    with closing(socket.socket(fileno=os.dup(_descriptor(address)))) as inherited:
        return str(inherited.getsockname())


def is_socket(address: str) -> bool:
    """Return True for the address of a Unix socket or an inherited socket, False for a host."""
    return address.startswith((PREFIX, _INHERITED))


def format_address(address: str) -> str:
    """Return the address in its usual notation."""
    path = path_of(address)
    return f"{PREFIX}{path}" if path else address


def format_inherited(listening: socket.socket) -> str:
    """Return the address for a child process that inherits a listening socket."""
    return f"{_INHERITED}{listening.fileno()}"


def _descriptor(address: str) -> int:
    return int(address.removeprefix(_INHERITED))


def check(address: str) -> None:
    """Check an address. Raises ValueError for an impossible path."""
    if not address.startswith(PREFIX):
        return
    path = path_of(address)
    if not path or "\0" in path:
        raise ValueError(f"'{address}' has no path; expected unix:PATH")
    length = len(os.fsencode(path))
    if length > LONGEST:
        raise ValueError(f"the path of '{address}' has {length} bytes, and those of Unix sockets at most {LONGEST}")


def open_listener(address: str, backlog: int) -> socket.socket:
    """Return the inherited listening socket, or a new one at the path.

    Raises OSError: EADDRINUSE if a running server uses the path, EEXIST if the file is not a socket.
    """
    if address.startswith(_INHERITED):
        inherited = socket.socket(fileno=_descriptor(address))
        inherited.set_inheritable(False)
        return inherited
    return listening(path_of(address), backlog)


def listening(path: str, backlog: int) -> socket.socket:
    """Return a new socket that listens at `path`, replacing a stale one. Raises the errors of `open_listener`."""
    with _lock(os.path.dirname(path) or "."):
        _remove_stale(path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(path)
            os.chmod(path, MODE)  # connections are possible only after `listen`
            made.listen(backlog)
        except BaseException:
            made.close()
            raise
    return made


def probe(path: str) -> None:
    """Check whether `listening` would succeed. Raises the same OSError. Removes a stale file."""
    directory = os.path.dirname(path) or "."
    with _lock(directory):
        _remove_stale(path)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)


@contextmanager
def _lock(directory: str) -> Iterator[None]:
    """Lock the directory against concurrent checks by other servers. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:  # the backlog of a running server is full
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)


class SocketFile:
    """File of a listening socket, removed once unless it was replaced."""

    def __init__(self, listening: socket.socket) -> None:
        self._path = str(listening.getsockname())
        self._identity = self._current()

    def remove(self) -> None:
        identity, self._identity = self._identity, None
        if identity is not None and identity == self._current():
            with suppress(OSError):
                os.unlink(self._path)

    def _current(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

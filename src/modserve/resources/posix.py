"""POSIX: shared memory that another process made, the limit on open files, and owners of ports.

The number of connections that the limit on open files allows.

The process that has a port of this machine, from Linux's /proc. Only root sees the processes of other users.
"""

import errno
import logging
import mmap
import os
import resource
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from modserve.core.errors import invalid, unavailable
from modserve.core.tensors.shared_memory import SystemRegion
from modserve.core.tensors.tensor import Buffer

_log = logging.getLogger(__name__)

_LEAST_LEFT = 32
"""Descriptors that are always kept for later: ports, gRPC, metrics, models, the log."""

_OPEN = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"


def connections(requested: int) -> int:
    """Return the limit on open connections: `requested` (0: as many as possible) if there are enough descriptors.

    Raises the process's limit on open files to its hard limit. Logs a warning if there are too few descriptors for the
    `requested` connections.
    """
    possible = for_connections(raise_limit(), _open_now())
    if requested > possible:
        _log.warning(
            "the limit on open files allows only %d HTTP connections, not %d: raise it (ulimit -n), or lower "
            "--http-max-connections",
            possible,
            requested,
        )
    return min(requested, possible) if requested else possible


def for_connections(limit: int, open_now: int) -> int:
    """Return how many of at most `limit` open files may be connections. A quarter is kept for other uses."""
    left = limit - open_now
    return max(1, left - max(_LEAST_LEFT, min(left // 4, 1024)))


def raise_limit() -> int:
    """The number of files that the process may have open, after raising it to the hard limit if the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems have a second, lower limit
            hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _open_now() -> int:
    try:
        return len(os.listdir(_OPEN))
    except OSError:
        return 64


_PROC = Path("/proc")
_LISTENING = "0A"
"""The state of a socket that listens, as in the kernel's ``tcp_states.h``."""
_LONGEST = 100


def owner(port: int, proc: Path = _PROC) -> str:
    """The process that listens on a TCP port, such as ``process 4711 (python -m modserve)``; empty if unknown."""
    process = listener(port, proc)
    return f"process {process.name} ({_command(process)})" if process is not None else ""


def listener(port: int, proc: Path = _PROC) -> Path | None:
    """Return the folder in /proc of the process that listens on a TCP port; None if none does, or another user's."""
    sockets = set(_listening(port, proc))
    if not sockets:
        return None
    processes = sorted(_processes(proc), key=lambda each: int(each.name))
    return next((process for process in processes if sockets & set(_open_sockets(process))), None)


def _listening(port: int, proc: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _processes(proc: Path) -> Iterator[Path]:
    try:
        yield from (each for each in proc.iterdir() if each.name.isdecimal())
    except OSError:
        return


def _open_sockets(process: Path) -> Iterator[str]:
    try:
        files = list((process / "fd").iterdir())
    except OSError:  # of another user, or gone
        return
    for file in files:
        try:
            target = str(file.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _command(process: Path) -> str:
    """Name of the program. Its other words may be secrets, which do not belong into a log."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    shown = [words[0].rpartition("/")[2] or "?"]
    if shown[0].startswith("python"):
        shown += words[1:3] if words[1:2] == ["-m"] else [word for word in words[1:2] if not word.startswith("-")]
    return "".join(character if character.isprintable() else "?" for character in " ".join(shown))[:_LONGEST]


_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags that, like those of ``shm_open``, follow no links; and never wait."""

_TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class PosixMemory:
    """Implements `shared_memory.Memory`.

    A client that makes its memory smaller removes pages from the mapping, and touching them would end the process. So
    each access checks the size first.
    """

    def __init__(self, directory: Path, region: SystemRegion) -> None:
        """Raises INVALID_ARG for a key that names no shared memory, or too little of it."""
        self._region = region
        descriptor = _open(directory, region.key)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _cannot_open(region.key)
            # In this order: mmap must not see a client's numbers before they are checked.
            if region.offset < 0 or region.byte_size < 1 or region.offset + region.byte_size > status.st_size:
                raise invalid(f"failed to register shared memory region '{region.name}': invalid args")
            lead = region.offset % mmap.ALLOCATIONGRANULARITY
            try:
                self._map = mmap.mmap(descriptor, lead + region.byte_size, offset=region.offset - lead)
            except OSError as error:
                reason = error.strerror or "invalid args"
                raise unavailable(f"failed to register shared memory region '{region.name}': {reason}") from None
        finally:
            os.close(descriptor)
        self._view = memoryview(self._map)[lead:]

    def read(self, offset: int, size: int) -> Buffer:
        self._check(offset + size)
        return self._view[offset : offset + size].toreadonly()

    def write(self, offset: int, raw: Buffer) -> None:
        self._check(offset + len(raw))
        self._view[offset : offset + len(raw)] = raw

    def close(self) -> None:
        # The mapping itself ends with the last view of it: a cancelled request's tensors may still be read.
        self._view = memoryview(b"")
        del self._map

    def _check(self, end: int) -> None:
        """Raises INVALID_ARG unless the first `end` bytes of the region are still there."""
        size = self._map.size() - self._region.offset
        if end > size:
            raise invalid(
                f"shared memory region '{self._region.name}' was registered with {self._region.byte_size} bytes, but "
                f"'{self._region.key}' has been made smaller since and has {max(size, 0)} of them"
            )


def _open(directory: Path, key: str) -> int:
    """Return a descriptor of the memory that ``shm_open`` would open for this key. Slashes before it do not count."""
    name = key.lstrip("/")
    if name in ("", ".", "..") or "/" in name:
        raise _cannot_open(key)
    try:
        return os.open(directory / name, _FLAGS)
    except OSError as error:
        if error.errno in _TOO_MANY_FILES:
            raise unavailable(f"Unable to open shared memory region: '{key}': {error.strerror}") from None
        raise _cannot_open(key) from None
    except ValueError:  # a null character, or a lone surrogate
        raise _cannot_open(key) from None


def _cannot_open(key: str) -> Exception:
    return invalid(f"Unable to open shared memory region: '{key}'")

"""POSIX: shared memory of other processes, the limit on open files, and owners of ports.

Number of connections within the limit on open files.

Owner of a port on this machine, from Linux's /proc. Only root sees the processes of other users.
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
"""Minimum number of descriptors reserved for later use: ports, gRPC, metrics, models, the log."""

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
    """Return how many of `limit` open files may be connections. A quarter is reserved for other uses."""
    left = limit - open_now
    return max(1, left - max(_LEAST_LEFT, min(left // 4, 1024)))


def raise_limit() -> int:
    """Raise the limit on open files to the hard limit if the system allows, and return the limit."""
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
"""State of a listening socket in the kernel's ``tcp_states.h``."""
_LONGEST = 100


def owner(port: int, proc: Path = _PROC) -> str:
    """Return the process that listens on a TCP port: ``process 4711 (python -m modserve)``; empty if unknown."""
    process = listener(port, proc)
    return f"process {process.name} ({_command(process)})" if process is not None else ""


def listener(port: int, proc: Path = _PROC) -> Path | None:
    """Return the /proc directory of the process that listens on a TCP port; None if unknown or another user's."""
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
    except OSError:  # another user's process, or ended
        return
    for file in files:
        try:
            target = str(file.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _command(process: Path) -> str:
    """Return the program's name only, as other words may be secrets, which must not be logged."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    shown = [words[0].rpartition("/")[2] or "?"]
    if shown[0].startswith("python"):
        shown += words[1:3] if words[1:2] == ["-m"] else [word for word in words[1:2] if not word.startswith("-")]
    return "".join(character if character.isprintable() else "?" for character in " ".join(shown))[:_LONGEST]


_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Open flags that, as in ``shm_open``, follow no links, and never block."""

_TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class PosixMemory:
    """Implements `shared_memory.Memory`.

    A client that shrinks its memory removes pages from the mapping, and an access to them would end the process. So
    each access checks the size first.
    """

    def __init__(self, directory: Path, region: SystemRegion) -> None:
        """Map the region. Raises INVALID_ARG for an unknown key, or too little memory."""
        self._region = region
        descriptor = _open(directory, region.key)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _cannot_open(region.key)
            # In this order: a client's numbers are checked before they reach mmap.
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
        # The mapping ends with its last view: tensors of a cancelled request may still be read.
        self._view = memoryview(b"")
        del self._map

    def _check(self, end: int) -> None:
        """Raise INVALID_ARG unless the first `end` bytes of the region still exist."""
        size = self._map.size() - self._region.offset
        if end > size:
            raise invalid(
                f"shared memory region '{self._region.name}' was registered with {self._region.byte_size} bytes; "
                f"'{self._region.key}' has been made smaller since and has {max(size, 0)} of them"
            )


def _open(directory: Path, key: str) -> int:
    """Return a descriptor of the memory that ``shm_open`` opens for this key. Leading slashes are ignored."""
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

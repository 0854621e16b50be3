"""Opening of regular files only. Reading a pipe or a device in a repository may never end."""

import errno
import io
import os
import stat
from pathlib import Path
from typing import Final

_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a file for reading. Raises OSError for everything but a regular file. Never waits."""
    try:  # O_NONBLOCK: opening a pipe would wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            check_regular(path)
        raise
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path) -> bytes:
    """Read a regular file. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a regular file as UTF-8, with line breaks as ``\\n``. Raises OSError and UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: str | Path) -> None:
    """Raise OSError unless the path, which another library will open, is a regular file or a folder."""
    _check(os.stat(path).st_mode, path, may_be_folder=True)


def fault(mode: int) -> str:
    """Explain why a file of this `st_mode` must not be opened; empty for a regular file or a folder."""
    kind = next((name for holds, name in _KINDS if holds(mode)), "")
    return f"it is {kind}, expected a regular file" if kind else ""


def _check(mode: int, path: str | Path, *, may_be_folder: bool = False) -> None:
    if stat.S_ISDIR(mode) and not may_be_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if reason := fault(mode):
        raise OSError(errno.EINVAL, reason, str(path))

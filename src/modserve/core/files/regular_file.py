"""Opens files that somebody else puts there: only regular ones. Reading a pipe or a device may never end."""

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
    """The file, to be read. Raises OSError, also for what is no regular file; does not wait for anybody."""
    # A pipe that nobody writes to would otherwise hold who opens it.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody can open a socket
            check_regular(path)
        raise
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path) -> bytes:
    """The content of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: str | Path, errors: str = "strict") -> str:
    """The same as text in UTF-8, with line breaks as ``\\n``. Raises OSError and UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: str | Path) -> None:
    """For what another library opens by its path. Raises OSError for what is neither a regular file nor a folder."""
    _check(os.stat(path).st_mode, path, may_be_folder=True)


def fault(mode: int) -> str:
    """Why what has this mode, in the form of `os.stat`, must not be opened; empty for a regular file or a folder."""
    kind = next((name for holds, name in _KINDS if holds(mode)), "")
    return f"it is {kind}, expected a regular file" if kind else ""


def _check(mode: int, path: str | Path, *, may_be_folder: bool = False) -> None:
    if stat.S_ISDIR(mode) and not may_be_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if reason := fault(mode):
        raise OSError(errno.EINVAL, reason, str(path))

"""User's cache of files that backends can make again, named by the content they were made from."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from modserve.core.files import regular_file


def user_cache(name: str) -> Path | None:
    """Return the user's directory for files of one kind (XDG Base Directory Specification); None without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    return Path(base, "modserve", name) if os.path.isabs(base) else None


def directory_of(text: str | None, name: str) -> Path | None:
    """Return the directory of an option, by default `user_cache`; None for 'none', which keeps no files."""
    if text is None:
        return user_cache(name)
    return None if text in ("", "none") else Path(text)


def content_digest(root: Path, largest: int | None = None) -> str:
    """Return the digest of a file, or of all files below a directory with their names. Raises OSError.

    Of a file with more than `largest` bytes, its identity and the times of its last changes stand for the content: a
    copy of it has another digest.
    """
    total = hashlib.sha256()
    for path in _files(root):
        digest = file_digest(path, largest)
        total.update(f"{path.relative_to(root)}\0{digest}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def file_digest(path: Path, largest: int | None = None) -> str:
    """Return the `content_digest` of a file. Raises OSError."""
    with regular_file.open_regular(path) as file:
        status = os.fstat(file.fileno())
        if largest is not None and status.st_size > largest:
            # Not the device, which has another number after the next start of the machine.
            return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        return hashlib.file_digest(file, "sha256").hexdigest()  # reads in pieces


def _files(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    visited = set()
    for directory, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        real = os.path.realpath(directory)
        if real in visited:  # a link to a folder above it
            folders.clear()
            continue
        visited.add(real)
        yield from (path for name in sorted(names) if (path := Path(directory, name)).is_file())

"""Model files that come with a load request: a repository that lives as long as what was loaded from it."""

import asyncio
import errno
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from modserve.core.errors import internal, invalid
from modserve.core.loading import DirectoryLease, Listing
from modserve.core.texts import is_unicode
from modserve.core.version import RolledBack

from .local import LocalRepository, Mark

MOST_PARTS = 64
MOST_PART_BYTES = 255
MOST_PATH_BYTES = 4096
_MOST_SHOWN = 100


class TemporaryRepository(LocalRepository):
    """Directory that is deleted when it is no longer held, neither by its maker nor by a fetched version."""

    def __init__(self, digests: Mapping[str, bytes] | None = None) -> None:
        """Make a directory. `digests` are the files', by path; without them each of these repositories is another."""
        self._digests = {} if digests is None else digests
        self._directory = tempfile.TemporaryDirectory(prefix="modserve-", ignore_cleanup_errors=True)
        self._holders = 1
        super().__init__(Path(self._directory.name))

    def _identity(self, path: Path, below: str, mark: Mark, inode: int) -> object:
        if not mark:
            return "override", below
        return "override", below, self._digests.get(below, (path, mark, inode))

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        self._holders += 1
        return DirectoryLease(listing.path, self.release)

    async def keep_rollback(self, listing: Listing, version: int, rolled_back: RolledBack | None) -> str:
        return "" if rolled_back is None else "the files of the model came with a call, and a restart forgets them"

    async def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            await asyncio.to_thread(self.remove)

    def remove(self) -> None:
        """Delete the directory at once. Blocking."""
        self._directory.cleanup()


def check_model_name(name: str) -> None:
    """Check a name. Raises INVALID_ARG, with Triton's texts, if no directory in a repository can have it."""
    trimmed = name.strip()
    if not trimmed:
        raise invalid("Model name cannot be empty. Please enter a valid name to deploy.")
    if (size := len(_encode(name))) > MOST_PART_BYTES:
        raise invalid(
            f"invalid model name '{_format_text(name)}' of {size} bytes, at most {MOST_PART_BYTES} are allowed"
        )
    if not is_unicode(name):
        raise invalid(f"invalid model name '{name}', it has a lone surrogate, which is no character")
    if trimmed in (".", "..") or any(separator in name for separator in ("/", "\\", "\0")):
        raise invalid(f"invalid model name '{name}', model name must not contain path traversal characters")


def normalize(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files by path below the model's directory; Triton takes any path as one, whatever its beginning.

    Raises INVALID_ARG for a path that leaves that directory or names no file in it, for two that are the same file, and
    for one that is the directory of another.
    """
    contents: dict[str, bytes] = {}
    names: dict[PurePosixPath, str] = {}
    for name, content in files.items():
        _check_size(name)
        path = _below_the_model(name)
        if path in names:
            raise invalid(f"file overrides '{names[path]}' and '{name}' are the same file")
        names[path] = name
        contents[str(path)] = content
    for path, name in names.items():
        for above in path.parents:
            if above in names:
                raise invalid(f"file override '{names[above]}' is also a directory of file override '{name}'")
    return contents


def _below_the_model(name: str) -> PurePosixPath:
    """Return the path below the model's directory. Raises INVALID_ARG."""
    parts: list[str] = []
    for part in name.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if "\\" in name or "\0" in name or ".." in parts or name.rpartition("/")[2] in ("", ".", ".."):
        expected = "'<version>/<path>', the path of a file inside the model's directory"
        raise invalid(f"invalid path '{name}' of a file override: expected {expected}")
    return PurePosixPath(*parts)


def _check_size(path: str) -> None:
    """Check a path. Raises INVALID_ARG if no file system takes it, or it takes too long to walk."""
    what = f"invalid path '{_format_text(path)}' of a file override"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise invalid(f"{what}: it is not valid Unicode text") from None
    parts = path.split("/")
    longest = max(len(_encode(part)) for part in parts)
    for unit, count, most in (
        ("parts", len(parts), MOST_PARTS),
        ("bytes", size, MOST_PATH_BYTES),
        ("bytes in one of its parts", longest, MOST_PART_BYTES),
    ):
        if count > most:
            raise invalid(f"{what}: it has {count} {unit}, at most {most} are allowed")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _format_text(text: str) -> str:
    text = _encode(text).decode("utf-8", "replace")
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def write(name: str, files: Mapping[str, bytes]) -> TemporaryRepository:
    """Write a repository of a model's `files`, for the caller to release. Blocking. Raises INVALID_ARG or INTERNAL."""
    files = normalize(files)
    repository = None
    try:
        repository = TemporaryRepository({path: hashlib.sha256(content).digest() for path, content in files.items()})
        root = repository.path / name
        for folder in {root, *(root / os.path.dirname(path) for path in files)}:
            folder.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            (root / path).write_bytes(content)
    except OSError as error:
        if repository is not None:
            repository.remove()
        failure = invalid if error.errno == errno.ENAMETOOLONG else internal
        raise failure(
            f"failed to load '{name}', failed to poll from model repository: cannot write the files of the load "
            f"request: {os.strerror(error.errno or 0)}"
        ) from error
    return repository

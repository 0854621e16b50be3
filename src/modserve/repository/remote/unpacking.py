"""Reads archives, whoever made them: only plain files come out, under paths that stay below the repository."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, BinaryIO, NamedTuple, Protocol

from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.version import parse_directory

from .cache import DownloadCache
from .files import refusal, trick

_BLOCK_BYTES = 1 << 20
_MOST_ENTRIES = 100_000
_LEAST_LIMIT = 1 << 30
_MOST_TIMES = 100
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,  # bzip2's data, gzip's checksum
    EOFError,
    RuntimeError,  # an encrypted zip
    NotImplementedError,
)
"""What reading an archive raises that is damaged, or no archive."""


class ArchiveError(Exception):
    """An archive that cannot be used; the text says why."""


@dataclass(slots=True)
class Manifest:
    """What is in an archive, its contents in the cache."""

    files: list[tuple[str, int, str]] = field(default_factory=list)
    """Path below the repository, size in bytes and SHA-256."""
    folders: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """By model, why it cannot be used."""


class _Entry(NamedTuple):
    path: str
    is_folder: bool
    link: bool
    """Whether it is no plain file: a link, a device."""
    file: IO[bytes] | None


def unpack(archive: BinaryIO, size: int, name: str, cache: DownloadCache) -> Manifest:
    """Take the contents of an archive of `size` bytes into the cache. Blocking. Raises ArchiveError, INTERNAL."""
    limit = max(_LEAST_LIMIT, _MOST_TIMES * size)
    manifest = Manifest()
    entries = _zip_entries(archive) if name.lower().endswith(".zip") else _tar_entries(archive, limit)
    total = 0
    for count, entry in enumerate(_readable(entries), 1):
        if count > _MOST_ENTRIES:
            raise ArchiveError(f"it has more than {_MOST_ENTRIES} entries")
        path = entry.path.removesuffix("/")
        while path.startswith("./"):
            path = path[2:]
        if path in ("", "."):
            continue
        model = path.partition("/")[0]
        if problem := trick(path):
            if trick(model):
                raise ArchiveError(f"{problem}, which leads out of it")
            manifest.problems.setdefault(model, refusal(problem))
        elif entry.is_folder:
            manifest.folders.append(path)
        elif entry.link or entry.file is None:
            manifest.problems.setdefault(model, f"'{path}' in the archive is a link or a device, not a file")
        else:
            digest, length = cache.add(_blocks(entry.file, limit - total))
            manifest.files.append((path, length, digest))
            total += length
    return _inside(manifest)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ArchiveError(f"it is damaged or not an archive of this kind: {error}") from error


def _readable(entries: Iterator[_Entry]) -> Iterator[_Entry]:
    while True:
        with _reading():
            entry = next(entries, None)
        if entry is None:
            return
        yield entry


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _blocks(file: _Readable, left: int) -> Iterator[bytes]:
    while True:
        with _reading():
            block = file.read(_BLOCK_BYTES)
        if not block:
            return
        left -= len(block)
        if left < 0:
            raise ArchiveError(f"it unpacks to more than {_MOST_TIMES} times its size")
        yield block


def _tar_entries(archive: BinaryIO, limit: int) -> Iterator[_Entry]:
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            yield _Entry(member.name, member.isdir(), not member.isreg(), file)
        # The checksum of all that is compressed stands behind the archive's own end.
        if tar.fileobj is not None:
            for _ in _blocks(tar.fileobj, limit):
                pass


def _zip_entries(archive: BinaryIO) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if info.is_dir():
                yield _Entry(info.filename, True, False, None)
                continue
            kind = info.external_attr >> 28
            if info.create_system == 3 and kind not in (0, 8):  # a Unix mode that is not that of a plain file
                yield _Entry(info.filename, False, True, None)
                continue
            with packed.open(info) as file:
                yield _Entry(info.filename, False, False, file)


def _inside(manifest: Manifest) -> Manifest:
    """An archive of one folder that is no model holds the models in that folder."""
    paths = [path for path, _, _ in manifest.files] + manifest.folders
    tops = {path.partition("/")[0] for path in paths} | manifest.problems.keys()
    if len(tops) != 1 or _is_model(paths):
        return manifest
    (top,) = tops
    begin = f"{top}/"
    if top in manifest.problems:  # whose it is cannot be told any more
        raise ArchiveError(manifest.problems[top])
    files = [(path.removeprefix(begin), size, digest) for path, size, digest in manifest.files]
    return Manifest(files, [path.removeprefix(begin) for path in manifest.folders if path != top])


def _is_model(paths: Iterable[str]) -> bool:
    """Whether the one folder of all these paths looks like a model's."""
    below = [path.split("/")[1:] for path in paths]
    return any(parts and (parts[0] == CONFIG_FILE or parse_directory(parts[0]) is not None) for parts in below)

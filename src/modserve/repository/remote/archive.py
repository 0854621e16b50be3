"""A repository in an archive on a web server, with the standard library only.

Untrusted archives: only plain files are extracted, to paths below the repository.
"""

import asyncio
import base64
import dataclasses
import http.client
import json
import lzma
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO, NamedTuple, Protocol

from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.files.remote_place import RemotePlace, without_secrets
from modserve.core.version import parse_directory

from .cache import Claim, DownloadCache, source_of
from .failures import StoreError, reason, unreadable, unwritten
from .repository import Contents
from .transfer import (
    DownloadProgress,
    ModelFiles,
    OnBytes,
    RemoteFile,
    Transfer,
    beside,
    identity,
    models_of,
    refusal,
    trick,
)

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
"""Errors from reading a damaged or invalid archive."""


class ArchiveError(Exception):
    """An unusable archive; the text has the reason."""


@dataclass(slots=True)
class Manifest:
    """Contents of an archive, in the cache."""

    files: list[tuple[str, int, str]] = field(default_factory=list)
    """Path below the repository, size in bytes and SHA-256."""
    folders: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Reasons for unusable models, by model."""


class _Entry(NamedTuple):
    path: str
    is_folder: bool
    link: bool
    """True if it is not a plain file but a link or a device."""
    file: IO[bytes] | None


def unpack(archive: BinaryIO, size: int, name: str, cache: DownloadCache) -> Manifest:
    """Extract an archive of `size` bytes into the cache. Blocking. Raises ArchiveError, INTERNAL."""
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
        # The checksum of the compressed data is after the archive's own end.
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
            if info.create_system == 3 and kind not in (0, 8):  # Unix mode of something other than a plain file
                yield _Entry(info.filename, False, True, None)
                continue
            with packed.open(info) as file:
                yield _Entry(info.filename, False, False, file)


def _inside(manifest: Manifest) -> Manifest:
    """Return the manifest of the folder, if the archive consists of one folder that is not a model."""
    paths = [path for path, _, _ in manifest.files] + manifest.folders
    tops = {path.partition("/")[0] for path in paths} | manifest.problems.keys()
    if len(tops) != 1 or _is_model(paths):
        return manifest
    (top,) = tops
    begin = f"{top}/"
    if top in manifest.problems:  # its model is unknown
        raise ArchiveError(manifest.problems[top])
    files = [(path.removeprefix(begin), size, digest) for path, size, digest in manifest.files]
    return Manifest(files, [path.removeprefix(begin) for path in manifest.folders if path != top])


def _is_model(paths: Iterable[str]) -> bool:
    """True if the only folder of all these paths looks like a model."""
    below = [path.split("/")[1:] for path in paths]
    return any(parts and (parts[0] == CONFIG_FILE or parse_directory(parts[0]) is not None) for parts in below)


_WAIT_S = 0.05
_NOT_MODIFIED = 304


class Archive:
    """Implements `source.RemoteSource`. Requests the archive at each look, and downloads it if it has changed."""

    def __init__(self, place: RemotePlace, transfer: Transfer) -> None:
        self._place = place
        self._transfer = transfer
        self._looking = asyncio.Lock()
        self._manifest: Manifest | None = None
        self._source = ""
        """Source of the archive that the manifest describes."""
        self._tags: dict[str, str] = {}
        """Response headers that show whether the archive has changed."""

    async def names(self) -> Collection[str]:
        return (await self.look(None)).models.keys()

    async def look(self, names: Collection[str] | None) -> Contents:
        async with self._looking:
            manifest = await self._current()
        files = [*_files(manifest)]
        models = models_of(files)
        for name, problem in manifest.problems.items():
            models.setdefault(name, ModelFiles(name)).problem = problem
        if names is not None:
            return Contents({name: models[name] for name in names if name in models}, (), (self._source,))
        return Contents(models, beside(files, models), (self._source,))

    async def write(self, path: str, content: bytes) -> None:
        raise unwritten(self._place, path, "no server writes into an archive")

    async def bring(self, file: RemoteFile, on_bytes: OnBytes) -> str:
        if await self._transfer.blocking(self._transfer.cache.find, file.source, file.size) is None:
            async with self._looking:  # removed from the cache
                self._manifest, self._tags = None, {}
                await self._current(refresh=True)
        on_bytes(file.size)
        return file.mark

    async def _current(self, *, refresh: bool = False) -> Manifest:
        """Return the current contents of the archive. Raises StoreError."""
        attempt = 0
        while True:
            ended = threading.Event()
            try:
                received = await self._transfer.blocking(self._receive, refresh, ended)
                if received is not None:
                    self._manifest = received
                    return received
                await asyncio.sleep(_WAIT_S)  # another process is downloading it
            except StoreError as error:
                attempt += 1
                if not error.transient or attempt >= self._transfer.patience.attempts:
                    raise
                await asyncio.sleep(self._transfer.patience.pause_s * 2 ** (attempt - 1))
            finally:
                ended.set()

    def _receive(self, refresh: bool, ended: threading.Event) -> Manifest | None:
        """Request the archive, and read it if it is new; None while another process does. Blocking."""
        with self._request() as response:
            if response.status == _NOT_MODIFIED and self._manifest is not None:
                return self._manifest
            tags = _tags(response.headers)
            source = identity("archive", without_secrets(self._place.url), *sorted(tags.items()))
            manifest = None if refresh or not tags else _find_manifest(self._transfer.cache, source)
            if manifest is None:
                claim = self._transfer.cache.claim(source)
                if claim is None:
                    return None
                try:
                    manifest = self._unpack(response, claim, source, ended)
                except ArchiveError as error:
                    raise unreadable(self._place, str(error)) from error
                finally:
                    claim.discard()
                    claim.close()
        self._tags, self._source = tags, source
        return manifest

    def _request(self) -> Any:
        try:
            return _open(self._place, self._tags, self._transfer.patience.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._unreadable(Exception(f"status code: {error.code}")) from None
        except urllib.error.URLError as error:
            cause = error.reason if isinstance(error.reason, Exception) else Exception(str(error.reason))
            raise self._unreadable(cause) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreadable(error) from None

    def _blocks(self, response: Any, ended: threading.Event) -> Iterator[bytes]:
        try:
            while block := response.read(_BLOCK_BYTES):
                if ended.is_set():
                    raise InterruptedError("nobody waits for it any more")
                yield block
        except (OSError, http.client.HTTPException) as error:
            raise self._unreadable(error) from None

    def _unpack(self, response: Any, claim: Claim, source: str, ended: threading.Event) -> Manifest:
        claim.restart()
        size = int(response.headers.get("Content-Length") or 0)
        progress = DownloadProgress("the archive of models", str(self._place), size)
        for block in self._blocks(response, ended):
            claim.write(block)
            progress.add(len(block))
        if size and claim.size != size:
            why = f"the transfer ended after {claim.size} of {size} bytes"
            raise unreadable(self._place, why, transient=True)
        progress.end(claim.size)
        cache = self._transfer.cache
        with claim.read() as archive:
            manifest = unpack(archive, claim.size, str(self._place), cache)
        cache.remember(source, *cache.add([json.dumps(dataclasses.asdict(manifest)).encode()]))
        return manifest

    def _unreadable(self, error: BaseException) -> StoreError:
        why, transient = reason(error, self._place)
        return unreadable(self._place, why, transient=transient)


def _files(manifest: Manifest) -> Iterator[RemoteFile]:
    for path, size, digest in manifest.files:
        yield RemoteFile(path, size, digest, source_of(digest))
    for path in manifest.folders:
        yield RemoteFile(path, 0, "", identity("folder"))


def _find_manifest(cache: DownloadCache, source: str) -> Manifest | None:
    """Return the cached manifest of an archive, if all of its files are cached."""
    digest = cache.find(source)
    if digest is None:
        return None
    try:
        fields: Mapping[str, Any] = json.loads(cache.content(digest).read_bytes())
        manifest = Manifest([(path, size, sha256) for path, size, sha256 in fields["files"]], fields["folders"])
        manifest.problems = fields["problems"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    present = all(cache.find(file.source, file.size) is not None for file in _files(manifest) if file.mark)
    return manifest if present else None


def _open(place: RemotePlace, tags: Mapping[str, str], timeout_s: float) -> Any:
    request = urllib.request.Request(place.url, headers={"Accept-Encoding": "identity", "User-Agent": "modserve"})
    if place.login is not None:
        token = base64.b64encode(":".join(place.login).encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {token}")
    if "ETag" in tags:
        request.add_header("If-None-Match", tags["ETag"])
    elif "Last-Modified" in tags:
        request.add_header("If-Modified-Since", tags["Last-Modified"])
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code != _NOT_MODIFIED:
            raise
        return error


def _tags(headers: Any) -> dict[str, str]:
    """Return the headers that identify a state of the archive; empty if the server sends none."""
    tags = {name: headers[name] for name in ("ETag", "Last-Modified") if headers[name]}
    if tags and headers["Content-Length"]:
        tags["Content-Length"] = headers["Content-Length"]
    return tags

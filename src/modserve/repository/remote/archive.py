"""A repository in an archive on a web server. Only the standard library is needed."""

import asyncio
import base64
import dataclasses
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from modserve.core.files.remote_place import RemotePlace, without_secrets

from .cache import DownloadCache, source_of
from .claim import Claim
from .failures import StoreError, reason, unreadable, unwritten
from .files import ModelFiles, RemoteFile, beside, identity, models_of
from .source import Contents
from .transfer import DownloadProgress, OnBytes, Transfer
from .unpacking import ArchiveError, Manifest, unpack

_BLOCK_BYTES = 1 << 20
_WAIT_S = 0.05
_NOT_MODIFIED = 304


class Archive:
    """Implements `source.RemoteSource`. Asks for the archive at each look, and downloads it when it is another one."""

    def __init__(self, place: RemotePlace, transfer: Transfer) -> None:
        self._place = place
        self._transfer = transfer
        self._looking = asyncio.Lock()
        self._manifest: Manifest | None = None
        self._source = ""
        """That of the archive of which the manifest is."""
        self._tags: dict[str, str] = {}
        """Headers by which the server tells whether the archive has changed."""

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
            async with self._looking:  # it has been cleaned
                self._manifest, self._tags = None, {}
                await self._current(refresh=True)
        on_bytes(file.size)
        return file.mark

    async def _current(self, *, refresh: bool = False) -> Manifest:
        """What is in the archive now. Raises StoreError."""
        attempt = 0
        while True:
            ended = threading.Event()
            try:
                received = await self._transfer.blocking(self._receive, refresh, ended)
                if received is not None:
                    self._manifest = received
                    return received
                await asyncio.sleep(_WAIT_S)  # another process downloads it
            except StoreError as error:
                attempt += 1
                if not error.transient or attempt >= self._transfer.patience.attempts:
                    raise
                await asyncio.sleep(self._transfer.patience.pause_s * 2 ** (attempt - 1))
            finally:
                ended.set()

    def _receive(self, refresh: bool, ended: threading.Event) -> Manifest | None:
        """Ask for the archive, and read it if it is a new one; None while another process does. Blocking."""
        with self._opened() as response:
            if response.status == _NOT_MODIFIED and self._manifest is not None:
                return self._manifest
            tags = _tags(response.headers)
            source = identity("archive", without_secrets(self._place.url), *sorted(tags.items()))
            manifest = None if refresh or not tags else _remembered(self._transfer.cache, source)
            if manifest is None:
                claim = self._transfer.cache.claim(source)
                if claim is None:
                    return None
                try:
                    manifest = self._unpacked(response, claim, source, ended)
                except ArchiveError as error:
                    raise unreadable(self._place, str(error)) from error
                finally:
                    claim.discard()
                    claim.close()
        self._tags, self._source = tags, source
        return manifest

    def _opened(self) -> Any:
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

    def _unpacked(self, response: Any, claim: Claim, source: str, ended: threading.Event) -> Manifest:
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


def _remembered(cache: DownloadCache, source: str) -> Manifest | None:
    """What the cache knows of an archive, if all of it is there."""
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
    """What tells one archive from the next; empty where the server says nothing of the kind."""
    tags = {name: headers[name] for name in ("ETag", "Last-Modified") if headers[name]}
    if tags and headers["Content-Length"]:
        tags["Content-Length"] = headers["Content-Length"]
    return tags

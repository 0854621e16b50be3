"""The server's response cache, per model version."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Iterable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

from modserve.__about__ import __version__
from modserve.config import Draft
from modserve.core.configuration.cache_settings import CacheSettings
from modserve.core.files import regular_file
from modserve.core.version import ModelId
from modserve.resources import shared_cache
from modserve.resources.response_cache import Cache, ResponseCache
from modserve.resources.shared_cache import ModelCache, SharedCache

_log = logging.getLogger(__name__)

_CHUNK = 1024 * 1024


def make_cache(settings: CacheSettings) -> ResponseCache | SharedCache | None:
    """Create the cache by its settings. Raises UNAVAILABLE if a library is missing."""
    if (redis := settings.redis) is not None:
        store = shared_cache.connect(redis)
        return SharedCache(store, redis.socket_timeout_s, settings.ttl_s, settings.entry_size)
    return ResponseCache(settings.size, settings.ttl_s, settings.entry_size) if settings.size else None


@dataclass(slots=True)
class _Version:
    """A loaded version."""

    path: Path
    config: bytes
    marks: object
    """State of its files when it was loaded."""
    identity: bytes | None = None
    """Identity; None until it is needed."""


class VersionCaches:
    """Provides the cache of each loaded version.

    In a shared cache, a version finds responses stored by another process or before a restart if both have the same
    name, version, configuration and files, and run the same modserve with the same `options` of its backends; for an
    ensemble, also the same models. To determine this, the files are read once more before the load.
    """

    def __init__(self, cache: ResponseCache | SharedCache | None = None, options: object = None) -> None:
        self._cache = cache
        self._server = f"{__version__} {options!r}".encode()
        self._versions: dict[ModelId, _Version] = {}

    async def of(
        self, model_id: ModelId, path: Path, draft: Draft, needs: Iterable[str], executor: futures.Executor
    ) -> Cache | None:
        """Return the cache of a version with files at `path` that needs the models `needs`. Never raises."""
        if not isinstance(self._cache, SharedCache):
            return self._cache
        loop = asyncio.get_running_loop()
        if not draft.message.response_cache.enable and not draft.is_ensemble:
            marks = await loop.run_in_executor(executor, _marks, path, model_id.version)
            self._versions[model_id] = _Version(path, draft.bytes, marks)
            return None
        identity = await loop.run_in_executor(executor, self._identify, model_id, path, draft.bytes, sorted(needs))
        self._versions[model_id] = _Version(path, draft.bytes, None, identity)
        return ModelCache(self._cache, model_id.name, model_id.version, identity)

    def _identify(self, model_id: ModelId, path: Path, config: bytes, needs: Iterable[str]) -> bytes:
        """Return a version's identity. Blocks. Its models are already loaded, and do not change meanwhile."""
        parts = [each for name in needs for each in self._of_model(name)]
        return _identity(model_id, path, config, [self._server, *parts])

    def _of_model(self, name: str) -> list[bytes]:
        """Return the identities of the versions of a model that an ensemble needs; a unique value if unknown."""
        identities = []
        for model_id, version in sorted(self._versions.items(), key=lambda each: each[0]):
            if model_id.name != name:
                continue
            if version.identity is None:
                unchanged = version.marks == _marks(version.path, model_id.version)
                identity = _identity(model_id, version.path, version.config, [self._server])
                version.identity = identity if unchanged else os.urandom(16)
            identities.append(version.identity)
        return identities or [os.urandom(16)]

    def forget(self, name: str) -> None:
        """Forget the versions of a removed model."""
        for model_id in [each for each in self._versions if each.name == name]:
            del self._versions[model_id]

    def ending(self) -> None:
        """Prepare for the end of this server: shared responses stay for other servers."""
        if isinstance(self._cache, SharedCache):
            self._cache.ending = True

    async def close(self) -> None:
        if isinstance(self._cache, SharedCache):
            await self._cache.close()


def _identity(model_id: ModelId, path: Path, config: bytes, parts: Iterable[bytes]) -> bytes:
    """Return 128 bits of a hash of everything that the responses of a version depend on, as far as it can be read.

    Covers the version's files and files shared by all versions; `parts` stand for the server and other models. Blocks.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (config, *parts):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    try:
        for file in _files(path, model_id.version):
            _add_file(digest, file, str(file.relative_to(path)))
    except OSError as error:
        _log.warning(
            "model '%s': its responses are not shared with other servers, since a file cannot be read: %s",
            model_id.name,
            error,
        )
        digest.update(os.urandom(16))
    return digest.digest()


def _marks(path: Path, version: int) -> object:
    """Return the state of the files of a version, equal if none has changed. Blocks."""
    try:
        stats = [(str(file), file.stat()) for file in _files(path, version)]
    except OSError:
        return None
    return [(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats]


def _files(path: Path, version: int) -> list[Path]:
    """Return all files except files of other versions. Raises OSError if there is no such directory."""
    files = []
    for directory, folders, names in os.walk(path, onerror=_raise, followlinks=True):
        if Path(directory) == path:
            folders[:] = [each for each in folders if not each.isdigit() or each == str(version)]
        folders[:] = [each for each in folders if each != "__pycache__"]
        files += [Path(directory, name) for name in names]
    return sorted(files)


def _raise(error: OSError) -> None:
    raise error


def _add_file(digest: "hashlib.blake2b", file: Path, name: str) -> None:
    encoded = os.fsencode(name)
    digest.update(len(encoded).to_bytes(8, "big") + encoded + file.stat().st_size.to_bytes(8, "big"))
    with regular_file.open_regular(file) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)

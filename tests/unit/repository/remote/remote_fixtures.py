"""Stores in memory for the tests of remote repositories."""

from collections.abc import AsyncIterator
from pathlib import Path

import obstore
from obstore.store import MemoryStore

from modserve.core.files.remote_place import RemotePlace, parse_place
from modserve.repository.remote.bucket import Bucket
from modserve.repository.remote.cache import DownloadCache
from modserve.repository.remote.repository import RemoteRepository
from modserve.repository.remote.transfer import Download, Patience, RemoteFile, Transfer, identity


def place_of(text: str) -> RemotePlace:
    place = parse_place(text)
    assert place is not None
    return place


PLACE = place_of("s3://bucket/models")


class Clock:
    """Turned by hand; in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shop:
    """A repository in a store in memory, whose clients may be made to fail."""

    def __init__(self, cache: Path) -> None:
        self.store = MemoryStore()
        self.failure: Exception | None = None
        self.opened = 0
        self.clock = Clock()
        self.transfer = Transfer(DownloadCache(cache), Patience(timeout_s=5, attempts=2, pause_s=0))
        self.repository = self.another()

    def another(self, config_name: str = "") -> RemoteRepository:
        """As another process would have it, with the same cache."""
        transfer = Transfer(DownloadCache(self.transfer.cache.root), self.transfer.patience)
        return RemoteRepository(PLACE, Bucket(PLACE, transfer, self._open), transfer, self.clock, config_name)

    def _open(self, place: RemotePlace, timeout_s: float) -> MemoryStore:
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        return self.store

    def put(self, path: str, content: bytes, **attributes: str) -> None:
        obstore.put(self.store, f"models/{path}", content, attributes=attributes)

    def delete(self, path: str) -> None:
        obstore.delete(self.store, f"models/{path}")


def a_file(path: str, content: bytes, mark: str = "mark") -> RemoteFile:
    return RemoteFile(path, len(content), mark, identity(path, mark))


def incoming(file: RemoteFile, *blocks: bytes | Exception, size: int | None = None, sha256: str = "") -> Download:
    """What a store sends of a file: blocks, or what reading raises."""

    async def reading() -> AsyncIterator[bytes]:
        for block in blocks:
            if isinstance(block, Exception):
                raise block
            yield block

    return Download(file.size if size is None else size, file.mark, sha256, reading())

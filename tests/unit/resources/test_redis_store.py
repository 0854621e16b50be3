"""What a Redis is asked, without one."""

import fnmatch
import re
from typing import Any

import pytest

from modserve.core.configuration.cache_settings import RedisSettings
from modserve.resources.shared_cache import CacheStoreError, RedisStore, connect


class FakeClient:
    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.calls: list[tuple[str, Any]] = []
        self.failure: Exception | None = None

    async def get(self, key: str) -> object:
        if self.failure is not None:
            raise self.failure
        return "no bytes"

    async def set(self, key: str, value: bytes, px: int | None) -> None:
        self.calls.append((key, px))

    async def scan(self, cursor: int, match: str, count: int) -> tuple[int, list[bytes]]:
        """Two keys at a time; the pattern is Redis', where a backslash takes away what a character means."""
        pattern = re.compile(fnmatch.translate(re.sub(r"\\(.)", r"[\1]", match)))
        some = self.keys[cursor : cursor + 2]
        following = cursor + 2 if cursor + 2 < len(self.keys) else 0
        return following, [key for key in some if pattern.match(key.decode())]

    async def unlink(self, *keys: bytes) -> int:
        self.calls.append(("unlink", keys))
        return len(keys)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self.calls.append(("close", close_connection_pool))


def store(client: FakeClient) -> RedisStore:
    return RedisStore(RedisSettings("h", 1, password="secret"), client, (OSError,))


async def test_values() -> None:
    client = FakeClient([])
    kept = store(client)
    await kept.set("a", b"", 1.5)
    await kept.set("b", b"", 0)
    await kept.set("c", b"", 0.00001)
    assert client.calls == [("a", 1500), ("b", None), ("c", 1)]
    assert await kept.get("a") is None
    assert str(kept) == "redis://h:1/0"
    client.failure = OSError("gone")
    with pytest.raises(CacheStoreError, match="OSError: gone"):
        await kept.get("a")


async def test_closing_closes_the_connections() -> None:
    """The pool is not the client's own, which by itself would close none."""
    client = FakeClient([])
    await store(client).close()
    assert client.calls == [("close", True)]


async def test_a_purge_takes_what_begins_so_and_nothing_else() -> None:
    client = FakeClient([b"m*:1", b"mm:1", b"m*:2", b"m*", b"m*:3"])
    assert await store(client).purge("m*:") == 3
    assert client.calls == [("unlink", (b"m*:1",)), ("unlink", (b"m*:2",)), ("unlink", (b"m*:3",))]


async def test_the_client_connects_when_it_is_used() -> None:
    for settings in (RedisSettings("127.0.0.1", 1), RedisSettings("127.0.0.1", 1, tls=True, sni="a")):
        kept = connect(settings)
        with pytest.raises(CacheStoreError, match="ConnectionError"):
            await kept.get("a")
        await kept.close()

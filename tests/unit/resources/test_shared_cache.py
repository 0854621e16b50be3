"""A cache in a store that is away, slow or full costs nothing but misses."""

import asyncio
import logging
from collections.abc import AsyncIterator

import numpy as np
import pytest

from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Tensor
from modserve.resources.shared_cache import CacheStoreError, ModelCache, SharedCache

KEY, OWNER = b"k" * 32, object()


class FakeStore:
    """Implements `shared_cache.Store`."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.ttls: list[float] = []
        self.trouble: Exception | None = None
        self.full = False
        self.silent = False
        self.calls = 0
        self.closed = False

    def __str__(self) -> str:
        return "fake"

    async def _call(self) -> None:
        self.calls += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble

    async def get(self, key: str) -> bytes | None:
        await self._call()
        return self.kept.get(key)

    async def set(self, key: str, value: bytes, ttl_s: float) -> None:
        await self._call()
        if self.full:
            raise CacheStoreError("full")
        self.kept[key] = value
        self.ttls.append(ttl_s)

    async def purge(self, prefix: str) -> int:
        await self._call()
        gone = [key for key in self.kept if key.startswith(prefix)]
        for key in gone:
            del self.kept[key]
        return len(gone)

    async def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, timeout_s: float = 10, longest: int = 0) -> None:
        self.store = FakeStore()
        self.waits: list[float] = []
        self.awake = asyncio.Event()
        self.shared = SharedCache(self.store, timeout_s, 60.0, longest, self.sleep)
        self.cache = self.of(b"one")

    def of(self, identity: bytes, model: str = "m") -> ModelCache:
        return ModelCache(self.shared, model, 1, identity)

    async def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        await self.awake.wait()
        self.awake.clear()

    async def look(self, cache: ModelCache | None = None, key: bytes = KEY) -> int | None:
        """The number in the response; None for a miss."""
        looking = (cache or self.cache).fetch(OWNER, key)
        response = None if looking is None else await looking
        return None if response is None else int(response.outputs["X"].array[0])

    async def settle(self) -> None:
        """Let all that is under way end."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.shared.close()
    assert bench.store.closed


def response(number: int = 7, length: int = 1) -> InferenceResponse:
    return InferenceResponse("m", 1, {"X": Tensor.from_array(np.full(length, number, np.int32))})


async def test_what_is_kept_is_there_for_the_same_identity(bench: Bench) -> None:
    assert bench.cache.get(OWNER, KEY) is None
    assert await bench.look() is None
    bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    assert bench.store.ttls == [60.0]
    assert await bench.look() == 7
    assert await bench.look(bench.of(b"one")) == 7
    assert await bench.look(bench.of(b"two")) is None
    assert await bench.look(bench.of(b"one", "n")) is None
    assert await bench.look(key=b"l" * 32) is None


async def test_a_long_response_goes_by_a_thread(bench: Bench) -> None:
    bench.cache.put(OWNER, KEY, response(length=100_000))
    await asyncio.gather(*bench.shared._tasks)
    assert await bench.look() == 7


async def test_what_is_not_ours_is_a_miss(bench: Bench) -> None:
    bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    (name,) = bench.store.kept
    bench.store.kept[name] = b"foreign"
    assert await bench.look() is None


async def test_a_store_that_fails_is_asked_no_more(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench.store.trouble = CacheStoreError("connection refused")
    for _ in range(3):
        assert await bench.look() is None
    calls = bench.store.calls
    for _ in range(100):
        assert bench.cache.fetch(OWNER, KEY) is None
        bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    assert bench.store.calls == calls
    assert caplog.messages == ["response cache fake: connection refused; requests run without it until it is back"]
    for wait_s in (1.0, 2.0, 4.0):
        assert bench.waits[-1] == wait_s
        bench.awake.set()
        await bench.settle()
    bench.store.trouble = None
    bench.awake.set()
    await bench.settle()
    assert caplog.messages[1:] == ["response cache fake is back"]
    bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    assert await bench.look() == 7


async def test_one_that_fails_again_and_again_says_so_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        bench.store.trouble = CacheStoreError("odd")
        for _ in range(3):
            await bench.look()
        bench.store.trouble = None
        bench.awake.set()
        await bench.settle()
    assert len(caplog.messages) == 2
    assert bench.waits == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_some_failures_between_others_do_not_matter(bench: Bench) -> None:
    for _ in range(5):
        bench.store.trouble = CacheStoreError("now and then")
        await bench.look()
        await bench.look()
        bench.store.trouble = None
        await bench.look()
    assert bench.waits == []


async def test_a_store_that_is_silent() -> None:
    bench = Bench(timeout_s=0.001)
    bench.store.silent = True
    for _ in range(3):
        assert await bench.look() is None
    assert bench.cache.fetch(OWNER, KEY) is None
    bench.store.silent = False
    await bench.shared.close()


async def test_a_store_that_is_full_can_still_be_read(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    bench.store.full = True
    for number in range(10):
        bench.cache.put(OWNER, bytes([number]) * 32, response())
        await bench.settle()
    assert await bench.look() == 7
    assert caplog.messages == ["response cache fake: full; no responses are kept until it is back"]
    calls = bench.store.calls
    bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    assert bench.store.calls == calls


async def test_there_are_bounds_to_what_waits(bench: Bench) -> None:
    bench.store.silent = True
    lookups = [bench.cache.fetch(OWNER, KEY) for _ in range(256)]
    await bench.settle()
    assert None not in lookups
    assert bench.cache.fetch(OWNER, KEY) is None
    for _ in range(100):
        bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    assert bench.store.calls == 256 + 64


async def test_a_response_that_is_too_long_is_not_kept() -> None:
    bench = Bench(longest=8)
    bench.cache.put(OWNER, KEY, response(length=3))
    await bench.settle()
    assert bench.store.kept == {}
    bench.cache.put(OWNER, KEY, response(length=2))
    await bench.settle()
    assert len(bench.store.kept) == 1
    await bench.shared.close()


async def test_a_model_that_goes_takes_its_responses_along(bench: Bench) -> None:
    other = bench.of(b"two")
    for cache in (bench.cache, other):
        cache.put(OWNER, KEY, response())
    await bench.settle()
    bench.cache.forget(OWNER)
    await bench.settle()
    assert [await bench.look(cache) for cache in (bench.cache, other)] == [None, 7]


async def test_a_server_that_ends_leaves_them_to_the_others(bench: Bench) -> None:
    bench.cache.put(OWNER, KEY, response())
    await bench.settle()
    bench.shared.ending = True
    bench.cache.forget(OWNER)
    bench.cache.put(OWNER, b"l" * 32, response())
    await bench.settle()
    assert len(bench.store.kept) == 1
    assert bench.cache.fetch(OWNER, KEY) is None

"""Messages that come compressed: what they become, and within which bounds."""

import gzip
import zlib
from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError, OverloadedError
from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError
from modserve.frontends.grpc import message_inflater
from modserve.frontends.grpc.message_inflater import MessageInflater
from modserve.settings import LoopLimits

BOTH = pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
MIB = 1 << 20


async def inflated(data: bytes, budget: MemoryBudget, max_message: int = 0) -> bytes:
    whole, memory = await MessageInflater(budget, max_message, LoopLimits()).inflate(data)
    if memory is None:
        assert budget.held == 0
    else:
        assert budget.held >= len(whole)
        memory.release()
    return whole


@BOTH
@pytest.mark.parametrize("size", [0, 10, 300_000, 40 * MIB], ids=lambda size: f"{size:,} bytes")
async def test_a_compressed_message_is_what_it_was(compress: Any, size: int) -> None:
    """Whatever its length; the memory is taken, and given back."""
    budget = MemoryBudget()
    data = compress(b"m" * size)
    assert data[0] in message_inflater.STARTS
    assert await inflated(data, budget) == b"m" * size
    assert budget.held == 0


@pytest.mark.parametrize("data", [b"", b"\x1f", b"\x78", b"\x78\x00", b"\x1f\x00", b"\x0a\x06simple"], ids=repr)
async def test_what_only_begins_like_one_is_left_as_it_is(data: bytes) -> None:
    assert await inflated(data, MemoryBudget()) is data


@BOTH
async def test_what_is_broken_is_invalid(compress: Any) -> None:
    data = compress(b"m" * 100)
    for broken in (data[:-1], data[:2] + b"\xff" * 20, data + b"more"):
        budget = MemoryBudget()
        with pytest.raises(ModserveError) as caught:
            await inflated(broken, budget)
        assert caught.value.code is Code.INVALID_ARG
        assert budget.held == 0


@pytest.mark.parametrize(
    ("size", "max_message", "limit"),
    [(message_inflater.MOST + 1, 0, message_inflater.MOST), (2_000, 1_999, 1_999), (2_000_000, 1_999_999, 1_999_999)],
)
async def test_it_may_not_become_too_long(size: int, max_message: int, limit: int) -> None:
    data = gzip.compress(bytes(size))
    budget = MemoryBudget()
    with pytest.raises(OverloadedError) as caught:
        await inflated(data, budget, max_message)
    assert caught.value.too_many
    assert caught.value.message.startswith(f"Decompressed message larger than max ({limit} bytes for a compressed ")
    assert budget.held == 0
    assert budget.peak <= 2 * message_inflater.MOST


async def test_it_may_be_a_hundred_times_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_inflater, "MOST", 1_000)
    data = gzip.compress(bytes(range(256)) * 8)
    assert await inflated(data, MemoryBudget()) == bytes(range(256)) * 8
    with pytest.raises(OverloadedError):
        await inflated(gzip.compress(bytes(1_000_000)), MemoryBudget())


async def test_it_has_to_fit_into_the_memory() -> None:
    budget = MemoryBudget(MIB)
    with pytest.raises(MemoryExhaustedError):
        await inflated(gzip.compress(bytes(8 * MIB)), budget)
    assert budget.held == 0

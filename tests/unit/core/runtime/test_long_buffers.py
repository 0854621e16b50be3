"""Long buffers: what is written to them, and the large pages that they ask for."""

import ctypes
import re
import sys
from io import BytesIO
from pathlib import Path

import pytest

from modserve.core.runtime.long_buffers import BEGUN, WORTHWHILE, room, use_large_pages
from modserve.frontends.http.wire.body import IncomingBody

PIECE = bytes(range(256)) * 4096
THERE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags(address: int) -> list[str]:
    """Linux's flags of the mapping that an address is in."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(match[1], 16) <= address < int(match[2], 16)
        elif within and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise ValueError(f"no mapping has the address {address:#x}")


def address(buffer: BytesIO) -> int:
    with buffer.getbuffer() as view:
        first = ctypes.c_char.from_buffer(view)
        return ctypes.addressof(first)


@pytest.mark.skipif(not THERE.exists(), reason="this system has no large pages")
def test_what_follows_has_large_pages() -> None:
    buffer = BytesIO(bytes(WORTHWHILE))
    use_large_pages(buffer, BEGUN)
    assert "hg" not in flags(address(buffer))
    assert "hg" in flags(address(buffer) + BEGUN + 4096)
    buffer.write(PIECE)
    assert buffer.getvalue()[: len(PIECE) + 1] == PIECE + b"\0"


def test_what_has_no_whole_page_stays() -> None:
    buffer = BytesIO(bytes(100))
    use_large_pages(buffer, 50)
    buffer.write(b"abc")
    assert buffer.getvalue() == b"abc" + bytes(97)


def test_a_system_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    long_buffers = sys.modules[use_large_pages.__module__]
    long_buffers._system_call.cache_clear()
    try:
        buffer = BytesIO(bytes(WORTHWHILE))
        use_large_pages(buffer, 0)
        assert buffer.write(b"abc") == 3
    finally:
        long_buffers._system_call.cache_clear()


def test_a_long_body_is_what_came() -> None:
    body, count = IncomingBody(), WORTHWHILE // len(PIECE)
    for number in range(count):
        body.add(PIECE, (count - 1 - number) * len(PIECE))
    assert body.take() == PIECE * count


@pytest.mark.parametrize("size", [0, 1, 100, 5_000_000])
def test_room_holds_what_is_written(size: int) -> None:
    buffer = room(size)
    assert buffer.seek(0, 2) == size
    buffer.seek(0)
    whole = (PIECE * (size // len(PIECE) + 1))[:size]
    buffer.write(whole)
    assert buffer.getvalue() == whole


@pytest.mark.parametrize("size", [-1, sys.maxsize, sys.maxsize + 1, 1 << 64, (1 << 64) + 5, 1 << 60])
def test_no_room(size: int) -> None:
    with pytest.raises(MemoryError):
        room(size)


def test_other_pythons_clear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    long_buffers = sys.modules[room.__module__]
    long_buffers._find_allocator.cache_clear()
    monkeypatch.setattr(ctypes, "pythonapi", object())
    try:
        assert room(7).getvalue() == bytes(7)
    finally:
        long_buffers._find_allocator.cache_clear()

"""Long buffers: not cleared before they are written, and in large pages.

Linux gives large pages on request (`transparent_hugepage/enabled`: madvise). A buffer of tens of megabytes is a
mapping of its own, and the system clears each page of it when it is first written to: 25 ms for 50 MB in pages of
4 KiB, 4 ms in pages of 2 MiB; taking them back takes 8 ms, and 0.4 ms.

Owners of memory to return to the system, besides the C library: see `resources.allocator`.
"""

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import Protocol

import numpy as np


class Keeper(Protocol):
    """Owner of memory kept for later use, such as an engine with an allocator of its own."""

    def spare(self) -> int:
        """Return the bytes not in use at any time since the last call. Called every few seconds on the event loop."""

    def give_back(self) -> None:
        """Return them to the C library. Called on a thread."""


_keepers: set[Keeper] = set()


def register(keeper: Keeper) -> None:
    _keepers.add(keeper)


def unregister(keeper: Keeper) -> None:
    _keepers.discard(keeper)


def keepers() -> tuple[Keeper, ...]:
    """Return a copy made in one step, since models are registered and removed on other threads."""
    return tuple(_keepers)


WORTHWHILE = 32 * 1024 * 1024
"""Minimum size in bytes. Shorter buffers come from memory that the allocator keeps and has written to before."""

BEGUN = 8 * 1024 * 1024
"""Bytes received of an announced buffer before it gets large pages: its last page, which may be used only in part, is
then a small share of the whole."""

_LONG = 1024 * 1024
_MADV_HUGEPAGE = 14
_OVERHEAD = sys.getsizeof(b"")


def copy_of(raw: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Return a read-only copy. For long ones numpy asks for large pages, and lets other threads run, unlike `bytes`."""
    if len(raw) < _LONG:
        return bytes(raw)
    copy = np.empty(len(raw), np.uint8)
    np.copyto(copy, np.frombuffer(raw, np.uint8))
    return copy.data.toreadonly()


def room(size: int) -> BytesIO:
    """Return a buffer of `size` uninitialised bytes. Raises MemoryError.

    The system allocates a long one page by page, on the first write: unwritten pages cost nothing.
    """
    if not 0 <= size <= sys.maxsize - _OVERHEAD:
        raise MemoryError(size)
    return BytesIO(_find_allocator()(None, size))


@cache
def _find_allocator() -> Callable[[None, int], bytes]:
    """Return an allocator of uninitialised bytes. ``bytes(size)`` clears memory that the allocator has kept."""
    try:
        make = ctypes.pythonapi.PyBytes_FromStringAndSize
    except AttributeError:  # another Python than CPython
        return lambda _, size: bytes(size)
    make.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
    make.restype = ctypes.py_object
    uncleared: Callable[[None, int], bytes] = make
    return uncleared


@cache
def _system_call() -> Callable[[int, int, int], int] | None:
    """Return Linux's madvise, for an address, a length and an advice; None elsewhere."""
    if sys.platform != "linux":
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    advise: Callable[[int, int, int], int] = madvise
    return advise


def use_large_pages(buffer: BytesIO, start: int) -> None:
    """Let the bytes of a buffer from `start` on lie in large pages if they have not been written to.

    It is advice: where it is not taken, nothing happens.
    """
    madvise = _system_call()
    if madvise is None:
        return
    with buffer.getbuffer() as view:
        first = ctypes.c_char.from_buffer(view)
        address = ctypes.addressof(first)
        del first  # or the view could not be released
        begin = -(-(address + start) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (address + len(view)) // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            madvise(begin, end - begin, _MADV_HUGEPAGE)

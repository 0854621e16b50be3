"""Shared memory for large tensors: anonymous files that grow and shrink.

There are two files, one written by the server and one written by the worker. Each is a ``memfd`` that both sides have
open: it leaves no name behind, whichever side ends first, has no fixed size, and does not use ``/dev/shm``. On Linux,
sealing prevents both sides from truncating it, which would kill the next reader of the lost part. The owner divides its
file into blocks, one per tensor, and sends their locations to the other side.

A block is free or leased. A lease begins with each location sent, and ends with a `RELEASE` from the other side. The
other side keeps one mapping per known block and creates an array over it for each lease. The lease ends when no
reference to the array, or to a view of it, is left. Free blocks are reused with their pages. After some idle time their
pages are returned to the system, and the block is mapped again when it is needed.
"""

import fcntl
import mmap
import os
import tempfile
import threading
import time
import weakref
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

import numpy as np

from .wire import Buffer, Location

IDLE_SECONDS = 10.0
"""Seconds after which the pages of a free block are released."""
_PAGE = 4096


def new_file(name: str) -> int:
    """Open an empty in-memory file that can only grow; returns its descriptor.

    On systems without ``memfd``, it is an unlinked file, without protection from truncation.
    """
    create = getattr(os, "memfd_create", None)
    if create is not None:
        fd = int(create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return fd
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Block:
    """A part of the file, with its number of leases."""

    __slots__ = ("capacity", "free_since", "holders", "mapping", "offset")

    def __init__(self, offset: int, capacity: int) -> None:
        self.offset = offset
        self.capacity = capacity
        self.mapping: Optional[mmap.mmap] = None
        self.holders = 0
        self.free_since = 0.0


class Arena:
    """Writing side of a file, its owner. Any thread may use it."""

    def __init__(self, fd: int, which: int) -> None:
        self.which = which
        self._fd = fd
        self._end = _PAGE
        self._blocks: Dict[int, _Block] = {}
        self._free: Dict[int, List[_Block]] = {}
        self._released: Deque[int] = deque()
        self._forgotten: List[int] = []
        self._lock = threading.Lock()

    @property
    def leased(self) -> int:
        """Bytes of the leased blocks."""
        with self._lock:
            self._take_back()
            return sum([block.capacity for block in self._blocks.values() if block.holders])

    @property
    def mapped(self) -> int:
        """Bytes of the mapped blocks, which may have pages."""
        with self._lock:
            return sum([block.capacity for block in self._blocks.values() if block.mapping is not None])

    def allocate(self, size: int) -> Tuple[Location, Any]:
        """Allocate a block for `size` bytes with one lease; returns its location and a writable byte array.

        Raises OSError if the system is out of memory, and after `close`.
        """
        capacity = _capacity(size)
        with self._lock:
            self._take_back()
            free = self._free.get(capacity)
            if free:
                block = free.pop()
            else:
                block = _Block(self._end, capacity)
                os.ftruncate(self._fd, self._end + capacity)
                self._end += capacity
                self._blocks[block.offset] = block
            if block.mapping is None:
                block.mapping = mmap.mmap(self._fd, capacity, offset=block.offset)
            block.holders = 1
            return Location(self.which, block.offset, capacity, 0, size), np.frombuffer(block.mapping, np.uint8, size)

    def place(self, elements: Buffer, size: int) -> Location:
        """Copy elements into a new block."""
        location, array = self.allocate(size)
        array[:] = np.frombuffer(elements, np.uint8)
        return location

    def hold(self, location: Location) -> Any:
        """Return an array over a part of one of this side's own blocks, at a location sent by the other side.

        Raises ValueError if the block does not exist or is free.
        """
        with self._lock:
            block = self._blocks.get(location.offset)
            if block is None or not block.holders or location.start + location.size > block.capacity:
                raise ValueError("elements are in a block that is in use")
            block.holders += 1
        return _lease_array(block.mapping, location, self._released)

    def release(self, offset: int) -> None:
        """End one lease of a block. Any thread."""
        self._released.append(offset)

    def trim(self, now: Optional[float] = None) -> None:
        """Return the pages of idle free blocks to the system."""
        before = (time.monotonic() if now is None else now) - IDLE_SECONDS
        with self._lock:
            self._take_back()
            for blocks in self._free.values():
                for block in blocks:
                    if block.mapping is not None and block.free_since <= before:
                        block.mapping.madvise(getattr(mmap, "MADV_REMOVE", mmap.MADV_DONTNEED))
                        block.mapping = None
                        self._forgotten.append(block.offset)

    def take_forgotten(self) -> List[int]:
        """Return the blocks that the other side can unmap."""
        if not self._forgotten:
            return []
        with self._lock:
            forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def close(self) -> None:
        """Stop allocating. The file exists as long as any of its mappings is referenced."""
        with self._lock:
            self._blocks.clear()
            self._free.clear()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _take_back(self) -> None:
        now = 0.0
        while self._released:
            block = self._blocks.get(self._released.popleft())
            if block is None or not block.holders:
                continue
            block.holders -= 1
            if not block.holders:
                block.free_since = now = now or time.monotonic()
                self._free.setdefault(block.capacity, []).append(block)


class Mirror:
    """Reading side of a file. Used by one thread at a time, except for the end of leases."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mappings: Dict[int, Tuple[mmap.mmap, int]] = {}
        self._released: Deque[int] = deque()

    def fetch(self, location: Location) -> Any:
        """Return a writable array of the bytes at a location. The lease ends when the array is freed.

        Raises ValueError for a location outside of the file.
        """
        known = self._mappings.get(location.offset)
        if known is None or len(known[0]) != location.capacity:
            if location.offset % _PAGE or location.offset + location.capacity > os.fstat(self._fd).st_size:
                raise ValueError("a block is in the file")
            mapping = mmap.mmap(self._fd, location.capacity, offset=location.offset)
            address = np.frombuffer(mapping, np.uint8, 1).__array_interface__["data"][0]
            known = self._mappings[location.offset] = (mapping, address)
        if location.start + location.size > location.capacity:
            raise ValueError("elements are in their block")
        return _lease_array(known[0], location, self._released)

    def find(self, address: int, size: int) -> Optional[Tuple[int, int, int]]:
        """Return the offset and capacity of the block with some memory, and its start there; None for other memory."""
        for offset, (mapping, begin) in self._mappings.copy().items():  # another thread may add mappings meanwhile
            if begin <= address and address + size <= begin + len(mapping):
                return offset, len(mapping), address - begin
        return None

    def take_released(self) -> List[int]:
        """Return the blocks of leases that ended since the last call, with one entry per lease."""
        if not self._released:
            return []
        released = []
        while self._released:
            released.append(self._released.popleft())
        return released

    def close(self) -> None:
        """Stop fetching. A mapping ends with the last reference to it."""
        self._mappings.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def forget(self, offset: int) -> None:
        """Drop a block that its owner has released. Its mapping ends with the last reference to it."""
        self._mappings.pop(offset, None)


def _lease_array(memory: Any, location: Location, released: "Deque[int]") -> Any:
    # All views of this array keep a reference to it: memoryviews and tensors of other libraries as well.
    array = np.frombuffer(memory, np.uint8, location.size, location.start)
    offset = location.offset
    weakref.finalize(array, released.append, offset).atexit = False
    return array


def _capacity(size: int) -> int:
    """Round `size` up to whole pages in steps of a quarter of a power of two; with few sizes, blocks can be reused."""
    step = max(_PAGE, 1 << max(0, size.bit_length() - 3))
    return max(_PAGE, -(-size // step) * step)

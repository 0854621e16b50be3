"""Shared memory for large tensors: files without a name that grow and shrink.

There are two, one that the server writes to and one that the worker writes to. Each is one file of the kernel's memory
(``memfd``), which both have open: no name is left behind, in any order of ends, and no size is fixed, nor is
``/dev/shm`` used. On Linux no process that has it open can make it smaller, which would kill the next reader of the
lost part. Its owner divides it into blocks, one for a tensor, and tells the other side where it has put what.

A block is free, or it is leased: the other side has heard of it, and has not said `RELEASE` as often. The other side
keeps one mapping for each block that it knows; the array over it that it makes for each lease gives the lease back when
no reference to it, or to anything made of it, is left. Free blocks are used again, with their pages; those that have
not been used for a while lose their pages to the system, and are mapped anew when they are needed again.
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
"""Seconds after which a free block gives its pages back."""
_PAGE = 4096


def new_file(name: str) -> int:
    """Open an empty file in memory that can only grow; returns its descriptor.

    If the system has no such files, it is an unlinked file, which a process that truncates it can harm.
    """
    create = getattr(os, "memfd_create", None)
    if create is not None:
        fd = int(create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return fd
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Block:
    """A part of the file, and how many hold it."""

    __slots__ = ("capacity", "free_since", "holders", "mapping", "offset")

    def __init__(self, offset: int, capacity: int) -> None:
        self.offset = offset
        self.capacity = capacity
        self.mapping: Optional[mmap.mmap] = None
        self.holders = 0
        self.free_since = 0.0


class Arena:
    """The side that owns a file and writes to it. Any thread may use it."""

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
        """Bytes of the blocks that are not free."""
        with self._lock:
            self._take_back()
            return sum([block.capacity for block in self._blocks.values() if block.holders])

    @property
    def mapped(self) -> int:
        """Bytes of the blocks that may have pages."""
        with self._lock:
            return sum([block.capacity for block in self._blocks.values() if block.mapping is not None])

    def allocate(self, size: int) -> Tuple[Location, Any]:
        """Allocate a block for `size` bytes, leased once; returns its location and the array of bytes to write them to.

        Raises OSError if the system has no memory, and after `close`.
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
        """Write elements into a block."""
        location, array = self.allocate(size)
        array[:] = np.frombuffer(elements, np.uint8)
        return location

    def hold(self, location: Location) -> Any:
        """Return an array over a part of one of this side's own blocks, named by the other side.

        Raises ValueError for a block that there is not, or that is free.
        """
        with self._lock:
            block = self._blocks.get(location.offset)
            if block is None or not block.holders or location.start + location.size > block.capacity:
                raise ValueError("elements are in a block that is in use")
            block.holders += 1
        return _lease_array(block.mapping, location, self._released)

    def release(self, offset: int) -> None:
        """Count the end of a lease of a block. Any thread."""
        self._released.append(offset)

    def trim(self, now: Optional[float] = None) -> None:
        """Give the pages of blocks that have been free for a while back to the system."""
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
        """Return the blocks that the other side need not map any more."""
        if not self._forgotten:
            return []
        with self._lock:
            forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def close(self) -> None:
        """Stop allocating. The file lives on in its mappings, as long as any reference to these exists."""
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
    """Reading side of a file that its owner writes. One thread at a time, but for the end of leases."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mappings: Dict[int, Tuple[mmap.mmap, int]] = {}
        self._released: Deque[int] = deque()

    def fetch(self, location: Location) -> Any:
        """Return an array of the bytes at a location, which may be written to. The lease is over when it is gone.

        Raises ValueError for a place that is not in the file.
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
        """Return a block's offset and capacity, and the place of some memory in it; None for memory elsewhere."""
        for offset, (mapping, begin) in self._mappings.copy().items():  # of which another thread may fetch more
            if begin <= address and address + size <= begin + len(mapping):
                return offset, len(mapping), address - begin
        return None

    def take_released(self) -> List[int]:
        """Return the blocks of leases that have ended since the last call: one entry for each lease."""
        if not self._released:
            return []
        released = []
        while self._released:
            released.append(self._released.popleft())
        return released

    def close(self) -> None:
        """Stop fetching. Mappings end when they are not read any more."""
        self._mappings.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def forget(self, offset: int) -> None:
        """Drop a block that its owner has given up: the mapping ends when it is not read any more."""
        self._mappings.pop(offset, None)


def _lease_array(memory: Any, location: Location, released: "Deque[int]") -> Any:
    # All that is made of this array refers to it: views, memoryviews, tensors of other libraries.
    array = np.frombuffer(memory, np.uint8, location.size, location.start)
    offset = location.offset
    weakref.finalize(array, released.append, offset).atexit = False
    return array


def _capacity(size: int) -> int:
    """Round `size` up to whole pages, in steps of a quarter of a power of two: with few sizes, blocks fit again."""
    step = max(_PAGE, 1 << max(0, size.bit_length() - 3))
    return max(_PAGE, -(-size // step) * step)

"""Tunes the C library's allocator for a server, with requests that hold megabytes for milliseconds.

By default, glibc returns a freed tensor's memory to the system, which clears the same pages again for the next one: two
fifths of the CPU time of a request of 4.8 MB. With these settings glibc keeps some memory, and after a busy time, or an
attack, the `Trimmer` returns unused memory. Other allocators are not changed, nor is glibc's if the environment
configures it.

The size of the process does not show how much is worth returning: memory of responses that clients are slow to read
looks like memory kept by the allocator. So the `Trimmer` uses the *slack*: the memory of the process beyond what the
allocator has given out, and engines keep in allocators of their own (`core.runtime.long_buffers`). It rises when memory
is freed, however long that was in use.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from modserve.core.runtime import long_buffers
from modserve.core.runtime.periodic import PeriodicTask

_log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAP_BYTES = 32 * 1024 * 1024
"""The largest value that glibc accepts. A larger allocation is a mapping of its own, which ends when it is freed."""
_TRIM_BYTES = 128 * 1024 * 1024
"""Free memory that glibc keeps at the end of its heap: about as much as two dozen requests of 4.8 MB hold. With 64 MiB,
sixteen such clients cost an eighth more CPU time."""
_ARENAS = 1
"""Number of arenas. Only the first one returns all of its free memory when trimmed: each other one keeps up to 64 MiB
at its end, so that memory of an unloaded model could remain, or be counted for the next one."""

LOOK_S = 2.0
_SURPLUS = 32 * 1024 * 1024
"""Growth of the slack in bytes since the last trimming that is worth returning."""
_REST = 8 * 1024 * 1024
"""Slack in bytes worth returning if it does not change: the rest after a busy time."""
_REPORT = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
"""Fields of ``struct mallinfo``: `uordblks` is the heap memory in use, `hblkhd` the memory of separate mappings."""
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def glibc(environment: Mapping[str, str] = os.environ) -> ctypes.CDLL | None:
    """Return the C library if it is glibc and the environment does not configure its allocator; else None."""
    if "LD_PRELOAD" in environment or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it
        return library
    except (OSError, AttributeError):
        return None


def tune(library: ctypes.CDLL) -> None:
    """Make glibc reuse allocations of up to 32 MiB instead of asking the system each time."""
    library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    library.mallopt(_M_ARENA_MAX, _ARENAS)


def usage(library: ctypes.CDLL) -> Callable[[], int]:
    """Return a function that reports the bytes given out by glibc. It visits each free block, which takes microseconds.

    Before glibc 2.33 it reports the number modulo 4 GiB.
    """
    name, number = ("mallinfo2", ctypes.c_size_t) if hasattr(library, "mallinfo2") else ("mallinfo", ctypes.c_uint)

    class MallocInfo(ctypes.Structure):
        _fields_ = [(field, number) for field in _REPORT]

    report = ctypes.CFUNCTYPE(MallocInfo)((name, library))

    def measure_use() -> int:
        numbers = report()
        return int(numbers.uordblks + numbers.hblkhd)

    return measure_use


class Trimmer:
    """Returns memory to the system after a busy time. Checks every `LOOK_S` seconds, on the event loop.

    Freed memory is returned at the second check, after 4 s at most; while more is being freed, at the first check with
    a growth of the slack below the worthwhile amount.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, library: ctypes.CDLL, used: Callable[[], int]) -> None:
        """`used`: the function returned by `usage`."""
        self._loop = loop
        self._library = library
        self._used = used
        self._floor = self._last = self._slack()
        self._task = PeriodicTask("allocator", LOOK_S, self._look)
        self._task.start(loop)

    def stop(self) -> None:
        self._task.stop()

    def _slack(self) -> int:
        return resident() - self._used() + sum([each.spare() for each in long_buffers.keepers()])

    async def _look(self) -> None:
        now = self._slack()
        growth = now - self._last
        self._last = now
        self._floor = min(self._floor, now)
        surplus = now - self._floor
        if growth > _SURPLUS or surplus < (_REST if abs(growth) < _REST else _SURPLUS):
            return
        # It walks the whole heap, so it must not run on the event loop's thread.
        await self._loop.run_in_executor(None, self._trim)
        self._floor = self._slack()
        self._last = self._floor
        _log.debug("returned %d MB of memory to the system", max(0, now - self._floor) // 2**20)

    def _trim(self) -> None:
        for each in long_buffers.keepers():
            each.give_back()
        self._library.malloc_trim(0)


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0

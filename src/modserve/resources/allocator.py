"""Sets the C library's allocator for a server whose requests hold megabytes for milliseconds.

By default, glibc returns a freed tensor's memory to the system, which clears the same pages again for the next one: two
fifths of the CPU of a request of 4.8 MB. With these settings it keeps some memory, and after a busy time, or an attack,
the `Trimmer` returns what is not used again soon. Other allocators stay as they are, and glibc's if the environment
configures it.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Mapping
from pathlib import Path

_log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAP_BYTES = 32 * 1024 * 1024
"""The largest value that glibc accepts. A larger allocation is a mapping of its own, which ends when it is freed."""
_TRIM_BYTES = 128 * 1024 * 1024
"""The free memory that glibc keeps at the end of its heap: about what two dozen requests of 4.8 MB hold. With 64 MiB,
sixteen such clients cost an eighth more CPU."""
_ARENAS = 1
"""Only the first arena returns all of its free memory when it is trimmed: each other one keeps up to 64 MiB at its end,
so that a model which has left might stay there, or be counted with the next one."""

LOOK_S = 2.0
_SURPLUS = 64 * 1024 * 1024
"""Bytes of growth since the last trimming that are worth returning."""
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def glibc(environment: Mapping[str, str] = os.environ) -> ctypes.CDLL | None:
    """The C library if it is glibc and the environment does not configure its allocator; else None."""
    if "LD_PRELOAD" in environment or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it
        return library
    except (OSError, AttributeError):
        return None


def tune(library: ctypes.CDLL) -> None:
    """Makes glibc reuse allocations of up to 32 MiB instead of asking the system each time."""
    library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    library.mallopt(_M_ARENA_MAX, _ARENAS)


class Trimmer:
    """Returns memory to the system after a busy time. Checks every `LOOK_S` seconds, on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, library: ctypes.CDLL) -> None:
        self._loop = loop
        self._library = library
        self._floor = self._last = resident()
        self._timer = loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = resident()
        growing = now > self._last
        self._last = now
        self._floor = min(self._floor, now)
        if growing or now < self._floor + _SURPLUS:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        else:
            # It walks the whole heap, so it must not run on the event loop's thread.
            trimming = self._loop.run_in_executor(None, self._library.malloc_trim, 0)
            trimming.add_done_callback(self._trimmed)

    def _trimmed(self, trimming: "asyncio.Future[int]") -> None:
        if not trimming.cancelled() and not self._loop.is_closed():
            before, self._floor = self._last, resident()
            self._last = self._floor
            _log.debug("gave %d MB of memory back to the system", max(0, before - self._floor) // 2**20)
            self._timer = self._loop.call_later(LOOK_S, self._look)


def resident() -> int:
    """Bytes of memory that this process has; 0 if the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0

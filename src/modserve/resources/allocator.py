"""The C library's allocator, set for a server whose requests hold megabytes for milliseconds.

Left to itself, glibc gives back the memory of a freed tensor to the system at once, which then clears the same pages
again for the next one: two fifths of the CPU of a request of 4.8 MB. Told to keep some of it, it reuses the pages.
What is left over after a busy time, or an attack, is given back when it is not used again soon.

Other allocators (musl's, macOS', one that is preloaded) are left alone, and so is glibc's where the environment says
how it shall work.
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
"""The most that glibc takes: what is larger is a mapping of its own, given back when it is freed."""
_TRIM_BYTES = 64 * 1024 * 1024
"""What glibc keeps at the end of its heap: about what a dozen requests of 4.8 MB hold. Measured with four such clients:
1.0 times the CPU of unlimited memory, at a quarter of its size."""
_ARENAS = 2
"""Each keeps that much for itself and gives it back to nobody. With one interpreter lock two are enough; glibc makes
eight for each core."""

LOOK_S = 2.0
_SURPLUS = 64 * 1024 * 1024
"""Bytes above those after the last time that are worth giving back."""
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def glibc(environment: Mapping[str, str] = os.environ) -> ctypes.CDLL | None:
    """The C library if it is glibc, and nobody else has set its allocator."""
    if "LD_PRELOAD" in environment or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it
        return library
    except (OSError, AttributeError):
        return None


def tune(library: ctypes.CDLL) -> None:
    """Reuse memory of up to 32 MiB a piece instead of asking the system for it each time."""
    library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    library.mallopt(_M_ARENA_MAX, _ARENAS)


class Trimmer:
    """Gives memory back to the system when a busy time is over: looks every `LOOK_S` seconds, on the event loop."""

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
            # It goes through the whole heap: not for the event loop's thread.
            trimming = self._loop.run_in_executor(None, self._library.malloc_trim, 0)
            trimming.add_done_callback(self._trimmed)

    def _trimmed(self, trimming: "asyncio.Future[int]") -> None:
        if not trimming.cancelled() and not self._loop.is_closed():
            before, self._floor = self._last, resident()
            self._last = self._floor
            _log.debug("gave %d MB of memory back to the system", max(0, before - self._floor) // 2**20)
            self._timer = self._loop.call_later(LOOK_S, self._look)


def resident() -> int:
    """Bytes of memory that this process has; 0 where nothing says."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0

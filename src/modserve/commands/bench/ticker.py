"""Wakes the event loop with microsecond precision; timers of event loops have a millisecond.

Linux has timers that are files. Elsewhere, the loop's own timers have to do.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol


class Ticker(Protocol):
    def arm(self, moment: int) -> None:
        """Call back once at this moment of `slots.clock`, or soon if it is over."""

    def close(self) -> None: ...


def ticker(callback: Callable[[], None]) -> Ticker:
    if sys.platform == "linux":
        try:
            return FileTicker(callback)
        except OSError:  # a sandbox may know no such files
            pass
    return LoopTicker(callback)


class LoopTicker:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def arm(self, moment: int) -> None:
        self._handle = self._loop.call_later(max(0, moment - time.perf_counter_ns()) / 1e9, self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class _Spec(ctypes.Structure):
    """``struct itimerspec``: the interval, then the moment."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


_MONOTONIC, _ABSOLUTE = 1, 1
_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class FileTicker:
    """timerfd_create(2), of the clock that `time.perf_counter_ns` reads on Linux. Raises OSError."""

    def __init__(self, callback: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        try:
            self._set = library.timerfd_settime
            self._descriptor: int = library.timerfd_create(_MONOTONIC, _FLAGS)
        except AttributeError as error:
            raise OSError("the C library has no timerfd_create") from error
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Spec()
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._wake)

    def arm(self, moment: int) -> None:
        self._spec.s, self._spec.ns = divmod(max(moment, 1), 1_000_000_000)
        self._set(self._descriptor, _ABSOLUTE, ctypes.byref(self._spec), None)

    def _wake(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self._callback()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

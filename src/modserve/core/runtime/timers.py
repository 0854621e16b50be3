"""Timers that are exact to some microseconds. Event loops have timers of their own, but those count milliseconds.

On Linux: one ``timerfd`` for each clock of an event loop (timerfd_create(2)), which the loop watches as it watches
sockets. A timer rings when it is due and never before, so that no caller has to poll the clock.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from modserve.core.runtime.failures import count_failure

_ABSOLUTE = 1
_NONBLOCKING = 0o4000
_CLOSED_ON_EXEC = 0o2000000


@dataclass(slots=True)
class _Handle:
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


class ExactTimers:
    """Calls back at moments of the monotonic clock. All methods run on the event loop's thread.

    It is for moments that are near: a cancelled timer is kept until its time has come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor, self._arm_at = _timer()
        self._heap: list[tuple[int, int, _Handle]] = []
        self._order = itertools.count()
        self._armed_ns = 0
        loop.add_reader(self._descriptor, self._ring)
        # Do not keep the loop alive: when it goes, the descriptor is closed.
        weakref.finalize(loop, os.close, self._descriptor)

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> _Handle:
        handle = _Handle(callback)
        heapq.heappush(self._heap, (when_ns, next(self._order), handle))
        if not self._armed_ns or when_ns < self._armed_ns:
            self._arm(when_ns)
        return handle

    def _arm(self, when_ns: int) -> None:
        """Let the descriptor become readable at a moment, 0 for never. It is not readable until then."""
        self._armed_ns = when_ns
        self._arm_at(when_ns)

    def _ring(self) -> None:
        heap = self._heap
        now_ns = time.monotonic_ns()
        self._arm(0)
        while heap and (heap[0][0] <= now_ns or heap[0][2].callback is None):
            callback = heapq.heappop(heap)[2].callback
            if callback is not None:
                try:
                    callback()
                except Exception as error:
                    count_failure("timers", error)
        if heap and (not self._armed_ns or heap[0][0] < self._armed_ns):
            self._arm(heap[0][0])


def exact_timers(loop: asyncio.AbstractEventLoop) -> ExactTimers | None:
    """Create exact timers for an event loop; None if it cannot have any."""
    # No kernel but Linux has timerfd: the C library lacks the function (AttributeError). A sandbox may forbid the call,
    # or the process may have no descriptor left (OSError). An event loop may be unable to watch descriptors
    # (NotImplementedError). The loop's own timers, which are later by up to a millisecond, do in all three cases.
    with suppress(OSError, AttributeError, NotImplementedError):
        return ExactTimers(loop)
    return None


def _timer() -> tuple[int, Callable[[int], None]]:
    """Create a descriptor, and a function that sets it to a moment, 0 for never. Raises OSError or AttributeError."""
    if sys.version_info >= (3, 13):
        descriptor = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

        def arm(when_ns: int) -> None:
            os.timerfd_settime_ns(descriptor, flags=os.TFD_TIMER_ABSTIME, initial=when_ns, interval=0)

        return descriptor, arm
    return _timer_by_ctypes()


def _timer_by_ctypes() -> tuple[int, Callable[[int], None]]:
    # `PyDLL` keeps the interpreter's lock: the calls do not block, and giving it away would cost more than they do.
    library = ctypes.PyDLL(None)
    descriptor: int = library.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCKING | _CLOSED_ON_EXEC)
    if descriptor < 0:
        raise OSError("timerfd_create failed")
    times = (ctypes.c_long * 4)()  # ``struct itimerspec``: the interval, none, and the moment, in s and ns each
    reference, set_time = ctypes.byref(times), library.timerfd_settime

    def arm(when_ns: int) -> None:
        times[2], times[3] = divmod(when_ns, 1_000_000_000)
        set_time(descriptor, _ABSOLUTE, reference, None)

    return descriptor, arm

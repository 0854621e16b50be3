"""Monotonic time of an event loop, and alarms."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from modserve.core.runtime.failures import count_failure, register_task
from modserve.core.runtime.turn import turn_of

from .timers import ExactTimers, exact_timers


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic time in nanoseconds, and calls at a later moment on the event loop's thread."""

    def now_ns(self) -> int: ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back when this turn of the event loop is over, or when the front end has handed its request over."""

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        """Call back at `when_ns` or up to some milliseconds earlier: look at the clock then, and call this again."""


_TASK = "scheduling"
register_task(_TASK)
_AGAIN_NS = 1_000_000_000
"""Time until an alarm with a failed callback rings again."""


@dataclass(slots=True, eq=False, repr=False)
class Alarm:
    """Movable alarm for a single moment. `when_ns` is that moment, 0 for none."""

    _clock: Clock
    _ring: Callable[[], None]
    when_ns: int = 0
    _timer: TimerHandle | None = None

    def at(self, when_ns: int) -> None:
        """Ring then, and at no other time; never if that is 0."""
        if when_ns == self.when_ns:
            return
        self.cancel()
        if when_ns:
            self.when_ns = when_ns
            self._timer = self._clock.call_at(when_ns, self._rings)

    def by(self, when_ns: int) -> None:
        """Ring then, unless that is done earlier anyway."""
        if not self.when_ns or when_ns < self.when_ns:
            self.at(when_ns)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.when_ns = 0

    def end(self) -> None:
        """Never ring again, and forget the callback."""
        self.cancel()
        self._ring = lambda: None

    def _rings(self) -> None:
        self._timer = None
        self.when_ns = 0
        try:
            self._ring()
        except Exception as error:
            count_failure(_TASK, error)
            self.by(self._clock.now_ns() + _AGAIN_NS)


_EARLY_NS = 1_500_000
"""Lead with which the event loop's own timer is to ring before a distant moment."""
_FAR_NS = _EARLY_NS + 2_500_000
"""Moments that are farther away are not yet for the exact timers, since these keep what was cancelled.

The loop's timer may ring two milliseconds sooner than it is to: delays are rounded down to milliseconds, and uvloop
counts them from a time that it has rounded down as well. What is left then is not far.
"""


class LoopClock:
    """The clock of an event loop. All schedulers of a loop share one, since it may hold a file descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now_ns = time.monotonic_ns
        self.call_soon = turn_of(loop).call_soon
        self._looked = False
        self._timers: ExactTimers | None = None

    @property
    def _exact(self) -> ExactTimers | None:
        if not self._looked:
            self._looked = True
            self._timers = exact_timers(self.loop)
        return self._timers

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        left_ns = when_ns - time.monotonic_ns()
        if left_ns > _FAR_NS:
            # This rings early. Whoever calls again then gets an exact timer.
            return self.loop.call_later((left_ns - _EARLY_NS) // 1_000_000 / 1e3, callback)
        if self._exact is None:
            return self.loop.call_later(-(-max(0, left_ns) // 1_000_000) / 1e3, callback)
        return self._exact.call_at(when_ns, callback)

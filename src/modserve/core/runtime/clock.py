"""Monotonic clock of an event loop, and alarms."""

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
    """Monotonic time in nanoseconds, and delayed calls on the event loop's thread."""

    def now_ns(self) -> int: ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this turn of the event loop, or after the front end's handover."""

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        """Call back at `when_ns`, or some milliseconds earlier: the callback checks the time and calls this again."""


_TASK = "scheduling"
register_task(_TASK)
_AGAIN_NS = 1_000_000_000
"""Time until an alarm rings again after its callback failed."""


@dataclass(slots=True, eq=False, repr=False)
class Alarm:
    """Movable alarm with a single callback. `when_ns` is the time of the alarm; 0 for none."""

    _clock: Clock
    _ring: Callable[[], None]
    when_ns: int = 0
    _timer: TimerHandle | None = None

    def at(self, when_ns: int) -> None:
        """Set the alarm to exactly this time; 0 disables it."""
        if when_ns == self.when_ns:
            return
        self.cancel()
        if when_ns:
            self.when_ns = when_ns
            self._timer = self._clock.call_at(when_ns, self._rings)

    def by(self, when_ns: int) -> None:
        """Set the alarm to this time unless it is set to an earlier one."""
        if not self.when_ns or when_ns < self.when_ns:
            self.at(when_ns)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.when_ns = 0

    def end(self) -> None:
        """Disable the alarm for good and drop the callback."""
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
"""Lead of the event loop's own timer before a distant alarm."""
_FAR_NS = _EARLY_NS + 2_500_000
"""Distance beyond which exact timers are not used yet, as they keep cancelled entries.

The event loop's timer may fire two milliseconds early: delays are rounded down to milliseconds, and uvloop counts them
from a rounded-down time. The remaining time is then below this limit.
"""


class LoopClock:
    """Clock of an event loop, shared by all its schedulers, as it may hold a file descriptor."""

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
            # This fires early. The next call then gets an exact timer.
            return self.loop.call_later((left_ns - _EARLY_NS) // 1_000_000 / 1e3, callback)
        if self._exact is None:
            return self.loop.call_later(-(-max(0, left_ns) // 1_000_000) / 1e3, callback)
        return self._exact.call_at(when_ns, callback)

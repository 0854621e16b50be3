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
        """Call back at the end of this event-loop turn, or after a front end has handed over its requests (`turn`)."""

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        """Call back at `when_ns`, or some milliseconds earlier. An early callback calls this method again."""


_TASK = "scheduling"
register_task(_TASK)
_RETRY_NS = 1_000_000_000
"""Time until an alarm calls its callback again after the callback failed."""


@dataclass(slots=True, eq=False, repr=False)
class Alarm:
    """Alarm with one callback. Its time `when_ns` can change; 0 for no alarm."""

    _clock: Clock
    _callback: Callable[[], None]
    when_ns: int = 0
    _timer: TimerHandle | None = None

    def at(self, when_ns: int) -> None:
        """Set the alarm to this time. 0 disables it."""
        if when_ns == self.when_ns:
            return
        self.cancel()
        if when_ns:
            self.when_ns = when_ns
            self._timer = self._clock.call_at(when_ns, self._on_timer)

    def by(self, when_ns: int) -> None:
        """Set the alarm to this time, unless it is set to an earlier time."""
        if not self.when_ns or when_ns < self.when_ns:
            self.at(when_ns)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.when_ns = 0

    def end(self) -> None:
        """Disable the alarm and drop the callback. Later alarms have no effect."""
        self.cancel()
        self._callback = lambda: None

    def _on_timer(self) -> None:
        self._timer = None
        self.when_ns = 0
        try:
            self._callback()
        except Exception as error:
            count_failure(_TASK, error)
            self.by(self._clock.now_ns() + _RETRY_NS)


_LEAD_NS = 1_500_000
"""Time before a distant alarm at which the event loop's own timer fires."""
_FAR_NS = _LEAD_NS + 2_500_000
"""Remaining time above which the event loop's timer is used. Exact timers keep cancelled entries until their time.

The event loop's timer may fire two milliseconds early: delays are rounded down to milliseconds, and uvloop counts them
from a rounded-down time. The time that remains then is below this limit, so that an exact timer follows.
"""


class LoopClock:
    """Clock of an event loop. It may hold a file descriptor; therefore all schedulers of the loop share it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now_ns = time.monotonic_ns
        self.call_soon = turn_of(loop).call_soon
        self._checked = False
        self._timers: ExactTimers | None = None

    @property
    def _exact(self) -> ExactTimers | None:
        if not self._checked:
            self._checked = True
            self._timers = exact_timers(self.loop)
        return self._timers

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        left_ns = when_ns - time.monotonic_ns()
        if left_ns > _FAR_NS:
            # Fires early. The callback then calls this method again and gets an exact timer.
            return self.loop.call_later((left_ns - _LEAD_NS) // 1_000_000 / 1e3, callback)
        if self._exact is None:
            return self.loop.call_later(-(-max(0, left_ns) // 1_000_000) / 1e3, callback)
        return self._exact.call_at(when_ns, callback)

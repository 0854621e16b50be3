"""Limits for log lines that clients can cause, so that bad requests cannot fill a disk."""

import math
from collections.abc import Callable
from typing import Final

LINES_PER_SECOND: Final = 10
WARNING_S: Final = 10.0
"""Seconds between two warnings about one kind of event."""


class LogLimit:
    """Limit of `LINES_PER_SECOND` lines in each second. For one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second = -math.inf
        """Start of the second in which lines are counted."""
        self._lines = 0

    def allows(self) -> bool:
        """Count a line; False if it is one too many."""
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        self._lines += 1
        return self._lines <= LINES_PER_SECOND

    @property
    def rest(self) -> float:
        """Seconds until lines are allowed again."""
        return max(0.0, self._second + 1.0 - self._clock())


class LogInterval:
    """Interval between two log lines about a frequent event, and the count of events in between. For one thread."""

    def __init__(self, seconds: float = WARNING_S) -> None:
        self._seconds = seconds
        self._count = 0
        self._next = -math.inf

    def due(self, now: float, events: int = 1) -> int:
        """Count events at `now` (s). Return their number since the last log line, or 0 if none is due yet."""
        self._count += events
        if now < self._next:
            return 0
        self._next = now + self._seconds
        count, self._count = self._count, 0
        return count

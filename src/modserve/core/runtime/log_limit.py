"""Limit for log lines that clients can cause, so that bad requests cannot fill a disk."""

import math
from collections.abc import Callable
from typing import Final

LINES_PER_SECOND: Final = 10


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

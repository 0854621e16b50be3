"""Budgets for what the client of one connection does without furthering a call.

A budget begins full (`ConnectionLimits`). It gains some a second, up to that, and some by what the server does for the
client. What it has sent earns WINDOW_UPDATE without an upper bound: a client may give back the windows of a burst of
responses long after the last of them was sent.
"""

from typing import final

from .endings import TOO_MANY_RESETS, TOO_MANY_UPDATES, TOO_MUCH_NOISE
from .frames import client_error
from .limits import NOISE_OF_DATA, NOISE_OF_STREAM, UPDATES_OF_DATA, UPDATES_OF_STREAM, ConnectionLimits


@final
class Budgets:
    """Counters of the budgets that are left. Spending more raises `Http2Error`."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self.noise = limits.noise
        self.resets = limits.resets
        self.updates = limits.updates

    def spend_update(self) -> None:
        """Account for a WINDOW_UPDATE of the client."""
        self.updates -= 1
        if self.updates < 0:
            raise client_error(TOO_MANY_UPDATES)

    def spend_noise(self, count: int = 1) -> None:
        """Account for another frame that furthers no call, or one that costs as much as `count` of them."""
        self.noise -= count
        if self.noise < 0:
            raise client_error(TOO_MUCH_NOISE)

    def spend_reset(self) -> None:
        """Account for a stream that ended before its time."""
        self.resets -= 1
        if self.resets < 0:
            raise client_error(TOO_MANY_RESETS)

    def stream_ended(self) -> None:
        """Account for a stream that was served to its end."""
        limits = self._limits
        if self.resets < limits.resets:
            self.resets += 1
        if self.noise < limits.noise:
            self.noise = min(self.noise + NOISE_OF_STREAM, limits.noise)
        self.updates += UPDATES_OF_STREAM

    def data_sent(self, frames: int, messages: int) -> None:
        """Earn noise and updates for `frames` of data that were sent, in which `messages` end."""
        self.noise = min(self.noise + NOISE_OF_DATA * frames, self._limits.noise)
        self.updates += UPDATES_OF_DATA * max(messages, frames)

    def pass_time(self, seconds: float) -> None:
        limits = self._limits
        self.noise = _refill(self.noise, int(limits.noise_a_second * seconds), limits.noise)
        self.resets = _refill(self.resets, int(limits.resets_a_second * seconds), limits.resets)
        self.updates = _refill(self.updates, int(limits.updates_a_second * seconds), limits.updates)


def _refill(left: int, gain: int, most: int) -> int:
    """Refill a budget by time up to `most`; it keeps what was earned beyond that."""
    return max(left, min(left + gain, most))

"""Flow control between an engine that responds many times and a client that takes its time to read."""

import threading
from collections.abc import Callable

MOST_UNSENT = 64
"""Responses of one request that may have been given and not sent yet."""

STALLED_S = 60.0
"""How long an engine waits for a client that takes nothing at all, before it is no longer waited for."""


class Flow:
    """Of one request. The engine's thread waits in `given`; whoever sends responses on says so.

    `stalled` is called, on the engine's thread, when nothing was sent for `STALLED_S`.
    """

    def __init__(self, stalled: Callable[[], object], stalled_s: float = STALLED_S) -> None:
        self._stalled = stalled
        self._stalled_s = stalled_s
        self._changed = threading.Condition()
        self._unsent = 0
        self._sent = 0
        self._open = False

    def given(self) -> None:
        """A response has been given; returns when there is room for another. Not for the event loop's thread."""
        with self._changed:
            self._unsent += 1
            while not self._open and self._unsent >= MOST_UNSENT:
                sent = self._sent
                if not self._changed.wait(self._stalled_s) and self._sent == sent:
                    self._open = True
                    break
            else:
                return
        self._stalled()

    def sent(self) -> None:
        """A response has been sent, or was dropped."""
        with self._changed:
            self._unsent -= 1
            self._sent += 1
            self._changed.notify()

    def release(self) -> None:
        """Nobody sends any more: nobody need wait, now and later."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

"""Dispatch of the requests of one event-loop turn: together at its end, or immediately.

Requests of the same turn run as one batch: a scheduler that queues one is called back when the turn is over. If
requests arrive singly, this costs an extra turn. A front end therefore marks the handover of requests by `begin` and
`end`, and they run before `end` returns if recent turns had a single arrival each.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final
from weakref import WeakKeyDictionary, ref

BURST: Final = 1024 * 1024
"""Bytes that are read from one connection before others have their turn. uvloop's library reads 32 times in a row, 8 MB
or 10 ms, if it is not stopped."""

_SURE: Final = 16
"""Consecutive turns with a single arrival after which the next arrivals do not wait for the end of their turn."""
_TRUSTED: Final = 15
"""Number of such arrivals; then one waits, to see whether others arrive."""


@final
class Turn:
    """The present turn of one event loop. For the loop's thread."""

    __slots__ = ("_alone", "_came", "_due", "_inside", "_loop", "_planned", "_trusted")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # `_turns` must not keep the loop
        self._due: list[Callable[[], None]] = []
        self._came = 0
        """Arrivals in this turn."""
        self._planned = False
        """True if a callback at the end of this turn is scheduled."""
        self._inside = False
        """True between `begin` and `end`."""
        self._alone = 0
        """Turns with a single arrival, since the last one with more."""
        self._trusted = 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the turn; from between `begin` and `end`, maybe at that `end`."""
        self._due.append(callback)
        if not self._inside:
            self._came += 1
            self._plan()

    def begin(self) -> None:
        """Note that a front end is about to hand over a client's requests."""
        self._inside = True

    def end(self) -> None:
        """Note that the front end has done so, and is ready for responses. Never raises."""
        self._inside = False
        if not self._due:
            return
        self._came += 1
        if self._trusted and not self._planned:
            self._trusted -= 1
            self._came = 0
            self._run()
        else:
            self._plan()

    def _plan(self) -> None:
        loop = self._loop()
        if not self._planned and loop is not None:
            self._planned = True
            loop.call_soon(self._over)

    def _over(self) -> None:
        self._planned = False
        self._alone = self._alone + 1 if self._came == 1 else 0
        self._came = 0
        self._trusted = _TRUSTED if self._alone >= _SURE else 0
        self._run()

    def _run(self) -> None:
        due = self._due
        self._due = []
        for callback in due:
            try:
                callback()
            except Exception as error:  # as the event loop has it: it costs nobody else anything
                loop = self._loop()
                if loop is not None:
                    loop.call_exception_handler(
                        {"message": "a callback at the end of an event loop turn failed", "exception": error}
                    )


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the turn of an event loop, which all its schedulers and front ends share."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn(loop)
    return turn

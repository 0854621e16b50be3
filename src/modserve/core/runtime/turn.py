"""Dispatch of the requests of one event-loop turn: together at its end, or immediately.

Requests of the same turn run as one batch: a scheduler that queues a request is called back at the end of the turn. For
single arrivals this costs an extra turn. A front end therefore marks the handover of requests with `begin` and `end`.
If recent turns had a single arrival each, the requests run before `end` returns.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final
from weakref import WeakKeyDictionary, ref

BURST: Final = 1024 * 1024
"""Bytes read from one connection before others get their turn. Without this limit, libuv reads 32 times in a row, 8 MB
or 10 ms."""

_SURE: Final = 16
"""Consecutive turns with a single arrival, after which arrivals do not wait for the end of the turn."""
_TRUSTED: Final = 15
"""Number of arrivals that do not wait. Then one waits, to detect further arrivals."""


@final
class Turn:
    """Current turn of an event loop. Used on the loop's thread."""

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
        """Consecutive turns with a single arrival."""
        self._trusted = 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the turn, or possibly at `end` if called between `begin` and `end`."""
        self._due.append(callback)
        if not self._inside:
            self._came += 1
            self._plan()

    def begin(self) -> None:
        """Mark the start of a front end's handover of requests."""
        self._inside = True

    def end(self) -> None:
        """Mark the end of the handover: the front end is ready for responses. Never raises."""
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
            except Exception as error:  # other callbacks run, as in the event loop
                loop = self._loop()
                if loop is not None:
                    loop.call_exception_handler(
                        {"message": "a callback at the end of an event loop turn failed", "exception": error}
                    )


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the turn of an event loop, shared by its schedulers and front ends."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn(loop)
    return turn

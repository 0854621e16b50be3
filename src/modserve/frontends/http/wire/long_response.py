"""A long response, written in pieces as the client reads it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from modserve.core.tensors.tensor import Buffer

_PIECE: Final = 256 * 1024
"""Bytes of one write, and so the most that the transport copies of data that the system does not accept at once."""

_TURN: Final = 1024 * 1024
"""Bytes per turn of the event loop: up to a millisecond."""


class LongResponse:
    """The current response. Its parts are kept unchanged until they are written.

    `done` is called when all data is with the transport.
    """

    __slots__ = ("_done", "_left", "_loop", "_parts", "_paused", "_scheduled", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        parts: Sequence[Buffer],
        done: Callable[[bool], None],
        paused: bool,
    ) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        self._left = sum(map(len, views))
        self._paused = paused
        self._parts = deque(views)
        self._loop = loop
        self._transport = transport
        self._done = done
        self._scheduled = False

    @property
    def begun(self) -> bool:
        return True

    @property
    def filler(self) -> bytes:
        return b""

    @property
    def left(self) -> int:
        return self._left

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.write()

    def write(self) -> None:
        """Write as much as the client accepts in one turn of the event loop; the rest follows."""
        end = self._left - _TURN
        while self._left and not self._paused and not self._scheduled and not self._transport.is_closing():
            if self._left <= end:
                self._scheduled = True
                self._loop.call_soon(self._next_turn)
                return
            self._transport.write(self._next_piece())
            if not self._left:
                self._done(True)

    def cancel(self) -> None:
        self._left = 0
        self._parts.clear()

    def _next_turn(self) -> None:
        self._scheduled = False
        self.write()

    def _next_piece(self) -> Buffer:
        """Return a slice of a part, or several joined parts."""
        views: list[memoryview] = []
        room = _PIECE
        while room and self._parts:
            view = self._parts.popleft()
            if len(view) > room:
                self._parts.appendleft(view[room:])
                view = view[:room]
            views.append(view)
            room -= len(view)
        self._left -= _PIECE - room
        return views[0] if len(views) == 1 else b"".join(views)

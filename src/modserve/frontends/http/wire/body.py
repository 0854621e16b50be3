"""The body of a request while it arrives."""

import asyncio

from modserve.core.tensor import Buffer

_LONG_BODY = 16 * 1024 * 1024
"""Bytes of the longest body that is joined when it is complete, which blocks the event loop for 5 ms. A longer one
grows as it arrives: its memory is a mapping of its own, which the system enlarges without copying it."""


class IncomingBody:
    """`size` is the number of bytes so far; `_pieces` holds them, or `_long` those of a long body."""

    __slots__ = ("_long", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._long: bytearray | None = None

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._long is not None:
            self._long += piece
            return
        self._pieces.append(piece)
        if self.size > _LONG_BODY:
            self._long = bytearray().join(self._pieces)
            self._pieces = []

    def take(self) -> Buffer:
        """The body, once it is complete. Nothing is left."""
        pieces, long = self._pieces, self._long
        self.size, self._pieces, self._long = 0, [], None
        if long is not None:
            return memoryview(long).toreadonly()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget a body that nobody will read."""
        long = self._long
        self.size, self._pieces, self._long = 0, [], None
        if long is not None:
            _free(long, loop)


def _free(long: bytearray, loop: asyncio.AbstractEventLoop) -> None:
    """Free half of it in each turn of the event loop: the system needs 0.1 ms to take back a megabyte."""
    if len(long) > _LONG_BODY:
        del long[len(long) // 2 :]
        loop.call_soon(_free, long, loop)

"""The body of a request while it arrives."""

import asyncio
from io import BytesIO

from modserve.core.runtime.long_buffers import BEGUN, WORTHWHILE, room, use_large_pages
from modserve.core.tensors.tensor import Buffer

_LONG_BODY = 1024 * 1024
"""Bytes of the longest body that is joined when it is complete. When more have come, there is a place for all of it:
who only announces much gets none."""


class IncomingBody:
    """A body that comes: `size` bytes so far, held by `_pieces`, or by `_long` if the body is long."""

    __slots__ = ("_long", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._long: BytesIO | None = None

    def add(self, piece: bytes, missing: int) -> None:
        """Add a piece; `missing` bytes follow, as far as that is known; 0 if not. Raises MemoryError."""
        self.size += len(piece)
        if self._long is None:
            self._pieces.append(piece)
            if self.size <= _LONG_BODY:
                return
            self._long = room(self.size + missing) if missing else BytesIO()
            self._long.writelines(self._pieces)
            self._pieces = []
        else:
            if self.size > BEGUN >= self.size - len(piece) and self.size + missing >= WORTHWHILE:
                use_large_pages(self._long, self.size - len(piece))
            self._long.write(piece)

    def take(self) -> Buffer:
        """Return the complete body, and keep nothing of it."""
        pieces, long = self._pieces, self._long
        self.size, self._pieces, self._long = 0, [], None
        if long is not None:
            return long.getvalue()  # the very bytes that were written to
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget a body that will not be read."""
        long = self._long
        self.size, self._pieces, self._long = 0, [], None
        if long is not None:
            _free(long, long.seek(0, 2), loop)


def _free(long: BytesIO, size: int, loop: asyncio.AbstractEventLoop) -> None:
    """Free half of it in each turn of the event loop: the system needs 0.1 ms to take back a megabyte."""
    if size > _LONG_BODY:
        size = size // 2 - 1  # a buffer that is half full stays as it is
        long.truncate(size)
        loop.call_soon(_free, long, size, loop)

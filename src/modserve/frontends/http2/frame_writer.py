"""Frames on their way out: header blocks, bodies in frames of DATA, and what waits for the next write."""

from collections import deque
from struct import Struct
from typing import Final, final

from . import frames
from .frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, head
from .stream import Chunk

_PART: Final = Struct(">HBBB")
"""A frame's head without its stream."""

_SHORT: Final = 1024
"""Bytes of a part that is joined with its neighbours before many are written."""

SIZE_UPDATE: Final = b"\x20"
"""Size update at the beginning of a block: the encoder's table has no room (RFC 7541, section 6.3)."""


@final
class FrameWriter:
    """Collector of frames, up to the length that the client has set."""

    def __init__(self) -> None:
        self.parts: list[Chunk] = []
        """Parts that are to be written."""
        self.longest_frame = frames.DEFAULT_FRAME
        self.size_update = b""
        """Beginning of the next header block."""

    def take(self) -> list[Chunk]:
        """Return the parts that are to be written, and forget them."""
        parts, self.parts = self.parts, []
        return parts

    def add(self, frame: bytes) -> None:
        self.parts.append(frame)

    def set_longest_frame(self, size: int) -> None:
        self.longest_frame = size

    def announce_table(self) -> None:
        """Announce that our encoder uses no table: the client has made its own smaller (RFC 7541, section 4.2)."""
        self.size_update = SIZE_UPDATE

    def add_headers(self, number: int, block: bytes, last: bool) -> None:
        """Add a header block, the `last` of its stream or not, in as many frames as it takes."""
        if self.size_update:
            block, self.size_update = self.size_update + block, b""
        size, most = len(block), self.longest_frame
        ends = END_STREAM if last else 0
        if size <= most:
            self.parts.append(head(size, HEADERS, END_HEADERS | ends, number) + block)
            return
        self.parts += (head(most, HEADERS, ends, number), block[:most])
        for at in range(most, size, most):
            part = block[at : at + most]
            self.parts += (head(len(part), CONTINUATION, END_HEADERS if at + most >= size else 0, number), part)

    def add_response(
        self, number: int, headers: bytes, prefix: bytes, body: list[Chunk], size: int, trailers: bytes
    ) -> None:
        """Add a whole response as one piece of bytes. Prefix and body have `size` bytes and fit into one frame."""
        stream = number.to_bytes(4, "big")
        self.parts.append(
            b"".join(
                [
                    _PART.pack(len(headers) >> 8, len(headers) & 255, HEADERS, END_HEADERS),
                    stream,
                    headers,
                    _PART.pack(size >> 8, size & 255, DATA, 0),
                    stream,
                    prefix,
                    *body,
                    _PART.pack(len(trailers) >> 8, len(trailers) & 255, HEADERS, END_HEADERS | END_STREAM),
                    stream,
                    trailers,
                ]
            )
        )

    def add_data(self, number: int, pending: deque[Chunk], most: int) -> int:
        """Add up to `most` bytes of `pending` as frames of the first chunk, or one of several; returns their size."""
        chunk, longest = pending.popleft(), self.longest_frame
        whole = min(len(chunk), most) // longest * longest
        if not whole:
            pending.appendleft(chunk)
            return self._add_joined(number, pending, min(most, longest))
        before, view = head(longest, DATA, 0, number), memoryview(chunk)
        for at in range(0, whole, longest):
            self.parts.append(before)
            self.parts.append(view[at : at + longest])
        if whole < len(view):
            pending.appendleft(view[whole:])
        return whole

    def _add_joined(self, number: int, pending: deque[Chunk], most: int) -> int:
        """Add one frame of up to `most` bytes from several chunks; returns its size."""
        chunks: list[Chunk] = []
        left = most
        while left and pending:
            chunk = pending.popleft()
            if len(chunk) > left:
                view = memoryview(chunk)
                chunk = view[:left]
                pending.appendleft(view[left:])
            chunks.append(chunk)
            left -= len(chunk)
        self.parts.append(head(most - left, DATA, 0, number))
        self.parts.extend(chunks)
        return most - left


def join_short(parts: list[Chunk]) -> list[Chunk]:
    """Return the same bytes in fewer parts: short neighbours become one."""
    fewer: list[Chunk] = []
    short: list[Chunk] = []
    for part in parts:
        if len(part) <= _SHORT:
            short.append(part)
            continue
        if short:
            fewer.append(b"".join(short))
            short = []
        fewer.append(part)
    if short:
        fewer.append(b"".join(short))
    return fewer

"""Connection between two workers: frames both ways, each with the number of the request that it is about.

length of what follows (4 bytes) | number (8 bytes) | kind (1 byte) | content

What a peer does not read waits in this process, so both ends bound it. The responding end reads no further requests
while its peer does not read the responses. The requesting end always reads, or each could wait for the other, and
checks `unsent` before it sends.
"""

import asyncio
import enum
import struct
from collections.abc import Callable
from typing import Final, cast

HEAD: Final = struct.Struct("<IQB")
_REST: Final = HEAD.size - 4


class FrameKind(enum.IntEnum):
    """Kind of a frame. The first three go to the owner of a sequence, the others come back."""

    REQUEST = 1
    """Nanoseconds that the client still waits (8 bytes, 0 for ever), and a request."""
    CANCEL = 2
    ROOM = 3
    """The client has read a response of several: there is room for another."""
    RESPONSE = 4
    """Response of several, and not the last."""
    LAST = 5
    """The last response."""
    FAILURE = 6
    """A failure after which responses follow."""
    LAST_FAILURE = 7
    END = 8
    """There are no more responses."""


_MOST_RESPONSES: Final = 4 * 1024 * 1024
"""Bytes of responses that wait for a peer before no further requests of it are read."""


class PeerLink(asyncio.Protocol):
    """Reads and writes frames. `on_frame` gets each, `on_lost` hears of the end of the connection.

    `responds`: what comes are requests, which are not read while the responses are not taken.
    """

    def __init__(
        self,
        on_frame: "Callable[[PeerLink, int, int, bytes], None]",
        on_lost: "Callable[[PeerLink], None]",
        *,
        responds: bool = False,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._responds = responds
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._responds:
            self._transport.set_write_buffer_limits(high=_MOST_RESPONSES)

    def pause_writing(self) -> None:
        if self._responds and self._transport is not None:
            self._held = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._held and self._transport is not None:
            self._held = False
            self._transport.resume_reading()
            self._read()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def _read(self) -> None:
        buffer, at = self._buffer, 0
        while not self._held and len(buffer) - at >= HEAD.size:
            length, number, kind = HEAD.unpack_from(buffer, at)
            end = at + 4 + length
            if len(buffer) < end:
                break
            content = bytes(memoryview(buffer)[at + HEAD.size : end])
            at = end
            self._on_frame(self, number, kind, content)
        del buffer[:at]

    def send(self, number: int, kind: FrameKind, content: bytes = b"") -> None:
        """Does nothing when the connection is lost."""
        if self._transport is not None:
            head = HEAD.pack(len(content) + _REST, number, kind)
            self._transport.writelines((head, content))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

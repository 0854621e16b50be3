"""One connection between two workers: frames both ways, each with the number of the request that it is about.

length of what follows (4 bytes) | number (8 bytes) | kind (1 byte) | content
"""

import asyncio
import enum
import struct
from collections.abc import Callable
from typing import Final, cast

HEAD: Final = struct.Struct("<IQB")
_REST: Final = HEAD.size - 4


class Kind(enum.IntEnum):
    """What a frame says. The first three go to the owner of a sequence, the others come back."""

    REQUEST = 1
    """Nanoseconds that the client still waits (8 bytes, 0 for ever), and a request."""
    CANCEL = 2
    ROOM = 3
    """The client has read a response of several: there is room for another."""
    RESPONSE = 4
    """One of several, and not the last."""
    LAST = 5
    """The last response."""
    FAILURE = 6
    """A failure after which responses follow."""
    LAST_FAILURE = 7
    END = 8
    """There are no more responses."""


class Link(asyncio.Protocol):
    """Reads and writes frames. `on_frame` gets each, `on_lost` hears of the end of the connection."""

    def __init__(self, on_frame: "Callable[[Link, int, int, bytes], None]", on_lost: "Callable[[Link], None]") -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= HEAD.size:
            length, number, kind = HEAD.unpack_from(buffer, at)
            end = at + 4 + length
            if len(buffer) < end:
                break
            content = bytes(memoryview(buffer)[at + HEAD.size : end])
            at = end
            self._on_frame(self, number, kind, content)
        del buffer[:at]

    def send(self, number: int, kind: Kind, content: bytes = b"") -> None:
        """Does nothing when the connection is lost."""
        if self._transport is not None:
            head = HEAD.pack(len(content) + _REST, number, kind)
            self._transport.writelines((head, content))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

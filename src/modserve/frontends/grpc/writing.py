"""Messages on their way out: packed, and behind their five bytes."""

from typing import Final

from modserve.frontends import offload
from modserve.frontends.http2.stream import Chunk
from modserve.protocol import compression

from .rpc import Response

COPIED: Final = 64 * 1024
"""Bytes of a message that is copied behind its prefix; a longer one is sent as it is."""


async def packed(message: Response, coding: str, most: int) -> tuple[bytes, int]:
    """The message, compressed where that makes it shorter, and whether it is; on a thread if it has more than `most`
    bytes.
    """
    if size_of(message) > most:
        return await offload.on_thread(_shortest, message, coding)
    return _shortest(message, coding)


def size_of(message: Response) -> int:
    return len(message) if isinstance(message, bytes) else sum([len(part) for part in message])


def framed(message: Response, compressed: int) -> list[Chunk]:
    size = size_of(message)
    prefix = bytes((compressed,)) + size.to_bytes(4, "big")
    parts: list[Chunk] = [prefix, message] if isinstance(message, bytes) else [prefix, *message]
    return [b"".join(parts)] if size <= COPIED else parts


def _shortest(message: Response, coding: str) -> tuple[bytes, int]:
    whole = message if isinstance(message, bytes) else b"".join(message)
    short = compression.encode((whole,), coding)
    return (short, 1) if len(short) < len(whole) else (whole, 0)

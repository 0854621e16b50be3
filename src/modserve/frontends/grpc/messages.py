"""The messages in the body of a gRPC call, each behind five bytes, wherever frames begin and end.

A message that comes as a whole is one slice of what came. One that comes in parts is put together in a `BytesIO`, whose
bytes are handed over without another copy. When much of a long one has come, there is a place for all of it.
"""

from io import BytesIO
from typing import Final, final

from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError
from modserve.core.runtime.long_buffers import BEGUN, WORTHWHILE, room, use_large_pages
from modserve.frontends import offload
from modserve.frontends.http2.stream import Chunk
from modserve.protocol import compression

from .heads import CODINGS, INTERNAL, RESOURCE_EXHAUSTED
from .rpc import Response

PREFIX: Final = 5
"""Bytes before each message: whether it is compressed, and its length."""

COPIED: Final = 64 * 1024
"""Bytes of a message that is copied behind its prefix; a longer one is sent as it is."""

_MUCH: Final = 1024 * 1024
"""Bytes of a message before its announced length is believed."""


class MessageError(Exception):
    """A message that is malformed or not allowed: the status that ends the call, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def check_prefix(compressed: int, size: int, most: int, coding: str) -> None:
    """Check a message's prefix, in a call with this ``grpc-encoding``. Raises `MessageError`.

    `most`: bytes that it may have; 0: any number.
    """
    if most and size > most:
        raise MessageError(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {most})")
    if compressed > 1:
        raise MessageError(INTERNAL, f"a message begins with {compressed}; expected 0 or 1, its compression flag")
    if compressed and coding not in CODINGS:
        raise MessageError(INTERNAL, "a message is compressed, but the call has no grpc-encoding")


@final
class MessageAssembler:
    """Assembler of a message that comes in parts. It counts as held by the server from its first part on."""

    def __init__(self, memory: MemoryBudget, most: int, coding: str) -> None:
        self._memory = memory
        self._most = most
        self._coding = coding
        self._prefix = b""
        self._announced = -1
        """Bytes of the whole message; -1: not known yet."""
        self._buffer = BytesIO()
        self._large_pages = False
        """The message is worth them."""
        self.held = 0
        """Bytes that have come and are held of the server's memory."""

    @property
    def complete(self) -> bool:
        return self.held == self._announced

    def feed(self, data: bytes, start: int, end: int) -> int:
        """Take what belongs to the message of `data` from `start` to `end`; where that ends. Raises `MessageError`."""
        if self._announced < 0:
            stop = min(end, start + PREFIX - len(self._prefix))
            self._prefix += data[start:stop]
            if len(self._prefix) < PREFIX:
                return stop
            start, size = stop, int.from_bytes(self._prefix[1:], "big")
            check_prefix(self._prefix[0], size, self._most, self._coding)
            self._announced = size
            self._large_pages = size >= WORTHWHILE
        stop = min(end, start + self._announced - self.held)
        if stop > start:
            self._append(data, start, stop)
        return stop

    def message(self) -> bytes:
        """Return the complete message. The caller gives back what is `held`."""
        return self._buffer.getvalue()

    def release(self) -> None:
        """Let go of what has come."""
        self._buffer = BytesIO()
        if self.held:
            self._memory.give_back(self.held)
            self.held = 0

    def _append(self, data: bytes, start: int, stop: int) -> None:
        before, size = self.held, stop - start
        try:
            self._memory.take(size)
        except MemoryExhaustedError as error:
            raise MessageError(RESOURCE_EXHAUSTED, error.message) from None
        self.held += size
        if self.held > _MUCH >= before:
            self._make_room()
        if self._large_pages and self.held > BEGUN >= before:
            use_large_pages(self._buffer, before)
        self._buffer.write(memoryview(data)[start:stop])

    def _make_room(self) -> None:
        """Move the message to a place of its announced length."""
        begun = self._buffer
        try:
            self._buffer = room(self._announced)
        except MemoryError:
            text = f"the server has no memory for a message of {self._announced} bytes"
            raise MessageError(RESOURCE_EXHAUSTED, text) from None
        self._buffer.write(begun.getvalue())


async def pack_message(message: Response, coding: str, most: int) -> tuple[bytes, int]:
    """Compress the message where that makes it shorter, and return whether it is; on a thread above `most` bytes."""
    if size_of(message) > most:
        return await offload.on_thread(_shortest, message, coding)
    return _shortest(message, coding)


def size_of(message: Response) -> int:
    return len(message) if isinstance(message, bytes) else sum([len(part) for part in message])


def frame_message(message: Response, compressed: int) -> list[Chunk]:
    """Return the message behind its prefix."""
    size = size_of(message)
    prefix = bytes((compressed,)) + size.to_bytes(4, "big")
    parts: list[Chunk] = [prefix, message] if isinstance(message, bytes) else [prefix, *message]
    return [b"".join(parts)] if size <= COPIED else parts


def _shortest(message: Response, coding: str) -> tuple[bytes, int]:
    whole = message if isinstance(message, bytes) else b"".join(message)
    short = compression.encode((whole,), coding)
    return (short, 1) if len(short) < len(whole) else (whole, 0)

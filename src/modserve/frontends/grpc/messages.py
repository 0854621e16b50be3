"""Messages in the body of a gRPC call, each after a prefix of five bytes, independent of frame boundaries.

A message that arrives in one piece is a slice of the input. Other messages are assembled in a `BytesIO` and handed over
without another copy. Once much of a long message has arrived, its buffer gets the full announced size.
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
"""Size of the prefix of a message: a compression flag and the length."""

COPIED: Final = 64 * 1024
"""Maximum size in bytes of a message that is copied after its prefix; longer ones are sent uncopied."""

_TRUST_THRESHOLD: Final = 1024 * 1024
"""Received bytes from which the announced length of a message is trusted."""


class MessageError(Exception):
    """A malformed or forbidden message: the status that ends the call, and the error text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def check_prefix(compressed: int, size: int, most: int, coding: str) -> None:
    """Check a message's prefix in a call with this ``grpc-encoding``. Raises `MessageError`.

    `most`: maximum size in bytes, 0 for no limit.
    """
    if most and size > most:
        raise MessageError(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {most})")
    if compressed > 1:
        raise MessageError(INTERNAL, f"a message begins with {compressed}; expected 0 or 1, its compression flag")
    if compressed and coding not in CODINGS:
        raise MessageError(INTERNAL, "a message is compressed, but the call has no grpc-encoding")


@final
class MessageAssembler:
    """Assembler of a partial message. It counts as server memory from its first byte."""

    def __init__(self, memory: MemoryBudget, most: int, coding: str) -> None:
        self._memory = memory
        self._most = most
        self._coding = coding
        self._prefix = b""
        self._announced = -1
        """Size of the whole message in bytes; -1 if not known yet."""
        self._buffer = BytesIO()
        self._large_pages = False
        """True if the message is large enough for huge pages."""
        self.held = 0
        """Bytes of server memory held for the received part."""

    @property
    def complete(self) -> bool:
        return self.held == self._announced

    def feed(self, data: bytes, start: int, end: int) -> int:
        """Consume the message's part of `data` from `start` to `end`; return where it ends. Raises `MessageError`."""
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
        """Return the complete message. The caller releases `held`."""
        return self._buffer.getvalue()

    def release(self) -> None:
        """Drop the received part and release its memory."""
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
        if self.held > _TRUST_THRESHOLD >= before:
            self._make_room()
        if self._large_pages and self.held > BEGUN >= before:
            use_large_pages(self._buffer, before)
        self._buffer.write(memoryview(data)[start:stop])

    def _make_room(self) -> None:
        """Move the message to a buffer of its announced length."""
        begun = self._buffer
        try:
            self._buffer = room(self._announced)
        except MemoryError:
            text = f"the server has no memory for a message of {self._announced} bytes"
            raise MessageError(RESOURCE_EXHAUSTED, text) from None
        self._buffer.write(begun.getvalue())


async def pack_message(message: Response, coding: str, most: int) -> tuple[bytes, int]:
    """Compress the message if that shortens it, and return whether it did; above `most` bytes on a thread."""
    if size_of(message) > most:
        return await offload.on_thread(_shortest, message, coding)
    return _shortest(message, coding)


def size_of(message: Response) -> int:
    return len(message) if isinstance(message, bytes) else sum([len(part) for part in message])


def frame_message(message: Response, compressed: int) -> list[Chunk]:
    """Return the message after its prefix."""
    size = size_of(message)
    prefix = bytes((compressed,)) + size.to_bytes(4, "big")
    parts: list[Chunk] = [prefix, message] if isinstance(message, bytes) else [prefix, *message]
    return [b"".join(parts)] if size <= COPIED else parts


def _shortest(message: Response, coding: str) -> tuple[bytes, int]:
    whole = message if isinstance(message, bytes) else b"".join(message)
    short = compression.encode((whole,), coding)
    return (short, 1) if len(short) < len(whole) else (whole, 0)

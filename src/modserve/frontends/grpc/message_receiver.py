"""Receiver of one call's messages: messages in parts, and messages of streams.

Messages of streams count as server memory until they are read; partial messages count from their first byte. The client
gets flow-control credit as soon as a part has arrived or a message has been read.
"""

import asyncio
from collections import deque
from typing import final

from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError
from modserve.frontends.http2.limits import ConnectionLimits
from modserve.frontends.http2.stream import Stream

from .heads import RESOURCE_EXHAUSTED
from .messages import PREFIX, MessageAssembler, MessageError, check_prefix
from .rpc import ClientDisconnectedError, ReadingStoppedError


@final
class MessageReceiver:
    """Receiver of the messages of `stream`; `close` releases it."""

    def __init__(
        self, stream: Stream, memory: MemoryBudget, limits: ConnectionLimits, most: int, coding: str, many: bool
    ) -> None:
        """`most`: maximum message size in bytes, 0 for no limit. `coding`: ``grpc-encoding``. `many`: a stream."""
        self._stream = stream
        self._memory = memory
        self._limits = limits
        self._most = most
        self._coding = coding
        self._many = many
        self._messages: deque[tuple[bytes, int, int]] = deque()
        """Complete messages, each with its bytes to credit and its bytes of server memory."""
        self._assembler: MessageAssembler | None = None
        """Assembler of a partial message."""
        self._next_progress = 0
        """Received bytes of that message at which the client has made progress again (`advanced`)."""
        self._reader: asyncio.Future[None] | None = None
        self._stopped = False
        """True if no more messages are accepted."""

    @property
    def in_message(self) -> bool:
        """True if a message is incomplete."""
        return self._assembler is not None

    @property
    def expects(self) -> bool:
        """True if the client must send the rest of a message. Unread earlier messages may leave it no window."""
        return self._assembler is not None and not self._messages

    def feed(self, data: bytes, start: int, end: int) -> None:
        """Take `data` from `start` to `end`. Raises `MessageError`."""
        while start < end and (self._many or not self._messages):
            if self._assembler is None and end - start >= PREFIX:
                size = int.from_bytes(data[start + 1 : start + PREFIX], "big")
                stop = start + PREFIX + size
                if stop <= end:
                    check_prefix(data[start], size, self._most, self._coding)
                    self._add(data[start + PREFIX : stop], PREFIX + size, self._hold(size) if self._many else 0)
                    start = stop
                    continue
            start = self._assemble(data, start, end)

    def _assemble(self, data: bytes, start: int, end: int) -> int:
        """Feed the assembler; return the end of this message's part."""
        stream, assembler = self._stream, self._assembler
        stream.heard = stream.connection.clock.seconds
        if assembler is None:
            assembler = self._assembler = MessageAssembler(self._memory, self._most, self._coding)
            stream.advanced = stream.heard
            self._next_progress = self._limits.part
        stop = assembler.feed(data, start, end)
        stream.credit(stop - start)
        if assembler.held >= self._next_progress:
            stream.advanced = stream.heard
            self._next_progress = assembler.held + self._limits.part
        if assembler.complete:
            self._assembler = None
            self._add(assembler.message(), 0, assembler.held)
        return stop

    def _hold(self, size: int) -> int:
        try:
            self._memory.take(size)
        except MemoryExhaustedError as error:
            raise MessageError(RESOURCE_EXHAUSTED, error.message) from None
        return size

    def _add(self, message: bytes, credit: int, held: int) -> None:
        self._messages.append((message, credit, held))
        self.wake()

    def wake(self) -> None:
        """Wake the reader."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def pop(self) -> tuple[bytes, int] | None:
        """Return the next message and its memory, which the caller releases; None if there is none."""
        if not self._messages:
            return None
        stream = self._stream
        message, credit, held = self._messages.popleft()
        stream.credit(credit)
        if self._many and self.expects:
            stream.heard = stream.advanced = stream.connection.clock.seconds
            stream.connection.watch(stream)
        return message, held

    async def read(self) -> bytes | None:
        """Return the next message of a stream; None after the last one. Raises what `RpcCall.read` does."""
        stream = self._stream
        while (entry := self.pop()) is None:
            if stream.over:
                raise ClientDisconnectedError
            if stream.ended:
                return None
            if self._stopped:
                raise ReadingStoppedError
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        self._memory.give_back(entry[1])
        return entry[0]

    def stop(self) -> None:
        """Accept no more messages; those already received can still be read."""
        self._stopped = True
        self._drop_part()
        self.wake()

    def _drop_part(self) -> None:
        if self._assembler is not None:
            self._assembler.release()
            self._assembler = None

    def close(self) -> None:
        """Stop reading, and release the received messages."""
        self.wake()
        self._drop_part()
        for _, _, held in self._messages:
            self._memory.give_back(held)
        self._messages.clear()


def overdue_text(stream: Stream, limits: ConnectionLimits) -> str:
    """Return the error text for a client that does not complete its request."""
    slow = limits.silence * limits.silences
    if stream.connection.clock.seconds - stream.advanced > slow:
        return f"the request has not advanced by {limits.part} bytes within {slow:g} s"
    return f"nothing more of the request has arrived for {limits.silence:g} s"

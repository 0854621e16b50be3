"""Receiver of one call's messages: messages in parts, and messages of streams.

Messages of streams count as held by the server until they are read, and parts of any from the first on. The client may
send more as soon as a part is there, or a message has been read.
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
    """Receiver of the messages of `stream`, until that is over: `close` releases it."""

    def __init__(
        self, stream: Stream, memory: MemoryBudget, limits: ConnectionLimits, most: int, coding: str, many: bool
    ) -> None:
        """`most`: bytes of a message, 0: any number; `coding`: the call's ``grpc-encoding``; `many`: it is a stream."""
        self._stream = stream
        self._memory = memory
        self._limits = limits
        self._most = most
        self._coding = coding
        self._many = many
        self._messages: deque[tuple[bytes, int, int]] = deque()
        """Complete messages, with the bytes of each that are to be credited, and those that are held."""
        self._assembler: MessageAssembler | None = None
        """Assembler of the message that has come only in part."""
        self._enough = 0
        """Bytes of that message with which the client has `advanced`."""
        self._reader: asyncio.Future[None] | None = None
        self._stopped = False
        """No more messages are taken."""

    @property
    def in_message(self) -> bool:
        """True if a message has begun and is not complete."""
        return self._assembler is not None

    @property
    def expects(self) -> bool:
        """True if the client has to send more of a message. It may have no window while earlier messages are unread."""
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
        """Feed the assembler, and return where the part of a message ends."""
        stream, assembler = self._stream, self._assembler
        stream.heard = stream.connection.clock.seconds
        if assembler is None:
            assembler = self._assembler = MessageAssembler(self._memory, self._most, self._coding)
            stream.advanced = stream.heard
            self._enough = self._limits.part
        stop = assembler.feed(data, start, end)
        stream.credit(stop - start)
        if assembler.held >= self._enough:
            stream.advanced = stream.heard
            self._enough = assembler.held + self._limits.part
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
        """Wake the reader: there is something new."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def pop(self) -> tuple[bytes, int] | None:
        """Return the next message and the memory it holds, which the caller gives back; None: none is there."""
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
        """Return the next message of a stream, None after the last one. Raises what `RpcCall.read` does."""
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
        """Take no more messages; the messages that are there are read."""
        self._stopped = True
        self._drop_part()
        self.wake()

    def _drop_part(self) -> None:
        if self._assembler is not None:
            self._assembler.release()
            self._assembler = None

    def close(self) -> None:
        """Stop reading, and release what has come."""
        self.wake()
        self._drop_part()
        for _, _, held in self._messages:
            self._memory.give_back(held)
        self._messages.clear()


def overdue_text(stream: Stream, limits: ConnectionLimits) -> str:
    """Return the message for a client that does not complete its request."""
    slow = limits.silence * limits.silences
    if stream.connection.clock.seconds - stream.advanced > slow:
        return f"the request has not advanced by {limits.part} bytes within {slow:g} s"
    return f"nothing more of the request has arrived for {limits.silence:g} s"

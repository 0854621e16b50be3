"""The messages in the body of a gRPC call: each behind five bytes, wherever frames begin and end.

A message that comes as a whole is one slice of what came. One that comes in parts is collected in a `BytesIO`, whose
bytes are handed over without another copy; it counts as held by the server from its first part on, and the client may
send more as soon as a part is there. When much of a long one has come, there is a place for all of it.
"""

from io import BytesIO
from typing import TYPE_CHECKING, Final

from modserve.core.requests.memory import MemoryExhaustedError
from modserve.core.runtime.long_buffers import BEGUN, WORTHWHILE, room, use_large_pages
from modserve.frontends.http2.stream import Stream

from . import heads
from .heads import DEADLINE_EXCEEDED, INTERNAL, RESOURCE_EXHAUSTED, GrpcHead

if TYPE_CHECKING:
    from modserve.frontends.http2.sending import Sending

    from .native_site import GrpcSite

PREFIX: Final = 5
"""Bytes before each message: whether it is compressed, and its length."""

_OPEN: Final = 8 * 1024
"""Bytes that a call counts for while it waits for its client, or streams."""

_METADATA: Final = 8
"""Bytes that its metadata take, for each that they count in a header list."""

_MUCH: Final = 1024 * 1024
"""Bytes of a message before its announced length is believed."""


class Collecting(Stream):
    """A stream of messages; a subclass takes them."""

    __slots__ = (
        "_announced",
        "_buffer",
        "_enough",
        "_huge",
        "_prefix",
        "_size",
        "call_head",
        "counted",
        "full",
        "held",
        "port",
        "status",
    )

    def __init__(self, site: "GrpcSite", connection: "Sending", number: int, head: GrpcHead, window: int, room: int):
        super().__init__(connection, number, head, window, room)
        self.port = site
        self.call_head = head
        self.held = 0
        """Bytes of the server's memory for the message at hand."""
        self.counted = 0
        """The same for the call itself, and for its response."""
        self.full = False
        """No more messages are taken: what follows is dropped."""
        self.status = -1
        """How the call ended; -1: not yet."""
        self._prefix = b""
        self._buffer: BytesIO | None = None
        self._announced = 0
        self._size = 0
        self._huge = False
        """The message is worth large pages."""
        self._enough = 0
        """Bytes of the message with which the client has `advanced`."""

    def count_end(self, status: int) -> None:
        """The call ends with this status, unless it has got one before."""
        if self.status < 0:
            self.status = status
            self.port.statuses[status] += 1

    def message_received(self, message: bytes, consumed: int, held: int) -> None:
        """A message is complete; `consumed` of its bytes are to be credited, `held` are those that it holds."""
        raise NotImplementedError

    def fail(self, status: int, message: str) -> None:
        """What came is no message, or none that may come."""
        raise NotImplementedError

    @property
    def collecting(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._buffer is not None or bool(self._prefix)

    def collect_no_more(self) -> None:
        """Let go of the message at hand."""
        self.full = True
        self._buffer, self._prefix = None, b""
        if self.held:
            self.port.memory.give_back(self.held)
            self.held = 0

    def data_received(self, data: bytes, start: int, end: int) -> None:
        if self.full or self.final is not None:
            return
        if self._buffer is None and not self._prefix:
            while end - start >= PREFIX and not self.full:
                size = int.from_bytes(data[start + 1 : start + PREFIX], "big")
                stop = start + PREFIX + size
                if stop > end:
                    break
                most = self.port.max_message
                if (data[start] or (most and size > most)) and not self._acceptable(data[start], size):
                    return
                self.message_received(data[start + PREFIX : stop], PREFIX + size, 0)
                start = stop
        if start < end and not self.full:
            self._collect(data, start, end)

    def _acceptable(self, compressed: int, size: int) -> bool:
        """Whether a message may come that begins so; ends the call if not."""
        most = self.port.max_message
        if most and size > most:
            self.fail(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {most})")
        elif compressed > 1:
            self.fail(INTERNAL, f"a message begins with {compressed}; expected 0 or 1, its compression flag")
        elif compressed and self.call_head.encoding not in heads.CODINGS:
            self.fail(INTERNAL, "a message is compressed, but the call has no grpc-encoding")
        else:
            return True
        return False

    def _collect(self, data: bytes, start: int, end: int) -> None:
        """What is not a whole message."""
        self.heard = self.connection.site.seconds
        while start < end and not self.full and self.final is None:
            if self._buffer is None:
                if not self._prefix:
                    self.advanced = self.heard
                    self._enough = self.connection.site.limits.part
                part = data[start : min(end, start + PREFIX - len(self._prefix))]
                self._prefix += part
                start += len(part)
                self.credit(len(part))
                if len(self._prefix) < PREFIX:
                    break
                compressed, size = self._prefix[0], int.from_bytes(self._prefix[1:], "big")
                self._prefix = b""
                if not self._acceptable(compressed, size):
                    return
                self._announced, self._size, self._buffer = size, 0, BytesIO()
                self._huge = size >= WORTHWHILE
            part_end = min(end, start + self._announced - self._size)
            if not self._keep(data, start, part_end):
                return
            start = part_end
            if self._size == self._announced:
                message, self._buffer = self._buffer.getvalue(), None
                held, self.held = self.held, 0
                self.message_received(message, 0, held)
        if not self.watched and self.expects() and not self.full and not self.over:
            self.connection.watch(self)

    def _keep(self, data: bytes, start: int, end: int) -> bool:
        """Collect a part of the message; whether there is memory for it."""
        size = end - start
        if size and not self.hold(size):
            return False
        self.held += size
        self._size += size
        if self._size >= self._enough:
            self.advanced = self.heard
            self._enough = self._size + self.connection.site.limits.part
        assert self._buffer is not None, "collected without a beginning: this is a bug"
        if self._size > _MUCH >= self._size - size and not self._make_room(self._buffer):
            return False
        if self._huge and self._size > BEGUN >= self._size - size:
            use_large_pages(self._buffer, self._size - size)
        self._buffer.write(memoryview(data)[start:end])
        self.credit(size)
        return True

    def _make_room(self, begun: BytesIO) -> bool:
        """Move the message to a place of its announced length; whether there is one."""
        try:
            self._buffer = room(self._announced)
        except MemoryError:
            self.fail(RESOURCE_EXHAUSTED, f"the server has no memory for a message of {self._announced} bytes")
            return False
        self._buffer.write(begun.getvalue())
        return True

    def overdue(self) -> None:
        limits = self.connection.site.limits
        slow = limits.silence * limits.silences
        if self.connection.site.seconds - self.advanced > slow:
            text = f"the request has not advanced by {limits.part} bytes within {slow:g} s"
        else:
            text = f"nothing more of the request has arrived for {limits.silence:g} s"
        self.fail(DEADLINE_EXCEEDED, text)

    def hold(self, size: int) -> int:
        """Take so much of the server's memory, and return it; 0 if there is too little, and the call has ended."""
        try:
            self.port.memory.take(size)
        except MemoryExhaustedError as error:
            self.fail(RESOURCE_EXHAUSTED, error.message)
            return 0
        return size

    @property
    def cost(self) -> int:
        """Bytes of the server's memory that it takes while it is open, beside its messages."""
        return _OPEN + _METADATA * self.call_head.size

    def count_open(self) -> bool:
        """Hold what an open call costs beside its messages; False if there is too little, and the call has ended."""
        if not self.counted:
            self.counted = self.hold(self.cost)
        return self.counted > 0

    def count_unsent(self, size: int) -> None:
        """Hold a response of `size` bytes, if it waits for its client."""
        if not self.over:
            if not self.counted:
                size += self.cost
            self.port.memory.force(size)
            self.counted += size

    def count_no_more(self) -> None:
        """The call is over."""
        self.release(self.counted)
        self.counted = 0

    def release(self, held: int) -> None:
        if held:
            self.port.memory.give_back(held)

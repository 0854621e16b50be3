"""HTTP/2 stream: what it may still receive and send, and what waits to be sent.

A subclass serves it, and hears of bytes as they come.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from mypy_extensions import mypyc_attr

from modserve.access.credentials import Credentials

from .endings import CloseReason
from .frames import (
    CANCEL,
    FLOW_CONTROL_ERROR,
    INTERNAL_ERROR,
    LARGEST_WINDOW,
    NO_ERROR,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    Http2Error,
    window_update,
)
from .headers import Head

Chunk: TypeAlias = bytes | bytearray | memoryview


class TickClock:
    """The event loop's time at the last tick of a port: what takes seconds is measured by it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def advance(self, seconds: float) -> float:
        """Set the time, and return how much later it is than before."""
        passed, self.seconds = seconds - self.seconds, seconds
        return passed


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamSender(ABC):
    """The connection as its streams see it."""

    def __init__(self, clock: TickClock, half_window: int) -> None:
        self.clock = clock
        self.half_window = half_window
        """Bytes that a stream has received are worth a WINDOW_UPDATE from here on."""
        self.paused = False
        """True if the client does not take what is written."""

    @property
    @abstractmethod
    def peer(self) -> object:
        """The client's address, as a socket has it; None where it is unknown."""

    @property
    @abstractmethod
    def certificate(self) -> Credentials:
        """Credentials that the client has shown in the handshake."""

    @abstractmethod
    def control(self, frame: bytes) -> None:
        """Send a frame that no window holds back."""

    @abstractmethod
    def send_headers(self, stream: "Stream", block: bytes) -> None: ...

    @abstractmethod
    def respond(
        self, stream: "Stream", headers: bytes, prefix: bytes, body: list[Chunk], size: int, trailers: bytes
    ) -> None:
        """Send a whole response, whose prefix and body have `size` bytes."""

    @abstractmethod
    def push(self, stream: "Stream") -> None:
        """Send of the stream what may be sent; the rest follows."""

    @abstractmethod
    def reset(self, stream: "Stream", code: int) -> None:
        """End a stream at once."""

    @abstractmethod
    def begin_soon(self, stream: "Stream") -> None:
        """Call its `begin` when what has come has been read."""

    @abstractmethod
    def watch(self, stream: "Stream") -> None:
        """Look from now on whether it gets on."""

    @abstractmethod
    def flush(self) -> None:
        """Write what waits, and as much of the bodies as goes."""

    @abstractmethod
    def flush_in_turn(self) -> None:
        """Flush at the end of the turn, called by a port that was asked to."""

    @abstractmethod
    def drop(self, ending: CloseReason) -> None:
        """End the connection without another byte, and count why."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream:
    """State of a stream: `ended` when the client has sent all, `over` when nothing more is sent or heard.

    `pending` holds the bytes of DATA frames that could not be sent yet, and `final` the header block behind them.
    """

    def __init__(self, connection: StreamSender, number: int, head: Head, window: int, room: int) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.ended = False
        self.over = False
        self.headers_sent = False
        self.window = window
        """Bytes that may be sent."""
        self.room = room
        """Bytes that the client may still send."""
        self.due = head.length
        """Bytes that the client has announced and not sent; -1: it has announced none."""
        self.consumed = 0
        """Bytes that it has not been told of yet."""
        self.pending: deque[Chunk] | None = None
        self.final: bytes | None = None
        self.queued = False
        """True if the connection has it among the streams that can send."""
        self.watched = False
        self.opened = connection.clock.seconds
        self.heard = self.opened
        """Time at which something that the client has to send last came, by the clock."""
        self.advanced = self.opened
        """Time at which so much of it had come that the client has as long for as much again."""
        self.moved = self.opened
        """Time at which something pending was last sent."""

    # What a subclass does

    def data_received(self, data: bytes, start: int, end: int) -> None:
        """Receive `data` from `start` to `end`: a part of the body, of any size."""
        raise NotImplementedError

    def end_received(self) -> None:
        """Handle the client's last byte."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to serve the stream: all that came with its last bytes has been read. Called after `begin_soon`."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """Handle a stream reset by the client, or a lost connection. Nothing may be sent any more."""
        raise NotImplementedError

    def on_finish(self) -> None:
        """Handle the end of sending: everything has been sent."""
        raise NotImplementedError

    def on_error(self) -> None:
        """Handle an unforeseen error of the code that serves the stream."""
        self.reset(INTERNAL_ERROR)

    def on_drain(self) -> None:
        """Handle the end of `pending`: all of it has been sent, and the stream goes on."""

    def on_overdue(self) -> None:
        """Handle a client that has sent nothing for too long, though it had to."""
        raise NotImplementedError

    def expects(self) -> bool:
        """True if the client has to send something soon."""
        return False

    # What its connection does. Error codes are those with which it has to be reset; 0: all is well.

    def count_data(self, length: int, padding: int) -> int:
        """Account for DATA of `length` bytes that begins, of which `padding` mean nothing; returns the error code."""
        if self.ended:
            return STREAM_CLOSED
        self.room -= length
        if self.room < 0:
            return FLOW_CONTROL_ERROR
        if self.due >= 0:
            self.due -= length - padding
            if self.due < 0:
                return PROTOCOL_ERROR
        return NO_ERROR

    def end(self) -> int:
        """Handle the client's last byte; returns the error code."""
        if self.due > 0 and not self.over:
            return PROTOCOL_ERROR  # less came than announced (RFC 9113, section 8.1.1)
        if not self.ended and not self.over:
            self.ended = True
            self.end_received()
        return NO_ERROR

    def open_window(self, size: int) -> int:
        """Let the server send `size` bytes more; returns the error code."""
        self.window += size
        if size and self.window <= LARGEST_WINDOW:
            return NO_ERROR
        return FLOW_CONTROL_ERROR if size else PROTOCOL_ERROR

    def change_window(self, change: int) -> None:
        """Apply a new window of all streams. Raises `Http2Error` if that makes it too large."""
        self.window += change
        if self.window > LARGEST_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "a window is larger than 2^31-1")

    def close(self) -> None:
        """End the stream: nothing more is sent or heard."""
        self.over = True
        self.pending = self.final = None

    # What whoever serves it calls

    def credit(self, size: int) -> None:
        """Let the client send more, as these bytes have been consumed."""
        self.consumed += size
        if self.consumed >= self.connection.half_window and not self.ended and not self.over:
            self.room += self.consumed
            self.connection.control(window_update(self.number, self.consumed))
            self.consumed = 0

    def send_headers(self, block: bytes) -> None:
        if not self.over:
            self.headers_sent = True
            self.connection.send_headers(self, block)

    def send_data(self, chunks: list[Chunk]) -> None:
        """Returns at once; `pending` is empty if everything is on its way."""
        if not self.over:
            self.wait_to_send(chunks)
            self.connection.push(self)

    def wait_to_send(self, chunks: Iterable[Chunk]) -> None:
        if not self.pending:
            self.moved = self.connection.clock.seconds
            if self.pending is None:
                self.pending = deque()
        for chunk in chunks:
            if len(chunk):  # what has no bytes would wait for a window that it does not need
                self.pending.append(chunk)

    def finish(self, block: bytes) -> None:
        """End it with a header block, behind all that was sent before."""
        if not self.over and self.final is None:
            self.final = block
            self.connection.push(self)

    def reset(self, code: int = CANCEL) -> None:
        """End it at once; what is pending is dropped."""
        if not self.over:
            self.connection.reset(self, code)

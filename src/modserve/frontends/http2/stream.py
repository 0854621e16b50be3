"""HTTP/2 stream: its windows, and its data that waits to be sent.

Subclasses serve the stream, and get its data as it arrives.
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
    """The event loop's time at the port's last tick, for measuring seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def advance(self, seconds: float) -> float:
        """Set the time, and return the difference to the last one."""
        passed, self.seconds = seconds - self.seconds, seconds
        return passed


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamSender(ABC):
    """A connection's interface for its streams."""

    def __init__(self, clock: TickClock, half_window: int) -> None:
        self.clock = clock
        self.half_window = half_window
        """Received bytes from which a stream sends WINDOW_UPDATE."""
        self.paused = False
        """True if the client does not read its output."""

    @property
    @abstractmethod
    def peer(self) -> object:
        """The client's address, in socket format; None if unknown."""

    @property
    @abstractmethod
    def certificate(self) -> Credentials:
        """Credentials from the client's TLS certificate."""

    @abstractmethod
    def control(self, frame: bytes) -> None:
        """Send a frame that is not subject to flow control."""

    @abstractmethod
    def send_headers(self, stream: "Stream", block: bytes) -> None: ...

    @abstractmethod
    def respond(
        self, stream: "Stream", headers: bytes, prefix: bytes, body: list[Chunk], size: int, trailers: bytes
    ) -> None:
        """Send a whole response; its prefix and body have `size` bytes."""

    @abstractmethod
    def push(self, stream: "Stream") -> None:
        """Send as much of the stream as is allowed; the rest follows."""

    @abstractmethod
    def reset(self, stream: "Stream", code: int) -> None:
        """End a stream at once."""

    @abstractmethod
    def begin_soon(self, stream: "Stream") -> None:
        """Call the stream's `begin` once all received data has been read."""

    @abstractmethod
    def watch(self, stream: "Stream") -> None:
        """Check the stream's time limits from now on."""

    @abstractmethod
    def flush(self) -> None:
        """Write all output, and as much of the bodies as is allowed."""

    @abstractmethod
    def flush_in_turn(self) -> None:
        """Flush at the end of the turn; called by the port on request."""

    @abstractmethod
    def drop(self, ending: CloseReason) -> None:
        """Close the connection without sending anything, and count the reason."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream:
    """State of a stream: `ended` when the client has sent all, `over` when nothing more is sent or received.

    `pending`: bytes of DATA frames that could not be sent yet. `final`: the header block after them.
    """

    def __init__(self, connection: StreamSender, number: int, head: Head, window: int, room: int) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.ended = False
        self.over = False
        self.headers_sent = False
        self.window = window
        """Send window in bytes."""
        self.room = room
        """Receive window in bytes."""
        self.due = head.length
        """Announced bytes that the client has not sent yet; -1 if it announced none."""
        self.consumed = 0
        """Consumed bytes not yet credited to the client."""
        self.pending: deque[Chunk] | None = None
        self.final: bytes | None = None
        self.queued = False
        """True if the connection has the stream in its queue for sending."""
        self.watched = False
        self.opened = connection.clock.seconds
        self.heard = self.opened
        """Time at which required data of the client last arrived, by the clock."""
        self.advanced = self.opened
        """Time of the client's last substantial progress, from which its next part is timed."""
        self.moved = self.opened
        """Time at which pending data was last sent."""

    # For subclasses

    def data_received(self, data: bytes, start: int, end: int) -> None:
        """Handle `data` from `start` to `end`: a part of the body, of any size."""
        raise NotImplementedError

    def end_received(self) -> None:
        """Handle the end of the client's data."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to serve the stream, after `begin_soon`: all data that came with its last bytes has been read."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """Handle a reset by the client, or a lost connection. Nothing may be sent any more."""
        raise NotImplementedError

    def on_finish(self) -> None:
        """Handle the end of sending."""
        raise NotImplementedError

    def on_error(self) -> None:
        """Handle an unforeseen error in the code that serves the stream."""
        self.reset(INTERNAL_ERROR)

    def on_drain(self) -> None:
        """Handle the end of `pending`; the stream stays open for more."""

    def on_overdue(self) -> None:
        """Handle a client that has not sent required data for too long."""
        raise NotImplementedError

    def expects(self) -> bool:
        """True if the client must send something soon."""
        return False

    # For the connection. Returned error codes reset the stream; 0 is success.

    def count_data(self, length: int, padding: int) -> int:
        """Account for a new DATA frame of `length` bytes, including `padding`; return the error code."""
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
        """Handle the end of the client's data; return the error code."""
        if self.due > 0 and not self.over:
            return PROTOCOL_ERROR  # less data than announced (RFC 9113, section 8.1.1)
        if not self.ended and not self.over:
            self.ended = True
            self.end_received()
        return NO_ERROR

    def open_window(self, size: int) -> int:
        """Add `size` bytes to the send window; return the error code."""
        self.window += size
        if size and self.window <= LARGEST_WINDOW:
            return NO_ERROR
        return FLOW_CONTROL_ERROR if size else PROTOCOL_ERROR

    def change_window(self, change: int) -> None:
        """Apply a new initial window size. Raises `Http2Error` if the window becomes too large."""
        self.window += change
        if self.window > LARGEST_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "a window is larger than 2^31-1")

    def close(self) -> None:
        """End the stream: nothing more is sent or received."""
        self.over = True
        self.pending = self.final = None

    # For the code that serves the stream

    def credit(self, size: int) -> None:
        """Credit consumed bytes to the client, which may then send more."""
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
        """Send data. Returns at once; `pending` is empty if everything is on its way."""
        if not self.over:
            self.wait_to_send(chunks)
            self.connection.push(self)

    def wait_to_send(self, chunks: Iterable[Chunk]) -> None:
        if not self.pending:
            self.moved = self.connection.clock.seconds
            if self.pending is None:
                self.pending = deque()
        for chunk in chunks:
            if len(chunk):  # an empty chunk would wait for a window that it does not need
                self.pending.append(chunk)

    def finish(self, block: bytes) -> None:
        """End the stream with a header block, after all data sent before."""
        if not self.over and self.final is None:
            self.final = block
            self.connection.push(self)

    def reset(self, code: int = CANCEL) -> None:
        """Reset the stream at once; pending data is dropped."""
        if not self.over:
            self.connection.reset(self, code)

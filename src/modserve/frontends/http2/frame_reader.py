"""Parses a client's bytes into frames (RFC 9113, sections 4 and 6), without I/O.

DATA is delivered as it arrives, and so is a header block that is long or split over frames. The beginning of any other
incomplete frame is kept in `_rest`. Further state:

- `_left`: bytes of a frame of the kind `_kind` that are still to come. The last `_padding` of them are padding.
- `_block`: stream of an unfinished header block; until its end no other frame may arrive.
"""

from abc import ABC, abstractmethod
from typing import Final, final

from mypy_extensions import mypyc_attr

from .endings import TOO_LONG_BLOCK
from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    LARGEST_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Error,
    client_error,
)
from .limits import ConnectionLimits

_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Payload sizes in bytes of the frames with a fixed size."""

_OF_STREAMS: Final = frozenset((PRIORITY, RST_STREAM))
_OF_CONNECTIONS: Final = frozenset((SETTINGS, PING, GOAWAY))

_TOO_MUCH_PADDING: Final = "the padding is longer than its frame"

_SLICE: Final = 4 * 1024
"""Bytes of a long header block between checks of the work done in this turn."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler(ABC):
    """Receiver of the frames, in order. Each method raises `Http2Error` to end the connection.

    A method that costs more than parsing a frame returns its extra cost, in frames.
    """

    @abstractmethod
    def on_headers(self, number: int, block: bytes, ends: bool) -> int:
        """Handle a whole header block; `ends`: it ends the client's side of the stream."""

    @abstractmethod
    def on_block_part(self, number: int, part: bytes, ends: bool, last: bool) -> None:
        """Handle a part of a header block, perhaps the `last`."""

    @abstractmethod
    def on_data(self, number: int, length: int, padding: int, data: bytes, start: int, end: int, ends: bool) -> None:
        """Handle the beginning of DATA of `length` bytes, including `padding`.

        The first bytes are `data` from `start` to `end`. `ends`: they end the client's side of the stream.
        """

    @abstractmethod
    def on_more_data(self, data: bytes, start: int, end: int, ends: bool) -> None:
        """Handle a further part of the current DATA frame."""

    @abstractmethod
    def on_window_update(self, number: int, size: int) -> None: ...

    @abstractmethod
    def on_control(self, kind: int, flags: int, number: int, payload: bytes) -> int:
        """Handle PRIORITY, RST_STREAM, SETTINGS, PING or GOAWAY."""

    @abstractmethod
    def on_noise(self) -> None:
        """Handle a frame of an unknown kind, or an empty CONTINUATION."""


@final
class FrameReader:
    """Reader of one connection's frames."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._longest = limits.frame
        self._most_work = limits.work
        self._short_block = limits.header_block
        self._rest = b""
        self._greeted = False
        self.settled = False
        """True once the client's first SETTINGS have arrived."""
        self.too_much = False
        """True if the frames just read used up this turn of the event loop; more frames wait for the next turn."""
        self._kind = 0
        self._left = 0
        self._padding = 0
        self._ends = False
        """True if this DATA frame ends the client's side of the stream."""
        self._block = 0
        self._block_size = 0
        self._block_frames = 0
        self._block_ends = False
        """True if the header block ends the client's side of the stream."""
        self._block_last = False
        """True if the current frame is the last of the header block."""

    @property
    def unfinished(self) -> bool:
        """True if a frame or header block is incomplete."""
        return self._block > 0 or len(self._rest) > 0

    @property
    def in_block(self) -> bool:
        return self._block > 0

    def read(self, data: bytes, handler: FrameHandler) -> int:
        """Deliver the received frames, until they are `too_much`; return their size in bytes.

        Raises `Http2Error` to end the connection.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        size = len(data)
        at = 0
        if not self._greeted:
            at = self._greet(data)
            if not at:
                self._rest = data
                return 0
        work = 0
        while True:
            if self._left:
                end = min(at + self._left, size)
                if end == at or work > self._most_work:
                    break
                if DATA < self._kind <= CONTINUATION:
                    end = min(end, at + _SLICE)
                    work += (end - at) // 2
                self._continue(data, at, end, handler)
                at = end
                continue
            work += 1
            if size - at < HEAD_SIZE or work > self._most_work:
                break
            high, low, kind, flags, number = HEAD.unpack_from(data, at)
            length = high << 8 | low
            number &= LARGEST_WINDOW
            start = at + HEAD_SIZE
            end = start + length
            if self._block and (kind != CONTINUATION or number != self._block):
                raise Http2Error(PROTOCOL_ERROR, "a header block is interrupted by another frame")
            if not self.settled and (kind != SETTINGS or flags & ACK):
                raise Http2Error(PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if kind == DATA:
                if not number or length > self._longest:
                    code = FRAME_SIZE_ERROR if number else PROTOCOL_ERROR
                    raise Http2Error(code, f"DATA of {length} bytes is on {number}")
                if end <= size and not flags & PADDED:
                    handler.on_data(number, length, 0, data, start, end, flags & END_STREAM != 0)
                else:
                    end = self._begin_data(data, start, flags, number, length, handler)
                    if not end:
                        break
            elif kind == WINDOW_UPDATE:
                if length != 4:
                    raise Http2Error(FRAME_SIZE_ERROR, f"WINDOW_UPDATE has {length} bytes")
                if end > size:
                    break
                handler.on_window_update(number, int.from_bytes(data[start:end], "big") & LARGEST_WINDOW)
            elif kind == HEADERS and flags & END_HEADERS and number and length <= self._short_block:
                if end > size:
                    break
                bare = flags & (PADDED | WITH_PRIORITY) == 0
                block = data[start:end] if bare else _strip_padding(data[start:end], flags)
                work += handler.on_headers(number, block, flags & END_STREAM != 0)
            elif kind == HEADERS or kind >= CONTINUATION:
                end = self._begin_long(data, start, kind, flags, number, length, handler)
                if not end:
                    break
            else:
                self._check(kind, number, length)
                if end > size:
                    break
                self.settled = True
                work += handler.on_control(kind, flags, number, data[start:end])
            at = end
        self._rest = data[at:]
        self.too_much = work > self._most_work and at < size
        return at

    def _greet(self, data: bytes) -> int:
        """Return the end of the client's preface; 0 if it is incomplete."""
        if data.startswith(PREFACE):
            self._greeted = True
            return len(PREFACE)
        if not PREFACE.startswith(data):
            raise Http2Error(PROTOCOL_ERROR, "this port accepts only HTTP/2")
        return 0

    def _check(self, kind: int, number: int, length: int) -> None:
        """Check a frame header. Raises `Http2Error`."""
        wrong_size = length > self._limits.control_frame or length != _SIZES.get(kind, length)
        if wrong_size or (kind == GOAWAY and length < 8):
            raise Http2Error(FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes")
        if (not number and kind in _OF_STREAMS) or (number and kind in _OF_CONNECTIONS):
            raise Http2Error(PROTOCOL_ERROR, f"a frame of kind {kind} is on stream {number}")
        if kind == PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "clients cannot push")

    # Partial frames: methods that begin one return where its payload begins, or 0 if too little has arrived for that.

    def _begin_data(self, data: bytes, start: int, flags: int, number: int, length: int, handler: FrameHandler) -> int:
        """Begin reading DATA that is padded or incomplete."""
        padding = around = 0
        if flags & PADDED:
            if start >= len(data):
                return 0
            padding = data[start]
            if padding >= length:
                raise Http2Error(PROTOCOL_ERROR, _TOO_MUCH_PADDING)
            start += 1
            around = padding + 1
        self._kind, self._padding, self._ends = DATA, padding, flags & END_STREAM != 0
        self._left = length - (around - padding)
        handler.on_data(number, length, around, data, start, start, self._ends and not self._left)
        return start

    def _begin_long(
        self, data: bytes, start: int, kind: int, flags: int, number: int, length: int, handler: FrameHandler
    ) -> int:
        """Begin reading a part of a header block, or a frame of an unknown kind."""
        if length > self._longest:
            raise Http2Error(FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes")
        if kind > CONTINUATION:
            handler.on_noise()
            self._kind, self._left, self._padding = kind, length, 0
            return start
        if not number:
            raise Http2Error(PROTOCOL_ERROR, f"a frame of kind {kind} is on stream 0")
        before = padding = 0
        if kind == HEADERS:
            before = _before(flags)
            if before <= length and start + before > len(data):
                return 0
            if before <= length and flags & PADDED:
                padding = data[start]
            if before + padding > length:
                raise Http2Error(PROTOCOL_ERROR, _TOO_MUCH_PADDING)
            self._block, self._block_size, self._block_frames = number, 0, 0
            self._block_ends = flags & END_STREAM != 0
        elif not self._block:
            raise Http2Error(PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        else:
            self._block_frames += 1
            if not length:
                handler.on_noise()
        self._block_size += length - before
        limits = self._limits
        if self._block_frames > limits.continuations or self._block_size > limits.longest_block:
            raise client_error(TOO_LONG_BLOCK)
        self._kind, self._left, self._padding = kind, length - before, padding
        self._block_last = flags & END_HEADERS != 0
        if not self._left:
            self._continue_block(b"", handler)
        return start + before

    def _continue(self, data: bytes, at: int, end: int, handler: FrameHandler) -> None:
        """Read a further part of the current frame."""
        self._left -= end - at
        stop = max(at, end - max(0, self._padding - self._left))
        if self._kind == DATA:
            handler.on_more_data(data, at, stop, self._ends and not self._left)
        elif self._kind <= CONTINUATION:
            self._continue_block(data[at:stop], handler)

    def _continue_block(self, part: bytes, handler: FrameHandler) -> None:
        number, last = self._block, self._block_last and not self._left
        if last:
            self._block = 0
        handler.on_block_part(number, part, self._block_ends, last)


def _before(flags: int) -> int:
    """Return the number of bytes between the header of HEADERS and their block."""
    return (1 if flags & PADDED else 0) + (5 if flags & WITH_PRIORITY else 0)


def _strip_padding(payload: bytes, flags: int) -> bytes:
    """Return the block of a complete HEADERS payload."""
    start, end = _before(flags), len(payload)
    if flags & PADDED:
        end -= payload[0] if payload else 1
    if start > end:
        raise Http2Error(PROTOCOL_ERROR, _TOO_MUCH_PADDING)
    return payload[start:end]

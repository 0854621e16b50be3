"""The half of a connection that reads: frames, looked at where they are, and what they do to its streams (RFC 9113).

The payload of DATA goes to its stream piece by piece as it comes, and only the beginning of another frame that is not
complete is kept, in `_rest`. Its state beside that of `Sending`, `Keeping` and `Controlling`:

- `_left` bytes of the frame at hand are still to come: DATA for `_stream`, or for nobody if that is None. The last
  `_padding` of them mean nothing, and with `_last` the client's side of the stream ends behind them.
- `_work` is what the frames of this turn of the event loop have cost. When it is too much the rest waits in `_rest` for
  the next turn, and nothing more is received meanwhile. The same holds for a client that sends much: `_burst`.
"""

import logging
from typing import Final

from modserve.core.runtime.turn import BURST

from . import frames
from .budgets import INTERNAL
from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE_ERROR,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    PROTOCOL_ERROR,
    Http2Error,
)
from .opening import CALL_WORK, Opening
from .site import Site
from .stream import Stream

_log = logging.getLogger(__name__)

_FIXED: Final = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
"""Bytes of the frames that have one size."""

_UNUSUAL: Final = END_HEADERS | PADDED | frames.WITH_PRIORITY
"""Most HEADERS have only the first of these flags."""

_OF_STREAMS: Final = frozenset((DATA, HEADERS, frames.PRIORITY, frames.RST_STREAM, CONTINUATION))
_OF_CONNECTIONS: Final = frozenset((frames.SETTINGS, frames.PING, frames.GOAWAY))


class Reading(Opening):
    """What the transport hands over goes to `data_received`."""

    __slots__ = (
        "_active",
        "_burst",
        "_greeted",
        "_half",
        "_last",
        "_received",
        "_rest",
        "_stream",
        "_waiting",
    )

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._rest = b""
        self._greeted = False
        self._last = False
        self._stream: Stream | None = None
        self._received = 0
        self._active = False
        self._half = 0.0
        """When the frame or header block was first seen whose end has not come; 0: there is none."""
        self._burst = 0
        """Bytes that have come since reading last rested."""
        self._waiting = False
        """Whether frames that are there wait for the next turn."""

    def data_received(self, data: bytes) -> None:
        self._active = True
        if self.failed or self.transport is None:
            return
        self.reading = True
        self._work = 0
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            at = self._read(data, 0 if self._greeted else self._greet(data))
            if at < len(data) and not self.failed:
                self._rest = data[at:]
                if at and self._block is None:
                    self._half = 0.0
                if self._work > self.site.most_work:
                    self._wait()
            elif self._half and self._block is None:
                self._half = 0.0
        except Http2Error as error:
            self.fail(error.code, error.message, error.ending)
        except Exception:
            _log.exception("closing a gRPC connection: handling its input failed unexpectedly")
            self.fail(frames.INTERNAL_ERROR, INTERNAL.text, INTERNAL)
        self.site.received += 1
        if self.ready:
            ready, self.ready = self.ready, []
            turn = self.site.turn
            turn.begin()
            for stream in ready:
                if not stream.over:
                    try:
                        stream.begin()
                    except Exception:  # it is the end of this stream, and of no other
                        _log.exception("ending a gRPC call: starting it failed unexpectedly")
                        stream.broken()
            turn.end()
        if self._received >= self.site.connection_window // 2 and not self.failed:
            self._out.append(frames.window_update(0, self._received))
            self._received = 0
        self.reading = False
        self._burst += len(data)
        if self._burst >= BURST:
            self._burst = 0
            self._wait()
        if self._out or self._sendable is not None or self.closing:
            self.flush()

    def _wait(self) -> None:
        """Read on in the next turn of the event loop: others come first."""
        if not self._waiting and self.transport is not None and not self.transport.is_closing():
            self._waiting = True
            self.transport.pause_reading()
            self.site.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._waiting = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            if self._rest:
                self.data_received(b"")

    def _greet(self, data: bytes) -> int:
        """How much of the bytes the client's preface takes. Raises `Http2Error` for another one."""
        if data.startswith(PREFACE):
            self._greeted = True
            return len(PREFACE)
        if not PREFACE.startswith(data):
            raise Http2Error(PROTOCOL_ERROR, "this port accepts only HTTP/2")
        return len(data) + 1  # nothing can be read yet

    def _read(self, data: bytes, at: int) -> int:
        """Read the frames that are there, from `at`; where the first begins that is not complete."""
        size = len(data)
        if at > size:
            return 0
        while True:
            if self._left:
                end = min(at + self._left, size)
                if end == at:
                    return at
                if self._long is None:
                    self._take(data, at, end)
                else:
                    if self._work > self.site.most_work:
                        return at
                    end = self._read_on(data, at, end)
                at = end
                continue
            self._work += 1
            if size - at < HEAD_SIZE or self._work > self.site.most_work:
                return at
            high, low, kind, flags, number = HEAD.unpack_from(data, at)
            length = high << 8 | low
            number &= LARGEST_WINDOW
            if self._block is not None and (kind != CONTINUATION or number != self._block_stream):
                raise Http2Error(PROTOCOL_ERROR, "a header block is interrupted by another frame")
            if not self._settled and (kind != frames.SETTINGS or flags & ACK):
                raise Http2Error(PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if kind == DATA:
                if flags & PADDED and size - at <= HEAD_SIZE:
                    return at
                at += HEAD_SIZE
                if not flags & PADDED and 0 < length <= size - at:
                    stream = self._begin_data(number, length, 0)
                    if stream is not None:
                        stream.data_received(data, at, at + length)
                        if flags & END_STREAM:
                            self._end(stream)
                    at += length
                    continue
                self._padding, self._left, self._last = 0, length, bool(flags & END_STREAM)
                if flags & PADDED:
                    self._padding = data[at]
                    if self._padding >= length:
                        raise Http2Error(PROTOCOL_ERROR, "the padding is longer than its frame")
                    at += 1
                    self._left -= 1
                self._stream = self._begin_data(number, length, length - self._left + self._padding)
                if flags & PADDED and self._stream is not None:
                    self._stream.credit(1)
                if not self._left:
                    if not self._last:
                        self.count_noise()
                    self._take(data, at, at)
                continue
            usual = kind == HEADERS and flags & _UNUSUAL == END_HEADERS and number
            if usual and length <= size - at - HEAD_SIZE and length <= self.site.limits.header_block:
                at += HEAD_SIZE
                self._open(number, data[at : at + length], bool(flags & END_STREAM))
                at += length
                continue
            if kind > CONTINUATION:
                self.count_noise()
                if length > self.site.longest_data:
                    raise Http2Error(FRAME_SIZE_ERROR, f"a frame has {length} bytes")
                at += HEAD_SIZE
                self._stream, self._left, self._padding, self._last = None, length, 0, False
                continue
            if kind in (HEADERS, CONTINUATION) and self.is_long(kind, length):
                begins = self._begin_long(data, at, kind, flags, number, length)
                if begins < 0:
                    return at
                at = begins
                continue
            self._check_frame(kind, flags, number, length)
            end = at + HEAD_SIZE + length
            if end > size:
                return at
            self._handle(kind, flags, number, data[at + HEAD_SIZE : end])
            at = end

    def _check_frame(self, kind: int, flags: int, number: int, length: int) -> None:
        """Raises `Http2Error` for a frame that is wrong by its head."""
        if (
            length > self.site.limits.control_frame
            or length != _FIXED.get(kind, length)
            or (kind == frames.GOAWAY and length < 8)
        ):
            raise Http2Error(FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes")
        if (not number and kind in _OF_STREAMS) or (number and kind in _OF_CONNECTIONS):
            raise Http2Error(PROTOCOL_ERROR, f"a frame of kind {kind} is on stream {number}")
        if kind == frames.PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "clients cannot push")

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._on_headers(flags, number, payload)
        elif kind == CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(number, int.from_bytes(payload, "big") & LARGEST_WINDOW)
        elif kind == frames.PING:
            self._on_ping(flags, payload)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.RST_STREAM:
            self._work += CALL_WORK
            self._on_reset(number)
        elif kind == frames.GOAWAY:
            self.count_noise()
            self.closing = True
        else:  # PRIORITY
            self.count_noise()

    # Bodies

    def _begin_data(self, number: int, length: int, padding: int) -> Stream | None:
        """The stream that the bytes are for, if it takes any more; `padding` of the `length` bytes mean nothing."""
        site = self.site
        if not number or length > site.longest_data:
            raise Http2Error(FRAME_SIZE_ERROR if number else PROTOCOL_ERROR, f"DATA of {length} bytes is on {number}")
        self._received += length
        if self._received > site.connection_window:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "more bytes came than the connection's window allows")
        stream = self.streams.get(number)
        if stream is None:
            if number > self.highest:
                raise Http2Error(PROTOCOL_ERROR, f"DATA is on stream {number}, which was never opened")
            if not length:
                self.count_noise()
            return None
        if stream.ended:
            self.wrong(stream, frames.STREAM_CLOSED)
            return None
        stream.room -= length
        if stream.room < 0:
            self.wrong(stream, frames.FLOW_CONTROL_ERROR)
            return None
        if stream.due >= 0:
            stream.due -= length - padding
            if stream.due < 0:
                self.wrong(stream, PROTOCOL_ERROR)
                return None
        return stream

    def _take(self, data: bytes, start: int, end: int) -> None:
        """A part of the DATA frame at hand, which may end with it."""
        stream = self._stream
        self._left -= end - start
        if stream is None or stream.over:
            return
        end -= max(0, self._padding - self._left)
        if end > start:
            stream.data_received(data, start, end)
        if not self._left:
            self._stream = None
            if self._padding:
                stream.credit(self._padding)
            if self._last and not stream.over:
                self._end(stream)

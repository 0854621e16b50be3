"""The receiving side of a connection: what the frames of its client do to its streams, windows and budgets.

Each method of `FrameHandler` raises `Http2Error` for what ends the connection.
"""

from typing import Final, final

from . import frames
from .block_decoder import BlockDecoder, DynamicTable
from .budgets import Budgets
from .fields import HeaderField
from .frame_reader import FrameHandler
from .frames import ACK, PROTOCOL_ERROR, STREAM_CLOSED, Http2Error
from .headers import Head, MalformedError, has_pseudo
from .keepalive import Keepalive
from .port import Http2Port
from .sender import Sender
from .stream import Stream
from .windows import Windows

_CALL_WORK: Final = 40
"""Frames that cost about as much as beginning a call, or ending it before its time: it may have a task."""

_RAPID: Final = 2.0
"""Seconds within which the end of a stream is before its time."""

_FAREWELL: Final = b"farewell"
"""The ping between the two GOAWAYs."""


@final
class Receiver(FrameHandler):
    """Receiver of one connection's frames, which open its `streams`."""

    def __init__(
        self,
        port: Http2Port,
        streams: dict[int, Stream],
        windows: Windows,
        budgets: Budgets,
        keepalive: Keepalive,
        sender: Sender,
    ) -> None:
        self._port = port
        self._streams = streams
        self._windows = windows
        self._budgets = budgets
        self._keepalive = keepalive
        self._sender = sender
        self._decoder = BlockDecoder(DynamicTable(port.limits.table, port.names), port.limits.decoded)
        self._in_block = False
        """A header block that comes in parts has begun."""
        self._target: Stream | None = None
        """Whom the DATA frame at hand is for, if anybody wants it."""
        self.highest = 0
        """The last stream that the client has opened."""
        self._last_stream = frames.LAST_STREAM
        """The last one that is served."""
        self.leaving = False
        """The first GOAWAY has been sent, and not the second."""

    # Header blocks

    def on_headers(self, number: int, block: bytes, ends: bool) -> int:
        return self._on_fields(number, self._decoder.decode(block), ends) + len(block) // 2

    def on_block_part(self, number: int, part: bytes, ends: bool, last: bool) -> None:
        decoder = self._decoder
        if not self._in_block:
            self._in_block = True
            decoder.begin()
        decoder.feed(part)
        if last:
            self._in_block = False
            self._on_fields(number, decoder.end(), ends)

    def _on_fields(self, number: int, fields: list[HeaderField], ends: bool) -> int:
        """Open or end a stream by a complete header block. Returns the cost of that, in frames."""
        if number <= self.highest:
            self._on_trailers(number, fields, ends)
            return 0
        try:
            head = self._port.understand(fields, self._decoder.size)
        except MalformedError:
            _check_number(number)
            self.highest = number
            self._refuse(number, PROTOCOL_ERROR)
            return 0
        return self._open(number, head, ends)

    def _open(self, number: int, head: Head, ends: bool) -> int:
        if not number & 1:
            _check_number(number)
        self.highest = number
        limits, sender = self._port.limits, self._sender
        if number > self._last_stream or len(self._streams) >= (limits.streams or limits.most_streams):
            self._refuse(number, frames.REFUSED_STREAM)
            return 0
        stream = self._port.open(sender, number, head, self._windows.initial, limits.stream_window)
        if stream.over:
            return 0
        self._streams[number] = stream
        sender.ready.append(stream)
        if ends and (code := stream.end()):
            self._wrong(stream, code)
        return _CALL_WORK

    def _on_trailers(self, number: int, fields: list[HeaderField], ends: bool) -> None:
        stream = self._streams.get(number)
        if stream is None:
            self._budgets.spend_noise()
        elif stream.ended or not ends or has_pseudo(fields):
            self._wrong(stream, STREAM_CLOSED if stream.ended else PROTOCOL_ERROR)
        elif code := stream.end():
            self._wrong(stream, code)

    # Bodies

    def on_data(self, number: int, length: int, padding: int, data: bytes, start: int, end: int, ends: bool) -> None:
        self._windows.count_received(length)
        stream = self._streams.get(number)
        if stream is None and number > self.highest:
            raise Http2Error(PROTOCOL_ERROR, f"DATA is on stream {number}, which was never opened")
        if length == padding and not ends:
            self._budgets.spend_noise()
        if stream is not None:
            code = stream.count_data(length, padding)
            if code:
                self._wrong(stream, code)
                stream = None
        self._target = stream
        if stream is not None:
            if padding:
                stream.credit(padding)
            if end > start:
                stream.data_received(data, start, end)
            if ends and (code := stream.end()):
                self._wrong(stream, code)

    def on_more_data(self, data: bytes, start: int, end: int, ends: bool) -> None:
        stream = self._target
        if stream is not None and not stream.over:
            if end > start:
                stream.data_received(data, start, end)
            if ends and (code := stream.end()):
                self._wrong(stream, code)

    # Other frames

    def on_noise(self) -> None:
        self._budgets.spend_noise()

    def on_window_update(self, number: int, size: int) -> None:
        self._budgets.spend_update()
        if not number:
            self._windows.widen(size)
            return
        stream = self._streams.get(number)
        if stream is not None:
            code = stream.open_window(size)
            if code:
                self._wrong(stream, code)
            elif stream.pending:
                self._sender.window_opened(stream)
        elif number > self.highest:
            raise Http2Error(PROTOCOL_ERROR, f"WINDOW_UPDATE is on stream {number}, which was never opened")

    def on_control(self, kind: int, flags: int, number: int, payload: bytes) -> int:
        if kind == frames.RST_STREAM:
            self._on_reset(number)
            return _CALL_WORK
        self._budgets.spend_noise()
        if kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.PING:
            self._on_ping(flags, payload)
        elif kind == frames.GOAWAY:
            self._sender.close_when_done()
        return 0

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise Http2Error(frames.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has content")
            return
        values = dict(frames.read_settings(payload))  # of several, the last one counts
        writer = self._sender.writer
        if frames.MAX_FRAME_SIZE in values:
            writer.set_longest_frame(values[frames.MAX_FRAME_SIZE])
        if values.get(frames.HEADER_TABLE_SIZE, self._port.limits.table) < self._port.limits.table:
            writer.announce_table()
        initial = values.get(frames.INITIAL_WINDOW_SIZE, self._windows.initial)
        if initial != self._windows.initial:
            self._budgets.spend_noise(1 + len(self._streams) // 32)  # each is looked at
            change = self._windows.change_initial(initial)
            for stream in list(self._streams.values()):
                stream.change_window(change)
                if stream.pending:
                    self._sender.window_opened(stream)
        self._sender.control(frames.SETTINGS_ACK)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if not flags & ACK:
            self._keepalive.on_ping(self._port.loop.time(), self._sender.sent, not self._streams)
            self._sender.control(frames.ping(payload, ack=True))
        elif payload == _FAREWELL and self.leaving:
            self.go_away()

    def _on_reset(self, number: int) -> None:
        if number > self.highest:
            raise Http2Error(PROTOCOL_ERROR, f"RST_STREAM is on stream {number}, which was never opened")
        stream = self._streams.pop(number, None)
        if stream is None:
            self._budgets.spend_noise()
            return
        self.drop(stream)
        if self._port.clock.seconds - stream.opened < _RAPID:
            self._budgets.spend_reset()

    # Streams that end before their time

    def drop(self, stream: Stream) -> None:
        """End one that is no longer in the table."""
        self._sender.forget(stream)
        stream.on_lost()

    def _refuse(self, number: int, code: int) -> None:
        """End a stream that has not begun."""
        self._sender.control(frames.reset(number, code))
        self._budgets.spend_reset()

    def _wrong(self, stream: Stream, code: int) -> None:
        """Reset a stream on which the client has broken the protocol (RFC 9113, section 5.4.2)."""
        self._streams.pop(stream.number, None)
        self._sender.control(frames.reset(stream.number, code))
        self.drop(stream)
        self._budgets.spend_reset()

    def drop_all(self) -> None:
        """Drop all streams: the connection is at its end."""
        for stream in list(self._streams.values()):
            self._streams.pop(stream.number, None)
            self.drop(stream)

    # The farewell, in two GOAWAYs (RFC 9113, section 6.8)

    def announce_leaving(self) -> None:
        """Announce the end. A client that does not know it yet may open streams for one more round trip."""
        self.leaving = True
        self._port.await_goodbye()
        self._sender.control(frames.going_away(frames.LAST_STREAM, frames.NO_ERROR))
        self._sender.control(frames.ping(_FAREWELL))

    def end_farewell(self) -> None:
        """End the announcement: the client knows, or is lost."""
        if self.leaving:
            self.leaving = False
            self._port.confirm_goodbye()

    def go_away(self) -> None:
        """Serve no more streams than the client has opened by now."""
        self.end_farewell()
        self._last_stream = self.highest
        self._sender.control(frames.going_away(self.highest, frames.NO_ERROR))
        self._sender.close_when_done()


def _check_number(number: int) -> None:
    if not number & 1:
        raise Http2Error(PROTOCOL_ERROR, f"clients cannot open stream {number}")

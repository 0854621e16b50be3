"""The sending side of a connection: one write for all output of a turn of the event loop.

- The `FrameWriter` collects output until `flush`. The receiving side flushes when it has read everything; otherwise the
  port does, at the end of the turn.
- Headers and acknowledgements are sent at once. Bodies wait in their stream for its window, for the connection's
  window, and for the client to read earlier output.
- `_sendable` has the streams with pending data that their own window allows.
"""

import asyncio
from collections import deque
from typing import Final, final

from modserve.access.credentials import Credentials
from modserve.frontends.certificates import read_credentials
from modserve.frontends.listening import peer_of

from . import frames
from .budgets import Budgets
from .endings import UNREAD, CloseReason
from .frame_writer import FrameWriter, join_short
from .port import Http2Port
from .stream import Chunk, Stream, StreamSender
from .windows import Windows

_JOINED: Final = 32 * 1024
"""Size in bytes up to which chunks are joined; longer ones are passed on unchanged."""

_LONG_PARTS: Final = 4 * 1024
"""Average chunk size in bytes from which joining does not pay."""

_AT_ONCE: Final = 1024 * 1024
"""Bytes of bodies between checks of whether the client reads them."""

_CREDITED_FRAME: Final = 1024
"""Minimum size in bytes of a sent frame that pays for frames of the client, as the end of a message does. Otherwise a
client could open its window byte by byte."""

_TURN: Final = 4096 * 1024
"""Bytes of bodies per turn of the event loop: up to a millisecond."""

_SHARE: Final = 64 * 1024
"""Bytes of one body before the next stream's turn, if there is one."""


@final
class Sender(StreamSender):
    """Output of one connection. Removes finished streams from the table `streams`."""

    def __init__(self, port: Http2Port, streams: dict[int, Stream], windows: Windows, budgets: Budgets) -> None:
        super().__init__(port.clock, port.limits.stream_window // 2)
        self.transport: asyncio.Transport | None = None
        self.writer = FrameWriter()
        self.closing = False
        """True if the connection closes after its last stream."""
        self.moved = port.clock.seconds
        """Time of the client's last read, while `paused`."""
        self.sent = 0
        """Number of writes of headers or data."""
        self.ready: list[Stream] = []
        """Streams that begin once all received data has been read."""
        self._port = port
        self._streams = streams
        self._windows = windows
        self._budgets = budgets
        self._held_back = False
        """True if a `flush` is certain to follow."""
        self._scheduled = False
        """True if the port will flush at the end of this turn."""
        self._acknowledgements = 0
        """Bytes of acknowledgements since the client stopped reading."""
        self._unwritten = 0
        """Bytes held by the transport when the client stopped reading."""
        self._unsent = 0
        """Bytes held by the transport at the last check."""
        self._sendable: deque[Stream] | None = None
        self._watched: set[Stream] = set()
        self._certificate: Credentials | None = None

    # For streams

    @property
    def peer(self) -> object:
        return None if self.transport is None else peer_of(self.transport)

    @property
    def certificate(self) -> Credentials:
        if self._certificate is None:
            self._certificate = () if self.transport is None else read_credentials(self.transport)
        return self._certificate

    def control(self, frame: bytes) -> None:
        if self.paused:
            self._acknowledgements += len(frame)
            if self._acknowledgements > self._port.limits.unsent_control:
                self.drop(UNREAD)
                return
        self.writer.add(frame)
        self._flush_later()

    def send_headers(self, stream: Stream, block: bytes) -> None:
        self.writer.add_headers(stream.number, block, last=False)
        self.sent += 1
        self._flush_later()

    def respond(
        self, stream: Stream, headers: bytes, prefix: bytes, body: list[Chunk], size: int, trailers: bytes
    ) -> None:
        """Send a response in one piece, if nothing prevents that.

        In parts, a unary inference takes 1.3 times the CPU time (`benchmarks/wire_shortcuts.py`).
        """
        if stream.over:
            return
        windows, writer = self._windows, self.writer
        if (
            size > stream.window
            or size > windows.left
            or size > writer.longest_frame
            or self.paused
            or writer.size_update
        ):
            stream.send_headers(headers)
            stream.wait_to_send((prefix, *body))
            stream.finish(trailers)
            return
        windows.count_sent(size)
        writer.add_response(stream.number, headers, prefix, body, size, trailers)
        self.sent += 1
        if not self._held_back:
            self._flush_later()
        self._end(stream)

    def push(self, stream: Stream) -> None:
        if not stream.pending and not self.paused and stream.final is not None:
            self._finish(stream, stream.final)
            return
        if not stream.queued:
            stream.queued = True
            if self._sendable is None:
                self._sendable = deque()
            self._sendable.append(stream)
        if stream.pending and not stream.watched:
            self.watch(stream)
        self._flush_later()

    def reset(self, stream: Stream, code: int) -> None:
        self.control(frames.reset(stream.number, code))
        stream.pending = stream.final = None
        stream.ended = True
        self._end(stream)

    def window_opened(self, stream: Stream) -> None:
        """Send pending data of a stream after the client has opened its window."""
        if not stream.queued and stream.window > 0:
            self.push(stream)

    def begin_soon(self, stream: Stream) -> None:
        self.ready.append(stream)

    def _finish(self, stream: Stream, block: bytes) -> None:
        """Send the last header block of a stream after its body."""
        self.writer.add_headers(stream.number, block, last=True)
        self.sent += 1
        self._flush_later()
        self._end(stream)

    def _end(self, stream: Stream) -> None:
        """End a completely sent stream; if the client still sends, it is told to stop."""
        if not stream.ended:
            self.writer.add(frames.reset(stream.number, frames.NO_ERROR))
            self._flush_later()
        if self._streams.pop(stream.number, None) is not None:
            self._budgets.stream_ended()
        stream.over = True
        self._watched.discard(stream)
        stream.on_finish()
        if self.closing and not self._streams:
            self._flush_later()

    # Bodies

    def _pump(self, sendable: deque[Stream]) -> None:
        """Send bodies in turns, as far as the windows and the client allow."""
        handed = written = 0
        while sendable and not self.paused and self.transport is not None:
            if written >= _TURN:
                self._flush_later()
                return
            stream = sendable[0]
            if stream.pending and not stream.over and stream.window > 0 and self._windows.left <= 0:
                return
            sendable.popleft()
            stream.queued = False
            if stream.over:
                continue
            handed += self._send_share(stream, _SHARE if sendable else _AT_ONCE)
            if stream.pending:
                if stream.window > 0:
                    stream.queued = True
                    sendable.append(stream)
            elif stream.final is not None:
                self._finish(stream, stream.final)
            else:
                if not stream.expects():
                    self._unwatch(stream)
                stream.on_drain()
            if handed >= _AT_ONCE:
                written += handed
                self._write(handed)
                handed = 0
        if not sendable:
            self._sendable = None

    def _send_share(self, stream: Stream, most: int) -> int:
        """Send the next frames of a stream, up to `most` bytes; return their size."""
        pending, writer = stream.pending, self.writer
        most = min(most, stream.window, self._windows.left)
        sent = 0
        while pending and sent < most:
            chunks = len(pending)
            size = writer.add_data(stream.number, pending, most - sent)
            sent += size
            ended = chunks - len(pending)  # completed messages, or parts of long ones
            if ended or size >= _CREDITED_FRAME:
                self._budgets.data_sent(max(1, size // writer.longest_frame), ended)
        if sent:
            stream.window -= sent
            self._windows.count_sent(sent)
            stream.moved = self.clock.seconds
            self.sent += 1
            self._flush_later()
        return sent

    # Streams with time limits

    def watch(self, stream: Stream) -> None:
        self._watched.add(stream)
        stream.watched = True

    def _unwatch(self, stream: Stream) -> None:
        stream.watched = False
        self._watched.discard(stream)

    def forget(self, stream: Stream) -> None:
        """End a stream and drop its pending data."""
        stream.close()
        self._watched.discard(stream)

    def check_streams(self, now: float) -> None:
        """End watched streams that make no progress for too long."""
        limits = self._port.limits
        for stream in list(self._watched):
            if stream.pending and now - stream.moved > limits.stall:
                self._streams.pop(stream.number, None)
                self.control(frames.reset(stream.number, frames.CANCEL))
                self.forget(stream)
                stream.on_lost()
            elif stream.expects():
                silence = now - stream.heard - self._port.policies.tick  # it may have been heard up to a tick earlier
                if silence > limits.silence or now - stream.advanced > limits.silence * limits.silences:
                    stream.on_overdue()
            elif not stream.pending:
                self._unwatch(stream)

    # The transport

    def hold_back(self) -> None:
        """Hold back output while input is parsed, until `flush` at the end."""
        self._held_back = True

    def flush(self) -> None:
        self._held_back = False
        if self._sendable is not None and not self.paused:
            self._pump(self._sendable)
        if self.writer.parts:
            self._write()
        if self.closing and not self._streams and self.transport is not None:
            self.transport.close()

    def flush_in_turn(self) -> None:
        """Flush at the end of the turn; the port calls this after `_flush_later`."""
        self._scheduled = False
        self.flush()

    def _flush_later(self) -> None:
        if not self._held_back and not self._scheduled:
            self._scheduled = True
            self._port.flush_later(self)

    def _write(self, long: int = 0) -> None:
        """Pass all output to the transport; `long`: a known lower bound of its size in bytes."""
        parts = self.writer.take()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if len(parts) == 1:
            transport.write(parts[0])
        elif long > _LONG_PARTS * len(parts):
            transport.writelines(parts)
        elif sum([len(part) for part in parts]) <= _JOINED:
            transport.write(b"".join(parts))
        else:
            transport.writelines(join_short(parts))

    def close_when_done(self) -> None:
        """Close the connection after its last stream."""
        self.closing = True
        self._flush_later()

    def say_last(self, frame: bytes) -> None:
        """Send a final frame."""
        self.writer.add(frame)
        self._write()

    def pause(self) -> None:
        """Pause sending: the client does not read its output."""
        self.paused = True
        self.moved = self.clock.seconds
        if self.transport is not None:
            self._hold(self.transport.get_write_buffer_size())

    def resume(self) -> None:
        self.paused = False
        self._acknowledgements = 0
        self._hold(0)
        if self._sendable is not None:
            self._flush_later()

    def is_blocked(self, now: float) -> bool:
        """True if the client has read nothing for too long."""
        if not self.paused or self.transport is None:
            return False
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.moved = unsent, now
        return now - self.moved > self._port.limits.blockage

    def _hold(self, size: int) -> None:
        """Count the bytes that the transport holds for a client that does not read."""
        change, self._unwritten = size - self._unwritten, size
        if change:
            self._port.count_unsent(change)

    def on_connect(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def on_disconnect(self) -> None:
        self.transport = self._sendable = None
        self._watched.clear()
        self.writer.take()
        self._hold(0)

    def abort(self) -> None:
        """Close the connection without sending anything."""
        self.writer.take()
        if self.transport is not None:
            self.transport.abort()

    def drop(self, ending: CloseReason) -> None:
        """Close the connection without sending anything, and count the reason: the client has stalled or was silent."""
        if self.transport is not None and not self.transport.is_closing():
            self._port.count_end(ending, self.transport)
        self.abort()

"""The half of a connection that sends: one write for all that a turn of the event loop has to say.

- `_out` is what goes to the transport with the next `flush`. The reading half flushes when it has read everything;
  otherwise the site does, at the end of the turn.
- Headers and acknowledgements go out as they come. Bodies go by the windows of their stream and of the connection, and
  only while the client takes what is written: until then they wait in their stream.
- `_sendable` has the streams with something to send that their own window allows.
"""

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from . import frames
from .budgets import NOISE_OF_DATA, NOISE_OF_STREAM, UNREAD, UPDATES_OF_DATA, UPDATES_OF_STREAM, Ending
from .frames import DATA, END_HEADERS, END_STREAM, HEADERS, head
from .stream import Chunk, Stream, gathered

if TYPE_CHECKING:
    from .site import Site

_JOINED: Final = 32 * 1024
"""Bytes up to which chunks are joined to one; longer ones are handed over as they are."""

_LONG_PARTS: Final = 4 * 1024
"""Bytes of a chunk, on the average, that makes it not worth while to look for neighbours to join."""

_AT_ONCE: Final = 1024 * 1024
"""Bytes of bodies between two looks whether the client takes them."""

_WORTH: Final = 1024
"""Bytes of a frame that makes up for frames of the client, as the end of a message does: it may not open its windows
byte by byte."""

_TURN: Final = 4096 * 1024
"""Bytes of bodies in one turn of the event loop: up to a millisecond."""

_SHARE: Final = 64 * 1024
"""Bytes of one body before the next stream's turn, if there is one."""


class Sending:
    """The streams and windows of a connection, and what goes out on it."""

    __slots__ = (
        "_control",
        "_held",
        "_out",
        "_sendable",
        "_watched",
        "closing",
        "half_window",
        "initial_window",
        "longest_frame",
        "moved",
        "noise",
        "paused",
        "pinged",
        "pings_sent",
        "reading",
        "ready",
        "resets",
        "scheduled",
        "site",
        "streams",
        "strikes",
        "table_update",
        "transport",
        "updates",
        "window",
    )

    def __init__(self, site: "Site") -> None:
        self.site = site
        self.transport: asyncio.Transport | None = None
        self.streams: dict[int, Stream] = {}
        self.half_window = site.limits.stream_window // 2
        self.window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.longest_frame = frames.DEFAULT_FRAME
        self.reading = False
        """Whether bytes are being read: what is to be sent waits for the end of it."""
        self.paused = False
        """Whether the client does not take what is written."""
        self.moved = site.seconds
        """When it last took something, while `paused`."""
        self.table_update = b""
        """What the next header block begins with."""
        self.closing = False
        """The connection ends when its streams have."""
        self.updates = site.limits.updates
        self.noise = site.limits.noise
        self.resets = site.limits.resets
        self.ready: list[Stream] = []
        self.pings_sent = 0
        """Since data was last sent."""
        self.strikes = 0
        self.pinged = 0.0
        """When the client last sent a ping; 0 if data was sent since."""
        self._out: list[Chunk] = []
        self.scheduled = False
        """Whether the site will flush it at the end of this turn: once, however often it is flushed before."""
        self._control = 0
        """Bytes of acknowledgements since the client stopped reading."""
        self._held = 0
        """Bytes that the transport held when the client stopped reading."""
        self._sendable: deque[Stream] | None = None
        self._watched: set[Stream] | None = None

    # Frames

    def control(self, frame: bytes) -> None:
        """Send a frame that no window holds back."""
        if self.paused:
            self._control += len(frame)
            if self._control > self.site.limits.unsent_control:
                self.drop_all(UNREAD)
                return
        self._out.append(frame)
        self._later()

    def send_headers(self, stream: Stream, block: bytes) -> None:
        self._out.append(self._header_frame(stream.number, END_HEADERS, block))
        self._sent_something()

    def respond(
        self, stream: Stream, headers: bytes, prefix: bytes, body: list[Chunk], size: int, trailers: bytes
    ) -> None:
        """A whole response, whose prefix and body have `size` bytes: one piece of bytes, if nothing holds it back."""
        if stream.over:
            return
        if size > stream.window or size > self.window or size > self.longest_frame or self.paused or self.table_update:
            stream.send_headers(headers)
            stream.wait_to_send((prefix, *body))
            stream.finish(trailers)
            return
        number = stream.number.to_bytes(4, "big")
        self.window -= size
        self._out.append(
            b"".join(
                [
                    _PART.pack(len(headers) >> 8, len(headers) & 255, HEADERS, END_HEADERS),
                    number,
                    headers,
                    _PART.pack(size >> 8, size & 255, DATA, 0),
                    number,
                    prefix,
                    *body,
                    _PART.pack(len(trailers) >> 8, len(trailers) & 255, HEADERS, END_HEADERS | END_STREAM),
                    number,
                    trailers,
                ]
            )
        )
        self._sent_something()
        self._over(stream)

    def push(self, stream: Stream) -> None:
        """Send of the stream what may be sent; the rest follows."""
        if not stream.pending and not self.paused and stream.final is not None:
            self._finish(stream)
            return
        if not stream.queued:
            stream.queued = True
            if self._sendable is None:
                self._sendable = deque()
            self._sendable.append(stream)
        if stream.pending and not stream.watched:
            self.watch(stream)
        self._later()

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream at once."""
        self.control(frames.reset(stream.number, code))
        stream.pending = stream.final = None
        stream.ended = True
        self._over(stream)

    def _header_frame(self, number: int, flags: int, block: bytes) -> bytes:
        if self.table_update:
            block, self.table_update = self.table_update + block, b""
        size = len(block)
        if size <= self.longest_frame:
            return head(size, HEADERS, flags, number) + block
        most = self.longest_frame
        parts = [head(most, HEADERS, flags & ~END_HEADERS, number), block[:most]]
        for at in range(most, size, most):
            part = block[at : at + most]
            last = END_HEADERS if at + most >= size else 0
            parts += [head(len(part), frames.CONTINUATION, last, number), part]
        return b"".join(parts)

    def _finish(self, stream: Stream) -> None:
        """The last header block of a stream, whose body has been sent."""
        assert stream.final is not None, "finished without a header block: this is a bug"
        self._out.append(self._header_frame(stream.number, END_HEADERS | END_STREAM, stream.final))
        self._sent_something()
        self._over(stream)

    def _over(self, stream: Stream) -> None:
        """Everything of a stream has been sent; if the client has not sent everything, it need not."""
        if not stream.ended:
            self._out.append(frames.reset(stream.number, frames.NO_ERROR))
            self._later()
        if self.streams.pop(stream.number, None) is not None:
            limits = self.site.limits
            if self.resets < limits.resets:
                self.resets += 1
            if self.noise < limits.noise:
                self.noise = min(self.noise + NOISE_OF_STREAM, limits.noise)
            self.updates += UPDATES_OF_STREAM
        stream.over = True
        if self._watched is not None:
            self._watched.discard(stream)
        stream.finished()
        if self.closing and not self.streams:
            self._later()

    def _sent_something(self) -> None:
        """Data or headers go out, after which a client may ping."""
        self.pings_sent = self.strikes = 0
        self.pinged = 0.0
        if not self.reading:
            self._later()

    # Windows

    def opened_window(self, stream: Stream) -> None:
        if stream.pending and not stream.queued and stream.window > 0:
            self.push(stream)

    def change_initial_window(self, size: int) -> None:
        """Raises `Http2Error` if that makes a window too large."""
        change, self.initial_window = size - self.initial_window, size
        for stream in list(self.streams.values()):
            stream.window += change
            if stream.window > frames.LARGEST_WINDOW:
                raise frames.Http2Error(frames.FLOW_CONTROL_ERROR, "a window is larger than 2^31-1")
            self.opened_window(stream)

    def _pump(self) -> None:
        """Hand bodies to the transport, in turns, as long as windows and the client allow."""
        sendable = self._sendable
        if sendable is None:
            return
        handed = written = 0
        while sendable and not self.paused and self.transport is not None:
            if written >= _TURN:
                self._later()
                return
            stream = sendable[0]
            if stream.pending and not stream.over and stream.window > 0 and self.window <= 0:
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
                self._finish(stream)
            else:
                if not stream.expects():
                    self.unwatch(stream)
                stream.drained()
            if handed >= _AT_ONCE:
                written += handed
                self._write(handed)
                handed = 0
        if not sendable:
            self._sendable = None

    def _send_share(self, stream: Stream, most: int) -> int:
        """A stream's next frames, of at most so many bytes, whose sizes are returned."""
        pending, out, longest = stream.pending, self._out, self.longest_frame
        most = min(most, stream.window, self.window)
        sent = 0
        while pending and sent < most:
            chunks = len(pending)
            chunk = pending.popleft()
            whole = min(len(chunk), most - sent) // longest * longest
            if whole:
                before, view = head(longest, DATA, 0, stream.number), memoryview(chunk)
                for at in range(0, whole, longest):
                    out.append(before)
                    out.append(view[at : at + longest])
                if whole < len(view):
                    pending.appendleft(view[whole:])
                size = whole
            else:
                pending.appendleft(chunk)
                size = self._send_joined(stream.number, pending, min(most - sent, longest))
            sent += size
            ended = chunks - len(pending)  # messages, or parts of long ones
            if ended or size >= _WORTH:
                count = max(1, size // longest)
                self.noise = min(self.noise + NOISE_OF_DATA * count, self.site.limits.noise)
                self.updates += UPDATES_OF_DATA * max(ended, count)
        if sent:
            stream.window -= sent
            self.window -= sent
            stream.moved = self.site.seconds
            self._sent_something()
        return sent

    def _send_joined(self, number: int, pending: deque[Chunk], most: int) -> int:
        """One frame of at most so many bytes, from as many chunks as it takes; its size."""
        parts: list[Chunk] = []
        left = most
        while left and pending:
            chunk = pending.popleft()
            if len(chunk) > left:
                view = memoryview(chunk)
                parts.append(view[:left])
                pending.appendleft(view[left:])
                left = 0
            else:
                parts.append(chunk)
                left -= len(chunk)
        self._out.append(head(most - left, DATA, 0, number))
        self._out.extend(parts)
        return most - left

    # Streams that have to get on

    def watch(self, stream: Stream) -> None:
        """Look from now on whether it gets on."""
        if self._watched is None:
            self._watched = set()
        self._watched.add(stream)
        stream.watched = True

    def begin_soon(self, stream: Stream) -> None:
        """Call its `begin` when what has come has been read."""
        self.ready.append(stream)

    def unwatch(self, stream: Stream) -> None:
        stream.watched = False
        if self._watched is not None:
            self._watched.discard(stream)

    # The transport

    def flush(self) -> None:
        """Write what waits, and as much of the bodies as goes."""
        if self._sendable is not None and not self.paused:
            self._pump()
        if self._out:
            self._write()
        if self.closing and not self.streams and self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        self.paused = True
        self.moved = self.site.seconds
        if self.transport is not None:
            self._hold(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.paused = False
        self._control = 0
        self._hold(0)
        if self._sendable is not None:
            self._later()

    def _hold(self, size: int) -> None:
        """Count what the transport holds for a client that does not read."""
        change, self._held = size - self._held, size
        if change:
            self.site.count_unsent(change)

    def abort(self) -> None:
        """End the connection without another byte."""
        self._out.clear()
        if self.transport is not None:
            self.transport.abort()

    def drop_all(self, ending: Ending) -> None:
        """The same, and count why: the client takes nothing any more, or has said nothing."""
        if self.transport is not None and not self.transport.is_closing():
            self.site.ended(ending, self.transport)
        self.abort()

    def _later(self) -> None:
        if not self.reading and not self.scheduled:
            self.scheduled = True
            self.site.flush_later(self)

    def _write(self, long: int = 0) -> None:
        """Hand everything to the transport; at least `long` bytes, as far as that is known."""
        out, self._out = self._out, []
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if len(out) == 1:
            transport.write(out[0])
        elif long > _LONG_PARTS * len(out):
            transport.writelines(out)
        elif sum([len(part) for part in out]) <= _JOINED:
            transport.write(b"".join(out))
        else:
            transport.writelines(gathered(out))


_PART: Final = Struct(">HBBB")
"""A frame's head without its stream."""

"""HTTP/2 on a transport of the test's own: a connection of the server, and its client by hyperframe and h2."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import h2.config
import h2.connection
import h2.events
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from modserve.frontends.http2.connection import Http2Connection
from modserve.frontends.http2.frames import PREFACE
from modserve.frontends.http2.headers import Head, block, status
from modserve.frontends.http2.limits import ConnectionLimits
from modserve.frontends.http2.policies import Policies
from modserve.frontends.http2.port import Http2Port
from modserve.frontends.http2.stream import Stream, StreamSender

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/echo"), (":authority", "a"), ("x", "y")]
HEADERS = block([(name.encode(), value.encode()) for name, value in REQUEST])
OK = status(200)
END = block([(b"end", b"1")])


class Loop:
    """The parts of an event loop that connections use, with a clock turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> "Loop":
        self.later.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        """As the handle of any timer."""

    def run(self) -> None:
        """One turn."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()


class Transport(asyncio.Transport):
    """Keeps what is written, and takes no more than `room` bytes before it pauses its protocol."""

    def __init__(self, protocol: Any, room: int = 1 << 30) -> None:
        super().__init__()
        self.protocol = protocol
        self.room = room
        self.written: list[bytes] = []
        self.closed = self.aborted = self.ended = False
        self._unsent = 0
        self._high = 1 << 16
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        self._unsent += max(0, len(data) - self.room)
        self.room = max(0, self.room - len(data))
        if self._unsent > self._high:
            self.protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def drain(self, room: int = 1 << 30) -> None:
        """The client reads on."""
        self._unsent, self.room = 0, room
        self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Echo(Stream):
    """Sends back what it got, when it has got it all."""

    def __init__(
        self, port: "EchoPort", connection: StreamSender, number: int, head: Head, window: int, room: int
    ) -> None:
        super().__init__(connection, number, head, window, room)
        self.body = b""
        self.log: list[str] = []
        self.port = port
        self.credits = port.credits
        port.streams.append(self)

    def data_received(self, data: bytes, start: int, end: int) -> None:
        self.body += data[start:end]
        if self.credits:
            self.credit(end - start)

    def end_received(self) -> None:
        self.log.append("end")
        if "begin" in self.log:
            self.answer()

    def begin(self) -> None:
        self.log.append("begin")
        if self.ended:
            self.answer()
        elif self.expects():
            self.connection.watch(self)

    def answer(self) -> None:
        if self.port.answers:
            self.connection.respond(self, OK, b"", [self.body], len(self.body), END)

    def on_lost(self) -> None:
        self.log.append("lost")

    def on_finish(self) -> None:
        self.log.append("finished")

    def on_drain(self) -> None:
        self.log.append("drained")

    def expects(self) -> bool:
        return not self.ended

    def on_overdue(self) -> None:
        self.log.append("overdue")
        self.reset()


class EchoPort(Http2Port):
    def __init__(self, loop: Any, policies: Policies | None = None, limits: ConnectionLimits | None = None) -> None:
        super().__init__(loop, policies or Policies(), limits or ConnectionLimits(), spread=lambda: 0.5)
        self.streams: list[Echo] = []
        self.credits = True
        self.answers = True

    def open(self, connection: StreamSender, number: int, head: Head, window: int, room: int) -> Stream:
        return Echo(self, connection, number, head, window, room)


class Wire:
    """A connection of `port`, and its client."""

    def __init__(self, port: Http2Port, loop: Loop | None = None, greet: bool = True, room: int = 1 << 30) -> None:
        self.port = port
        self.loop = loop
        self.connection = Http2Connection(port)
        self.transport = Transport(self.connection, room)
        self.connection.connection_made(self.transport)
        if greet:
            self.send(PREFACE + SettingsFrame(0).serialize())
            self.frames()

    def send(self, *what: bytes | Frame) -> None:
        """Bytes and frames, which come in one piece."""
        self.connection.data_received(b"".join([x if isinstance(x, bytes) else x.serialize() for x in what]))
        if self.loop is not None:
            self.loop.run()
            # A transport that was closed while reading rested is not read again.
            while not (self.transport.reading or self.transport.closed):
                self.loop.run()

    def written(self) -> bytes:
        """What has been written since the last look."""
        written, self.transport.written = b"".join(self.transport.written), []
        return written

    def frames(self) -> list[Any]:
        """The same as frames."""
        if self.loop is not None:
            self.loop.run()
        data, frames = memoryview(self.written()), list[Any]()
        while data:
            frame, length = Frame.parse_frame_header(data[:9])
            frame.parse_body(data[9 : 9 + length])
            frames.append(frame)
            data = data[9 + length :]
        return frames

    def ask(self, stream: int, body: bytes = b"", end: bool = True, block: bytes = HEADERS) -> None:
        """A request in one piece."""
        head = headers(stream, block, end=end and not body)
        self.send(head, *([data(stream, body, end=end)] if body else []))

    def error(self) -> tuple[int, bytes] | None:
        """The code and text of the GOAWAY that has ended the connection, if one has."""
        gone = [each for each in self.frames() if isinstance(each, GoAwayFrame)]
        return (gone[-1].error_code, gone[-1].additional_data) if gone else None

    def resets(self) -> list[tuple[int, int]]:
        """Streams, and the codes with which they were reset."""
        return [(each.stream_id, each.error_code) for each in self.frames() if isinstance(each, RstStreamFrame)]

    def pass_time(self, seconds: float, step: float = 1.0) -> None:
        assert self.loop is not None
        for _ in range(round(seconds / step)):
            self.loop.now += step
            self.port.tick()
        self.loop.run()


def headers(stream: int, block: bytes = HEADERS, end: bool = False, whole: bool = True) -> HeadersFrame:
    frame = HeadersFrame(stream, data=block)
    frame.flags |= {name for name, on in (("END_HEADERS", whole), ("END_STREAM", end)) if on}
    return frame


def data(stream: int, body: bytes, end: bool = False) -> DataFrame:
    frame = DataFrame(stream, data=body)
    if end:
        frame.flags.add("END_STREAM")
    return frame


def window(stream: int, size: int) -> WindowUpdateFrame:
    return WindowUpdateFrame(stream, window_increment=size)


class FriendlyClient:
    """The h2 library as a client."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events: list[Any] = []

    def exchange(self) -> list[Any]:
        """Both sides say what they have to say, until neither has more; the events that come of it."""
        events: list[Any] = []
        while True:
            out = self.h2.data_to_send()
            if out:
                self.wire.send(out)
            if self.wire.loop is not None:
                self.wire.loop.run()
            received = self.wire.written()
            if not out and not received:
                return events
            for event in self.h2.receive_data(received) if received else ():
                if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                events.append(event)

    def ask(self, body: bytes, fields: Sequence[tuple[str, str]] = REQUEST) -> list[Any]:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, fields, end_stream=not body)
        events = self.exchange()
        while body:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(body))
            self.h2.send_data(stream, body[:room], end_stream=room == len(body))
            body = body[room:]
            events += self.exchange()
        return events

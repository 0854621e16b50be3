"""HTTP/2 by hand: frames as bytes (RFC 9113), header blocks without compression (RFC 7541, 6.2.2)."""

import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from server_process import eventually
from wire import HOST

from attack.sending import SECONDS

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_INITIAL_WINDOW = 65_535
SERVICE: Final = "/inference.GRPCInferenceService/"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def field(name: bytes, value: bytes) -> bytes:
    """A header as a literal that enters no table."""
    return b"\0" + _string(name) + _string(value)


def indexed_field(name: bytes, value: bytes) -> bytes:
    """A header as a literal that enters the table, where it is 62 for a moment."""
    return b"\x40" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, tail = len(text) - 127, bytearray(b"\x7f")
    while rest > 127:
        tail.append(rest & 127 | 128)
        rest >>= 7
    tail.append(rest)
    return bytes(tail) + text


def call_headers(method: str, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", (SERVICE + method).encode()),
        (b":authority", b"a"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )
    return b"".join(field(name, value) for name, value in fields)


def message(data: bytes, compressed: bool = False) -> bytes:
    """As gRPC puts it into DATA frames."""
    return bytes((compressed,)) + len(data).to_bytes(4, "big") + data


class Connection:
    """What comes is read while something is sent, so that nobody waits for the other."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._buffer = bytearray()
        self._windows: dict[int, int] = {}
        self._initial = _INITIAL_WINDOW
        self._connection_window = _INITIAL_WINDOW
        self._replies = b""
        self.ended = False
        self.blocks: dict[int, bytes] = {}
        """The header blocks that came, by stream: one behind the other."""
        self.resets: dict[int, int] = {}
        """The error codes of streams that the server has ended."""
        self.going_away: int | None = None
        """The error code of a GOAWAY."""
        opened.setblocking(False)

    def send(self, data: bytes, seconds: float = 10.0) -> bool:
        """Whether all of it went out."""
        view, end = memoryview(data), time.monotonic() + seconds
        while view and not self.ended and time.monotonic() < end:
            self._wait(end, sending=True)
            try:
                view = view[self._socket.send(view[: 1 << 18]) :]
            except BlockingIOError:
                continue
            except OSError:
                self.ended = True
        return not view

    def send_data(self, stream: int, parts: Iterable[bytes], *, last: bool = True, seconds: float = 20.0) -> bool:
        """As DATA frames, as far and as fast as the server's windows allow."""
        end = time.monotonic() + seconds
        for part in parts:
            view = memoryview(part)
            while view:
                while (room := self._room(stream)) <= 0:
                    if stream in self.resets or not self._wait(end):
                        return False
                chunk = view[: min(room, 16_384)]
                if not self.send(frame(DATA, 0, stream, bytes(chunk)), end - time.monotonic()):
                    return False
                self._connection_window -= len(chunk)
                self._windows[stream] = self._windows.get(stream, 0) - len(chunk)
                view = view[len(chunk) :]
        return not last or self.send(frame(DATA, END_STREAM, stream))

    def _room(self, stream: int) -> int:
        return min(self._connection_window, self._initial + self._windows.get(stream, 0))

    def wait_for_status(self, stream: int, seconds: float = SECONDS) -> int | None:
        """The ``grpc-status`` of a call; None if its stream is reset without one, or there is none in time."""
        end = time.monotonic() + seconds
        while (status := self.status(stream)) is None and stream not in self.resets and self._wait(end):
            pass
        return status

    def status(self, stream: int) -> int | None:
        """The ``grpc-status`` that has come."""
        return _status(self.blocks.get(stream, b""))

    def exhausted(self, streams: Iterable[int]) -> int:
        """Number of calls that have ended RESOURCE_EXHAUSTED, of what has come by now."""
        self.wait_for_status(1_000_001, 0.05)
        return sum(self.status(stream) == 8 for stream in streams)

    def refused(self, streams: Sequence[int], executed: Callable[[], int]) -> int:
        """Number of calls that have ended RESOURCE_EXHAUSTED, once all others are `executed`."""
        counts = [0]

        def complete() -> bool:
            counts[0] = self.exhausted(streams)
            return counts[0] + executed() == len(streams)

        eventually(complete)
        return counts[0]

    def wait_for_answers(self, streams: Iterable[int], seconds: float = SECONDS) -> bool:
        """Whether something is said on each of the streams in time."""
        end = time.monotonic() + seconds
        waiting = set(streams)
        while waiting := {each for each in waiting if each not in self.blocks and each not in self.resets}:
            if not self._wait(end):
                return False
        return True

    def wait_for_end(self, seconds: float = SECONDS) -> bool:
        """Whether the server closes the connection in time."""
        end = time.monotonic() + seconds
        while not self.ended and self._wait(end):
            pass
        return self.ended

    def _wait(self, end: float, sending: bool = False) -> bool:
        """Until something came, or can be sent; False if the time or the connection is over."""
        left = end - time.monotonic()
        if self.ended or left <= 0:
            return False
        readable, _, _ = select.select([self._socket], [self._socket] if sending else [], [], left)
        if readable:
            try:
                data = self._socket.recv(1 << 18)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            self.ended = not data
            self._buffer += data
            self._read_frames()
            if self._replies and not sending:  # not in the middle of a frame
                self._reply()
        return True

    def _reply(self) -> None:
        """Answers to pings: a few bytes, for which there is room."""
        replies, self._replies = self._replies, b""
        try:
            self._socket.send(replies)
        except OSError:
            self.ended = True

    def _read_frames(self) -> None:
        while len(self._buffer) >= 9:
            end = 9 + int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < end:
                return
            kind, flags = self._buffer[3], self._buffer[4]
            stream = int.from_bytes(self._buffer[5:9], "big") & 0x7FFFFFFF
            payload = bytes(self._buffer[9:end])
            del self._buffer[:end]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (HEADERS, CONTINUATION):
            self.blocks[stream] = self.blocks.get(stream, b"") + payload
        elif kind == WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            if stream:
                self._windows[stream] = self._windows.get(stream, 0) + size
            else:
                self._connection_window += size
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == 4:
                    self._initial = int.from_bytes(payload[at + 2 : at + 6], "big")
        elif kind == PING and not flags & ACK:
            self._replies += frame(PING, ACK, 0, payload)
        elif kind == RST_STREAM:
            self.resets[stream] = int.from_bytes(payload, "big")
        elif kind == GOAWAY:
            self.going_away = int.from_bytes(payload[4:8], "big")


def _status(block: bytes) -> int | None:
    """Of a call whose connection has not seen the header before: its name and value stand there as they are."""
    _, name, rest = block.partition(b"grpc-status")
    if not name or not rest:
        return None
    return int(rest[1 : 1 + rest[0]])


@contextmanager
def connected(port: int, receive: int = 0) -> Iterator[Connection]:
    """A connection on which the settings have been exchanged."""
    with socket.socket() as opened:
        if receive:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        opened.settimeout(10)
        opened.connect((HOST, port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(opened)
        connection.send(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        yield connection

"""A client that keeps to the rules of HTTP/2 and gRPC: what it may send, what has come, and whether that was right.

It holds the server to the same rules: windows, one end for each call, headers that can be read, nothing on calls that
are over.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from hpack import Decoder, Encoder

from modserve.frontends.http2 import frames
from modserve.frontends.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from modserve.pb import inference as pb

PREFIX: Final = 5
RESOURCE_EXHAUSTED: Final = 8


def order(count: int, size: int, tag: int) -> bytes:
    """A request: for so many responses of so many bytes, each of them `tag`."""
    return pb.ModelMetadataRequest(name=f"{count},{size},{tag}").SerializeToString()


def orders(message: bytes | pb.ModelMetadataRequest) -> tuple[int, int, int]:
    """As `order` was called."""
    read = pb.ModelMetadataRequest.FromString(message) if isinstance(message, bytes) else message
    count, size, tag = map(int, read.name.split(","))
    return count, size, tag


@dataclass
class Call:
    """One call as its client sees it."""

    number: int
    path: str
    tag: int
    window: int
    """Bytes that the client may send."""
    room: int
    """Bytes that the server may send."""
    due: deque[int] = field(default_factory=deque)
    """Sizes of the responses that have to come."""
    unread: deque[int] = field(default_factory=deque)
    """Sizes of those that the program behind the client has not taken: their bytes are not given back."""
    waiting: bytearray = field(default_factory=bytearray)
    """What is to be sent, and has no window."""
    part: bytearray = field(default_factory=bytearray)
    """Of a response that is not complete."""
    closing: bool = False
    """Its client's side ends behind what waits."""
    closed: bool = False
    reset: bool = False
    """By the client."""
    heads: int = 0
    status: int | None = None
    refused: bool = False
    """It must be, by RESOURCE_EXHAUSTED."""
    received: int = 0

    @property
    def over(self) -> bool:
        return self.status is not None or self.reset


class Peer:
    """`outgoing` has the bytes that it has to say."""

    def __init__(self, initial: int = frames.DEFAULT_WINDOW) -> None:
        self.outgoing = bytearray(PREFACE)
        self.calls: dict[int, Call] = {}
        self.encoder = Encoder()
        self._decoder = Decoder(1 << 20)
        self._buffer = bytearray()
        self._initial = initial
        self._initial_pending: deque[int] = deque()
        """Windows of settings that the server has not acknowledged."""
        self._server_initial = frames.DEFAULT_WINDOW
        self._server_frame = frames.DEFAULT_FRAME
        self.window = frames.DEFAULT_WINDOW
        """Bytes that it may send on all streams."""
        self.room = frames.DEFAULT_WINDOW
        self._owed = 0
        """Bytes that have come, and are to be given back on the connection."""
        self.holding = False
        """Only programs that take responses give anything back."""
        self.unacknowledged = 0
        self._pings: deque[bytes] = deque()
        self.may_ping = 0
        """Pings for which something came: more would be strikes."""
        self._last = -1
        self.data_frames = 0
        self.longest_frame = frames.DEFAULT_FRAME
        self.settings({frames.INITIAL_WINDOW_SIZE: initial} if initial != frames.DEFAULT_WINDOW else {})

    # What it says

    def settings(self, values: dict[int, int]) -> None:
        self.outgoing += frames.settings(values)
        self._initial_pending.append(values.get(frames.INITIAL_WINDOW_SIZE, -1))
        self.longest_frame = max(self.longest_frame, values.get(frames.MAX_FRAME_SIZE, 0))
        self.unacknowledged += 1

    def ping(self) -> None:
        payload = len(self._pings).to_bytes(8, "big")
        self._pings.append(payload)
        self.outgoing += frames.ping(payload)
        self.may_ping -= 1

    def prioritize(self, number: int) -> None:
        self.outgoing += frame(frames.PRIORITY, 0, number, bytes((0, 0, 0, 0, 7)))

    def open(self, path: str, tag: int, more: list[tuple[str, str]], parts: int = 1, padding: int = 0) -> Call:
        """A call whose header block comes in so many frames."""
        self._last += 2
        number = self._last
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "host"), ("te", "trailers")]
        coded = number % 4 == 1 and all(len(value) < 100 for _, value in more)  # which takes very long of long ones
        block = self.encoder.encode([*fields, ("content-type", "application/grpc"), *more], huffman=coded)
        size = max(1, min(-(-len(block) // parts), self._server_frame - padding - 1))
        pieces = [block[at : at + size] for at in range(0, len(block), size)]
        for at, piece in enumerate(pieces):
            flags = END_HEADERS if at == len(pieces) - 1 else 0
            if at:
                self.outgoing += frame(CONTINUATION, flags, number, piece)
            elif padding:
                self.outgoing += frame(HEADERS, flags | PADDED, number, bytes((padding,)) + piece + bytes(padding))
            else:
                self.outgoing += frame(HEADERS, flags, number, piece)
        call = self.calls[number] = Call(number, path, tag, self._server_initial, self._initial)
        return call

    def send(self, call: Call, message: bytes) -> None:
        call.waiting += b"\0" + len(message).to_bytes(4, "big") + message
        self._send_on(call)

    def close(self, call: Call) -> None:
        call.closing = True
        self._send_on(call)

    def cancel(self, call: Call) -> None:
        call.reset = True
        call.unread.clear()
        call.part.clear()
        self.outgoing += frames.reset(call.number, frames.CANCEL)

    def _send_on(self, call: Call) -> None:
        while not call.over and not call.closed and (call.waiting or call.closing):
            size = min(len(call.waiting), call.window, self.window, self._server_frame)
            ends = call.closing and size == len(call.waiting)
            if not size and not ends:
                return
            self.outgoing += frame(DATA, END_STREAM if ends else 0, call.number, bytes(call.waiting[:size]))
            del call.waiting[:size]
            call.window -= size
            self.window -= size
            call.closed = ends

    def take(self, call: Call, pieces: int) -> int:
        """The program takes a response, and its bytes are given back in so many WINDOW_UPDATEs on its stream and one
        on the connection, as grpc-core does: five bytes when the prefix has been read, and the rest in parts.
        """
        size = call.unread.popleft()
        parts = [PREFIX, size - PREFIX] if pieces > 1 and size > PREFIX else [size]
        if pieces > 2 and size > 2 * PREFIX:
            parts = [PREFIX, PREFIX, size - 2 * PREFIX]
        if not call.reset:
            for part in parts:
                self.update(call.number, part)
                call.room += part
        self.give_back()
        return len(parts) + 1

    def give_back(self) -> None:
        """What has come is taken from the connection's window no longer."""
        if self._owed:
            self.update(0, self._owed)
            self.room += self._owed
            self._owed = 0

    def want(self, call: Call) -> None:
        """A response is waited for whose stream has no window left: room for the whole of it."""
        if call.due and not call.over and call.room <= 0:
            size = max(PREFIX + call.due[0] - len(call.part), 1 - call.room)
            self.update(call.number, size)
            call.room += size

    def update(self, number: int, size: int) -> None:
        self.outgoing += frames.window_update(number, size)

    # What it hears

    def hear(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= frames.HEAD_SIZE:
            end = frames.HEAD_SIZE + int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < end:
                return
            kind, flags = self._buffer[3], self._buffer[4]
            number = int.from_bytes(self._buffer[5:9], "big")
            payload = bytes(self._buffer[9:end])
            del self._buffer[:end]
            self._hear(kind, flags, number, payload)

    def _hear(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        assert kind != GOAWAY, f"the connection is ended: {payload[8:].decode()}"
        if kind == SETTINGS:
            self._on_settings(flags, payload)
        elif kind == PING:
            assert flags & ACK, "a client that is heard is pinged"
            assert payload == self._pings.popleft()
        elif kind == WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            if number:
                self.calls[number].window += size
                self._send_on(self.calls[number])
            else:
                self.window += size
                for call in self.calls.values():
                    self._send_on(call)
        elif kind in (DATA, HEADERS, RST_STREAM):
            self._on_stream(kind, flags, self.calls[number], payload)
        else:
            raise AssertionError(f"a frame of kind {kind}")

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self.unacknowledged -= 1
            size = self._initial_pending.popleft()
            if size >= 0:
                for call in self.calls.values():
                    call.room += size - self._initial
                self._initial = size
            return
        values = dict(frames.read_settings(payload))
        self._server_initial = values.get(frames.INITIAL_WINDOW_SIZE, self._server_initial)
        self._server_frame = values.get(frames.MAX_FRAME_SIZE, self._server_frame)
        self.outgoing += frames.SETTINGS_ACK

    def _on_stream(self, kind: int, flags: int, call: Call, payload: bytes) -> None:
        if kind == RST_STREAM:
            code = int.from_bytes(payload, "big")
            assert call.status is not None, f"call {call.number} is reset with {code}"
            assert code == frames.NO_ERROR
            call.closed = True
            return
        self.may_ping = 2
        if kind == HEADERS:
            fields = {bytes(name): bytes(value) for name, value in self._decoder.decode(payload, raw=True)}
            call.heads += 1
            if flags & END_STREAM and not call.reset:
                assert call.status is None, f"call {call.number} ends twice"
                call.status = int(fields[b"grpc-status"])
                assert not call.part, "a call ends in the middle of a response"
                if call.refused:
                    assert call.status == RESOURCE_EXHAUSTED, call.status
                    assert b"16384" in fields[b"grpc-message"]  # the limit
                else:
                    assert call.status == 0, fields
                    assert not call.due, f"call {call.number} ends without {len(call.due)} of its responses"
            return
        assert len(payload) <= self.longest_frame
        self.data_frames += 1
        self.room -= len(payload)
        call.room -= len(payload)
        assert self.room >= 0, "more than the connection's window"
        self._owed += len(payload)
        if self._owed >= frames.DEFAULT_WINDOW // 2 and not self.holding:
            self.give_back()
        if call.reset:  # it was under way; nobody reads it
            return
        assert call.room >= 0, "more than the stream's window"
        assert call.status is None, "data behind the end"
        assert call.heads == 1
        call.part += payload
        self._read(call)

    def _read(self, call: Call) -> None:
        while len(call.part) >= PREFIX:
            end = PREFIX + int.from_bytes(call.part[1:PREFIX], "big")
            if len(call.part) < end:
                return
            assert call.due, "a response that nobody has asked for"
            assert end == PREFIX + call.due.popleft()
            assert call.part.count(call.tag, PREFIX, end) == end - PREFIX, "a response is another call's"
            del call.part[:end]
            call.unread.append(end)
            call.received += 1

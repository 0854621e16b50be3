"""Bytes → frames, without a connection: the same frames whatever pieces they come in."""

from dataclasses import replace

import pytest

from modserve.frontends.http2 import frames
from modserve.frontends.http2.frame_reader import FrameHandler, FrameReader
from modserve.frontends.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Error,
    frame,
)
from modserve.frontends.http2.limits import LIMITS

GREETING = PREFACE + frame(SETTINGS, 0, 0)


class Recorder(FrameHandler):
    """Joins what comes in parts, and says what has come."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.body = b""
        self.block = b""
        self.cost = 0

    def on_headers(self, number: int, block: bytes, ends: bool) -> int:
        self.events.append(("headers", number, block, ends))
        return self.cost

    def on_block_part(self, number: int, part: bytes, ends: bool, last: bool) -> None:
        self.block += part
        if last:
            self.events.append(("headers", number, self.block, ends))
            self.block = b""

    def on_data(self, number: int, length: int, padding: int, data: bytes, start: int, end: int, ends: bool) -> None:
        self.events.append(("data", number, length, padding))
        self.on_more_data(data, start, end, ends)

    def on_more_data(self, data: bytes, start: int, end: int, ends: bool) -> None:
        self.body += data[start:end]
        if ends:
            self.events.append(("end",))

    def on_window_update(self, number: int, size: int) -> None:
        self.events.append(("window", number, size))

    def on_control(self, kind: int, flags: int, number: int, payload: bytes) -> int:
        self.events.append((kind, flags, number, payload))
        return 0

    def on_noise(self) -> None:
        self.events.append(("noise",))


def read(data: bytes, size: int = 0) -> Recorder:
    """What came, in pieces of so many bytes."""
    reader, recorder = FrameReader(LIMITS), Recorder()
    size = size or len(data)
    for at in range(0, len(data), size):
        reader.read(data[at : at + size], recorder)
        while reader.too_much:
            reader.read(b"", recorder)
    assert not reader.unfinished
    assert reader.settled
    return recorder


LONG = bytes(range(256)) * 80  # more than is read at once
WIRE = {
    "headers": (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"abc"), [("headers", 1, b"abc", True)], b""),
    "padded headers": (
        frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\2" + bytes(5) + b"abc" + bytes(2)),
        [("headers", 1, b"abc", False)],
        b"",
    ),
    "headers in parts": (
        frame(HEADERS, END_STREAM | PADDED, 1, b"\1ab\0") + frame(CONTINUATION, END_HEADERS, 1, b"c"),
        [("headers", 1, b"abc", True)],
        b"",
    ),
    "headers in as many parts as may be": (
        frame(HEADERS, 0, 1, b"a")
        + frame(CONTINUATION, 0, 1, b"b") * (LIMITS.continuations - 1)
        + frame(CONTINUATION, END_HEADERS, 1, b"c"),
        [("headers", 1, b"a" + b"b" * (LIMITS.continuations - 1) + b"c", False)],
        b"",
    ),
    "long headers": (frame(HEADERS, END_HEADERS, 1, LONG), [("headers", 1, LONG, False)], b""),
    "data": (frame(DATA, 0, 1, b"abc"), [("data", 1, 3, 0)], b"abc"),
    "padded data": (frame(DATA, PADDED | END_STREAM, 1, b"\2abc\0\0"), [("data", 1, 6, 3), ("end",)], b"abc"),
    "the end": (frame(DATA, END_STREAM, 1), [("data", 1, 0, 0), ("end",)], b""),
    "a window": (frame(WINDOW_UPDATE, 0, 3, b"\x80\0\0\7"), [("window", 3, 7)], b""),
    "a ping": (frame(PING, 0, 0, b"12345678"), [(PING, 0, 0, b"12345678")], b""),
    "something unknown": (frame(0xBE, 0, 9, LONG), [("noise",)], b""),
}


@pytest.mark.parametrize("size", [0, 1, 2, 7])
@pytest.mark.parametrize("name", WIRE)
def test_frames(name: str, size: int) -> None:
    sent, events, body = WIRE[name]
    recorder = read(GREETING + sent, size)
    assert recorder.events[1:] == events
    assert recorder.body == body


WRONG = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", PROTOCOL_ERROR),
    "no SETTINGS": (PREFACE + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "an acknowledgement first": (PREFACE + frame(SETTINGS, frames.ACK, 0), PROTOCOL_ERROR),
    "a block that is interrupted": (
        GREETING + frame(HEADERS, 0, 1, b"a") + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        PROTOCOL_ERROR,
    ),
    "a block without end": (
        GREETING + frame(HEADERS, 0, 1, b"a") + frame(CONTINUATION, 0, 1, b"a") * (LIMITS.continuations + 1),
        frames.ENHANCE_YOUR_CALM,
    ),
    "padding and priority in fewer bytes than they take": (
        GREETING + frame(HEADERS, PADDED | WITH_PRIORITY, 1, b"\x7f\xff\xff\xff"),
        PROTOCOL_ERROR,
    ),
    "padding longer than its part of a block": (GREETING + frame(HEADERS, PADDED, 1, b"\3ab"), PROTOCOL_ERROR),
    "too long": (GREETING + (LIMITS.frame + 1).to_bytes(3, "big") + b"\0\0\0\0\0\1", frames.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", WRONG)
def test_what_ends_the_connection(name: str, size: int) -> None:
    sent, code = WRONG[name]
    with pytest.raises(Http2Error) as raised:
        read(sent, size)
    assert raised.value.code == code


def test_what_costs_too_much_for_one_turn_waits() -> None:
    reader, recorder = FrameReader(replace(LIMITS, work=10)), Recorder()
    recorder.cost = 4
    reader.read(GREETING + frame(HEADERS, END_HEADERS, 1, b"a") * 5, recorder)
    assert reader.too_much
    assert len(recorder.events) == 3  # SETTINGS, and 2 of 5
    reader.read(b"", recorder)
    reader.read(b"", recorder)
    assert len(recorder.events) == 6
    assert not reader.too_much
    assert not reader.unfinished

"""HTTP/2 that no client sends: frames without end, streams that never end or end at once."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest
from server_process import ServerProcess
from wire import assert_serving

from attack import http2
from attack.http2 import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, call_headers, frame
from attack.measuring import Limits, attacked
from attack.test_grpc_calls import innocent


def streams(count: int) -> Iterator[int]:
    return iter(range(1, 2 * count, 2))


def rapid_reset() -> Iterator[bytes]:
    """Calls that are given up as they begin."""
    block = call_headers("ServerLive")
    for stream in streams(5_000):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")


def reset_whole_requests() -> Iterator[bytes]:
    block = call_headers("ServerLive")
    for stream in streams(2_000):
        whole = frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, http2.message(b""))
        yield whole + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")


def half_open(method: str, count: int) -> Iterator[bytes]:
    block = call_headers(method)
    for stream in streams(count):
        yield frame(HEADERS, END_HEADERS, stream, block)


def half_messages() -> Iterator[bytes]:
    block = call_headers("ModelInfer")
    for stream in streams(1_000):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, 0, stream, b"\0\0\xff\xff\xff" + b"x")


def announced_messages() -> Iterator[bytes]:
    """4 GB each by their own words, of which nothing comes."""
    block = call_headers("ModelInfer")
    for stream in streams(200):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, 0, stream, b"\0\xff\xff\xff\xff")


def continuation() -> Iterator[bytes]:
    """A header block of 5 MB that does not end."""
    yield frame(HEADERS, 0, 1, call_headers("ServerLive"))
    part = http2.field(b"x", b"y" * 120) * 128
    for _ in range((5 << 20) // len(part)):
        yield frame(CONTINUATION, 0, 1, part)


def empty_continuation() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, call_headers("ServerLive"))
    for _ in range(20):
        yield frame(CONTINUATION, 0, 1) * 1_000


def hpack_bomb() -> Iterator[bytes]:
    """A long header put into the table once, and then named by a byte, thousands of times in each call."""
    yield frame(
        HEADERS, END_HEADERS | END_STREAM, 1, call_headers("ServerLive") + http2.indexed_field(b"x", b"y" * 3_900)
    )
    block = call_headers("ServerLive") + b"\xbe" * 4_000
    for stream in range(3, 203, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def repeated(one: bytes, count: int) -> Iterator[bytes]:
    for _ in range(count // 100):
        yield one * 100


@dataclass(frozen=True)
class Row:
    name: str
    frames: Callable[[], Iterator[bytes]]
    limits: Limits = field(default_factory=lambda: Limits(peak_mb=128, cpu_seconds=6))


ROWS: Final = (
    Row("rapid reset, 5,000", rapid_reset),
    Row("2,000 whole requests, reset", reset_whole_requests),
    Row("5,000 half-open streams", functools.partial(half_open, "ModelInfer", 5_000)),
    Row("2,000 half-open response streams", functools.partial(half_open, "ModelStreamInfer", 2_000)),
    Row("1,000 half messages", half_messages),
    Row("200 announced messages of 4 GB", announced_messages),
    Row("PING, 20,000", functools.partial(repeated, frame(http2.PING, 0, 0, bytes(8)), 20_000)),
    Row("SETTINGS, 20,000", functools.partial(repeated, frame(http2.SETTINGS, 0, 0, b"\0\x04\0\x01\0\0"), 20_000)),
    Row("empty SETTINGS, 20,000", functools.partial(repeated, frame(http2.SETTINGS, 0, 0), 20_000)),
    Row("PRIORITY, 20,000", functools.partial(repeated, frame(http2.PRIORITY, 0, 1, b"\0\0\0\0\0"), 20_000)),
    Row("WINDOW_UPDATE, 20,000", functools.partial(repeated, frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"), 20_000)),
    Row("an unknown frame, 20,000", functools.partial(repeated, frame(0xBE, 0, 0, b"x"), 20_000)),
    Row("empty DATA, 20,000", functools.partial(repeated, frame(DATA, 0, 1), 20_000)),
    Row("CONTINUATION, 5 MB", continuation),
    Row("empty CONTINUATION, 20,000", empty_continuation),
    Row("an HPACK bomb", hpack_bomb),
    Row("a frame of 16 MB", lambda: iter([b"\xff\xff\xff\0\0\0\0\0\x01" + bytes(1 << 20)])),
    Row("a number without end", lambda: iter([frame(HEADERS, END_HEADERS, 1, b"\x7f" + b"\xff" * 10_000)])),
    Row("a window beyond its limit", lambda: iter([frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 100])),
    Row("stream 0", lambda: iter([frame(HEADERS, END_HEADERS, 0, call_headers("ServerLive"))])),
    Row("a stream of the server's", lambda: iter([frame(HEADERS, END_HEADERS, 2, call_headers("ServerLive"))])),
    Row("padding longer than its frame", lambda: iter([frame(DATA, 8, 1, b"\xff")])),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_frames(server: ServerProcess, row: Row) -> None:
    """Whether it is answered, ignored or ended: other connections do not notice."""
    with (
        attacked(server, f"HTTP/2: {row.name}", row.limits),
        innocent(server),
        http2.connected(server.grpc_port) as connection,
    ):
        for data in row.frames():
            if not connection.send(data):
                break
    assert_serving(server)

"""Much of what is cheap to send and dear to answer, over HTTP/2: each flood ends, or costs those who send it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest
from server_process import ServerProcess, eventually
from tritonclient.grpc import service_pb2 as pb
from wire import Ask, assert_serving, message

from attack import http2
from attack.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call_headers,
    frame,
)
from attack.measuring import Limits, attacked, footprint, status_number
from attack.sending import dialled, executed
from attack.test_grpc_calls import innocent

CALM: Final = 11

_BLOCK = call_headers("ServerLive")
_OPENED = frame(HEADERS, END_HEADERS, 1, call_headers("ModelStreamInfer"))


def window(size: int) -> bytes:
    """A setting: the windows that streams begin with."""
    return b"\0\4" + size.to_bytes(4, "big")


def repeated(one: bytes, count: int, before: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def sent() -> Iterator[bytes]:
        yield before
        for _ in range(count // 1_000):
            yield one * 1_000

    return sent


def windows_of_many_streams() -> Iterator[bytes]:
    """Each frame changes the window of 1,000 streams 2,700 times."""
    for stream in range(1, 2_001, 2):
        yield frame(HEADERS, END_HEADERS, stream, call_headers("ModelStreamInfer"))
    for number in range(100):
        yield frame(SETTINGS, 0, 0, (window(0) + window(1)) * 1_350 + window(2 + number % 2))


def dribble() -> Iterator[bytes]:
    """A response of 1 MB whose window opens byte by byte."""
    asked = pb.ModelInferRequest(model_name="numbers")
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 250_000))
    asked.raw_input_contents.append(bytes(1_000_000))
    body = http2.message(asked.SerializeToString())
    yield frame(SETTINGS, 0, 0, window(0)) + frame(HEADERS, END_HEADERS, 1, call_headers("ModelInfer"))
    for at in range(0, len(body), 16_384):
        yield frame(DATA, END_STREAM if at + 16_384 >= len(body) else 0, 1, body[at : at + 16_384])
    for _ in range(100):
        yield frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1") * 1_000


def fields_of_nothing() -> Iterator[bytes]:
    """Blocks of 1,300 fields, which are decoded anew each time: 2 MB take seconds to read."""
    block = _BLOCK + b"\0\1a\0" * 1_300
    for stream in range(1, 801, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def sizes_of_the_table() -> Iterator[bytes]:
    block = b"\x20" * 15_000 + _BLOCK
    for stream in range(1, 201, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def made_resets() -> Iterator[bytes]:
    """Whole requests that the server itself resets, for a window that grows by nothing."""
    body = http2.message(bytes(message(Ask()).SerializeToString()))
    for stream in range(1, 6_001, 2):
        yield (
            frame(HEADERS, END_HEADERS, stream, call_headers("ModelInfer"))
            + frame(DATA, END_STREAM, stream, body)
            + frame(WINDOW_UPDATE, 0, stream, bytes(4))
        )


def wrong_requests() -> Iterator[bytes]:
    for stream in range(1, 6_001, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82")


@dataclass(frozen=True)
class Row:
    name: str
    frames: Callable[[], Iterator[bytes]]
    code: int | None = CALM
    """With which the connection ends; None: the server puts up with it."""
    limits: Limits = field(default_factory=lambda: Limits(peak_mb=64, cpu_seconds=2))


ROWS: Final = (
    Row("windows of 1,000 streams, 270,000 times", windows_of_many_streams),
    Row("a window that opens byte by byte", dribble),
    Row("GOAWAY, 20,000", repeated(frame(GOAWAY, 0, 0, bytes(8)), 20_000, _OPENED)),
    Row("acknowledgements of pings, 20,000", repeated(frame(PING, ACK, 0, bytes(8)), 20_000)),
    Row("acknowledgements of SETTINGS, 20,000", repeated(frame(SETTINGS, ACK, 0), 20_000)),
    Row("empty padded DATA, 20,000", repeated(frame(DATA, 8, 1, b"\0"), 20_000, _OPENED)),
    Row("requests that are none, 3,000", wrong_requests),
    Row("requests that the server resets, 3,000", made_resets, limits=Limits(peak_mb=64, cpu_seconds=3)),
    Row("DATA of one byte, 200,000", repeated(frame(DATA, 0, 1, b"x"), 200_000, _OPENED
        + frame(DATA, 0, 1, b"\0\0\x0f\xff\xff")), None, Limits(peak_mb=64, cpu_seconds=3)),
    Row("DATA of one byte for a stream that is over, 200,000", repeated(frame(DATA, 0, 1, b"x"), 200_000, _OPENED
        + frame(RST_STREAM, 0, 1, bytes(4))), None),
    Row("400 blocks of 1,300 fields", fields_of_nothing, None, Limits(peak_mb=64, cpu_seconds=6)),
    Row("15,000 sizes of the table in each block", sizes_of_the_table, None, Limits(peak_mb=64, cpu_seconds=6)),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_floods(server: ServerProcess, row: Row) -> None:
    with (
        attacked(server, f"HTTP/2: {row.name}", row.limits),
        innocent(server),
        http2.connected(server.grpc_port) as connection,
    ):
        for data in row.frames():
            if not connection.send(data):
                break
        if row.code is None:
            connection.send(frame(HEADERS, END_HEADERS | END_STREAM, 9_999, _BLOCK))
            assert connection.wait_for_answers([9_999])
            assert connection.going_away is None
        else:
            assert connection.wait_for_end()
            assert connection.going_away in (row.code, None)  # None: it was lost with the rest of the connection
    assert_serving(server)


UNREAD: Final = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "SETTINGS": frame(SETTINGS, 0, 0),
    "streams that are refused": b"",
}


@pytest.mark.parametrize("name", UNREAD)
def test_floods_of_a_client_that_does_not_read(server: ServerProcess, name: str) -> None:
    """What the server would say to it does not pile up, and the connection ends."""
    before = footprint(server.pid).descriptors
    with (
        attacked(server, f"HTTP/2: {name}, unread", Limits(peak_mb=32, cpu_seconds=2)),
        innocent(server),
        dialled(server.grpc_port) as connection,
    ):
        connection.sendall(http2.PREFACE + frame(SETTINGS, 0, 0))
        try:
            for number in range(200):
                one = UNREAD[name] or frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, b"\x82")
                connection.sendall(one * 100)
        except ConnectionError:
            pass
        eventually(lambda: footprint(server.pid).descriptors <= before + 2)
    assert_serving(server)


def test_responses_for_which_there_is_no_window(server: ServerProcess) -> None:
    """150 responses of 4 MB, none of which may be sent: they count as memory, and beyond it calls are refused."""
    asked = pb.ModelInferRequest(model_name="numbers")
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 1_000_000))
    asked.raw_input_contents.append(bytes(4_000_000))
    body = http2.message(asked.SerializeToString())
    streams = range(1, 301, 2)
    with (
        attacked(server, "HTTP/2: 150 responses of 4 MB, no window", Limits(peak_mb=900, cpu_seconds=10, left_mb=160)),
        innocent(server),
        http2.connected(server.grpc_port) as connection,
    ):
        before = executed(server)
        connection.send(frame(SETTINGS, 0, 0, window(0)))
        for stream in streams:
            connection.send(frame(HEADERS, END_HEADERS, stream, call_headers("ModelInfer")))
            connection.send_data(stream, [body])
        assert 10 <= connection.refused(streams, lambda: executed(server) - before) < 150
    eventually(lambda: status_number(server.pid, "VmRSS") < 400_000)
    assert_serving(server)

"""Clients that do little, on much: messages that trickle, calls that are opened and left, responses not taken."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from repositories import EXAMPLES
from server_process import ServerProcess, eventually, serving
from tritonclient.grpc import service_pb2 as pb
from wire import Ask, assert_serving, message

from attack import http2
from attack.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, call_headers, frame
from attack.measuring import Limits, attacked
from attack.sending import INFER, dialled, executed, statuses

MEMORY: Final = 64 << 20
BEGUN: Final = http2.message(bytes(message(Ask()).SerializeToString()))
EXCEEDED = 4


@pytest.fixture(scope="module")
def small(identities: Path) -> Iterator[ServerProcess]:
    """It has little memory, and its clients have a second for everything, and five for 16 KiB."""
    options = [f"--request-memory-limit={MEMORY}", "--http-client-timeout=1"]
    with serving(EXAMPLES, identities, options=options) as running:
        yield running


def trickle(connections: list[socket.socket], data: bytes, seconds: float) -> dict[socket.socket, bytes]:
    """What each gets until it ends, or the time is over; all send `data` five times a second."""
    received, end = dict.fromkeys(connections, b""), time.monotonic() + seconds
    left, following = set(connections), 0.0
    while left and (now := time.monotonic()) < end:
        if now >= following:
            following = now + 0.2
            for connection in left:
                try:
                    connection.send(data)
                except OSError:
                    pass
        for connection in select.select(list(left), [], [], 0.05)[0]:
            try:
                part = connection.recv(65536)
            except OSError:
                part = b""
            received[connection] += part
            if not part:
                left.discard(connection)
    return received


def test_a_body_that_trickles(small: ServerProcess) -> None:
    """It is never silent for as long as it may, and does not come on."""
    post = b"POST %b HTTP/1.1\r\nHost: a\r\n" % INFER.encode()
    with attacked(small, "bodies that trickle"), ExitStack() as stack:
        counted, chunked = (stack.enter_context(dialled(small.http_port)) for _ in range(2))
        counted.sendall(post + b"Content-Length: 1000000\r\n\r\n" + b" " * 500_000)
        chunked.sendall(post + b"Transfer-Encoding: chunked\r\n\r\n7b000\r\n" + b" " * 499_999)
        received = trickle([counted, chunked], b" ", 15)
        assert [statuses(received[each]) for each in (counted, chunked)] == [[408], [408]]
    assert_serving(small)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_message_that_trickles(small: ServerProcess, method: str) -> None:
    """The call ends, and its memory is free; a stream that only waits goes on."""
    with (
        attacked(small, f"HTTP/2: a message of {method} that trickles"),
        http2.connected(small.grpc_port) as connection,
    ):
        connection.send(frame(HEADERS, END_HEADERS, 1, call_headers("ModelStreamInfer")))  # idle, all the while
        connection.send(frame(HEADERS, END_HEADERS, 3, call_headers(method)))
        connection.send_data(3, [b"\0" + (1 << 24).to_bytes(4, "big") + bytes(500_000)], last=False)
        begun = time.monotonic()
        while (status := connection.status(3)) is None and time.monotonic() < begun + 15:
            connection.send(frame(DATA, 0, 3, b"\0"))
            connection.wait_for_status(3, 0.2)
        assert status == EXCEEDED
        connection.send(frame(DATA, 0, 1, BEGUN))
        assert connection.wait_for_answers([1])
        assert 1 not in connection.resets
        assert connection.status(1) is None
    assert_serving(small)


def test_calls_that_are_opened_and_left(small: ServerProcess) -> None:
    """A thousand on each of ten connections: those beyond the memory are refused, whichever connection they are on."""
    block = call_headers("ModelStreamInfer")
    with attacked(small, "HTTP/2: 10,000 open calls", Limits(peak_mb=96, cpu_seconds=12)), ExitStack() as stack:
        connections = [stack.enter_context(http2.connected(small.grpc_port)) for _ in range(10)]
        for first in range(1, 2_001, 200):
            for connection in connections:
                connection.send(b"".join(frame(HEADERS, END_HEADERS, n, block) for n in range(first, first + 200, 2)))
        eventually(lambda: sum(connection.exhausted(range(1, 2_001, 2)) for connection in connections) > 2_000)
        assert connections[0].exhausted(range(1, 201, 2)) == 0
        for connection in connections[:5]:
            connection.send(b"".join(frame(RST_STREAM, 0, n, b"\0\0\0\x08") for n in range(1, 2_001, 2)))
        last = stack.enter_context(http2.connected(small.grpc_port))
        last.send(frame(HEADERS, END_HEADERS, 1, call_headers("ModelInfer")) + frame(DATA, END_STREAM, 1, BEGUN))
        assert last.wait_for_status(1) == 0
    assert_serving(small)


def test_responses_that_nobody_takes(small: ServerProcess) -> None:
    """Each is shorter than a megabyte, and together they are more than the memory."""
    asked = pb.ModelInferRequest(model_name="numbers")
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 200_000))
    asked.raw_input_contents.append(bytes(800_000))
    body = http2.message(asked.SerializeToString())
    streams = range(1, 241, 2)
    with (
        attacked(small, "HTTP/2: 120 responses of 0.8 MB, no window", Limits(peak_mb=160, cpu_seconds=5, left_mb=96)),
        http2.connected(small.grpc_port) as connection,
    ):
        before = executed(small)
        connection.send(frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"))
        for stream in streams:
            connection.send(frame(HEADERS, END_HEADERS, stream, call_headers("ModelInfer")))
            connection.send_data(stream, [body])
        assert 30 <= connection.refused(streams, lambda: executed(small) - before) < 120
    assert_serving(small)

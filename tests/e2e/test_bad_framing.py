"""What is no HTTP, or no gRPC, at all: refused on its own connection, and nobody else notices.

What is said of malformed requests is in `bad_requests_table`.
"""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from server_process import ServerProcess
from wire import HOST, SECONDS, Ask, assert_serving, binary_request, infer_path


@pytest.fixture(autouse=True)
def still_serving(server: ServerProcess) -> Iterator[None]:
    yield
    assert_serving(server)


@contextmanager
def dialled(port: int) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, port), timeout=SECONDS) as connection:
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """What the server sends until it closes, which it must."""
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


def post(body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"POST {infer_path('simple')} HTTP/1.1", "Host: localhost", *headers])
    return head.encode() + b"\r\n\r\n" + body


BODY, _headers = binary_request(Ask())
LENGTHS = (
    f"Inference-Header-Content-Length: {_headers['Inference-Header-Content-Length']}",
    f"Content-Length: {len(BODY)}",
)
GOOD = post(BODY, *LENGTHS)
CLIENT_HELLO = bytes.fromhex("16030100050100000100")

BROKEN_OFF = {
    "nothing": b"",
    "half a request line": b"POST /v2/mod",
    "half a head": GOOD[:60],
    "a head without its body": GOOD[: GOOD.index(b"\r\n\r\n") + 4],
    "half a body": GOOD[:-10],
    "half of the chunks": post(b"5\r\nabcde\r\n", "Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("data", BROKEN_OFF.values(), ids=BROKEN_OFF)
def test_a_request_broken_off_gets_no_answer(server: ServerProcess, data: bytes) -> None:
    with dialled(server.http_port) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection) == b""


def test_a_request_after_a_bad_one_on_the_same_connection_is_not_answered(server: ServerProcess) -> None:
    """What follows a framing mistake may be the inside of another's request."""
    with dialled(server.http_port) as connection:
        connection.sendall(post(b"zz\r\n", "Transfer-Encoding: chunked") + GOOD)
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    bad = post(b"{", "Content-Length: 1")
    last = post(BODY, *LENGTHS, "Connection: close")
    with dialled(server.http_port) as connection:
        connection.sendall(GOOD + bad + GOOD + last)
        answer = read_to_end(connection)
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answer) == [b"200", b"400", b"200", b"200"]


def test_a_request_in_single_bytes(server: ServerProcess) -> None:
    with dialled(server.http_port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(BODY, *LENGTHS, "Connection: close"):
            connection.sendall(bytes([byte]))
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


def test_expect_continue(server: ServerProcess) -> None:
    with dialled(server.http_port) as connection:
        connection.sendall(post(b"", *LENGTHS, "Expect: 100-continue", "Connection: close"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


def test_chunks(server: ServerProcess) -> None:
    halves = [BODY[:100], BODY[100:]]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(half), half) for half in halves) + b"0\r\n\r\n"
    with dialled(server.http_port) as connection:
        connection.sendall(post(chunks, LENGTHS[0], "Transfer-Encoding: chunked", "Connection: close"))
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, CLIENT_HELLO], ids=["http", "zeros", "tls"])
def test_no_grpc_on_the_grpc_port(server: ServerProcess, data: bytes) -> None:
    with dialled(server.grpc_port) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        read_to_end(connection)


def test_no_http_on_the_metrics_port(server: ServerProcess) -> None:
    with dialled(server.metrics_port) as connection:
        connection.sendall(b"GARBAGE\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")

"""What is no HTTP, or no gRPC, at all: refused on its own connection, and nobody else notices."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import MAX_JSON
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

REFUSED = {
    "no request line": (b"GARBAGE\r\n\r\n", 400),
    "no HTTP": (b"\x00\x01\x02\x03\r\n\r\n", 400),
    "a TLS hello": (CLIENT_HELLO, 400),
    "an HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "an unknown version": (b"GET /v2 HTTP/9.9\r\n\r\n", 400),
    "an unknown method": (b"FOO /v2 HTTP/1.1\r\n\r\n", 400),
    "a header without a colon": (b"GET /v2 HTTP/1.1\r\nHost localhost\r\n\r\n", 400),
    "a space in a header's name": (b"GET /v2 HTTP/1.1\r\nBad Name: 1\r\n\r\n", 400),
    "a control character in a header": (b"GET /v2 HTTP/1.1\r\nX: \x01\r\n\r\n", 400),
    "a length that is no number": (post(b"", "Content-Length: abc"), 400),
    "a negative length": (post(b"", "Content-Length: -5"), 400),
    "two lengths": (post(b"", "Content-Length: 5", "Content-Length: 6"), 400),
    "a length and chunks": (post(b"", "Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    "chunks of no size": (post(b"zz\r\nabc\r\n", "Transfer-Encoding: chunked"), 400),
    "a chunk longer than said": (post(b"2\r\nabcdef\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), 400),
    "JSON announced too long": (post(b"", f"Content-Length: {MAX_JSON + 1}"), 400),
    "JSON too long, in chunks that go on": (
        post(b"c350\r\n%b\r\n" % (b" " * 50_000) * 5, "Transfer-Encoding: chunked"),
        400,
    ),
    "JSON announced absurdly long": (post(b"", f"Content-Length: {10**15}"), 400),
    "a head too long": (b"GET /v2 HTTP/1.1\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "a head too long, of many headers": (b"GET /v2 HTTP/1.1\r\n" + b"X: aaaaaaaaaaaaaaaa\r\n" * 7_000 + b"\r\n", 431),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_refused_with_a_reason(server: ServerProcess, data: bytes, status: int) -> None:
    with dialled(server.http_port) as connection:
        connection.sendall(data)
        answer = read_to_end(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"Connection: close" in head
    assert re.fullmatch(rb'\{"error":".+"\}', body)


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

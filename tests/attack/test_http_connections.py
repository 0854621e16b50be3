"""Connections: many, slow, silent, greedy, and gone without a word."""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, eventually, serving
from wire import HOST, http

from attack.measuring import Limits, attacked, footprint
from attack.sending import GOOD, INFER, assert_answers, chances, dialled, exchange, post, read_to_end, statuses

LIVE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
POST: Final = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(GOOD))
_RESET = struct.pack("ii", 1, 0)


def connected(stack: ExitStack, port: int, count: int, receive: int = 0) -> list[socket.socket]:
    """Connections that do not wait: what cannot be sent at once is not."""
    found = []
    for _ in range(count):
        connection = socket.socket()
        stack.enter_context(connection)
        if receive:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        connection.settimeout(10)
        connection.connect((HOST, port))
        connection.setblocking(False)
        found.append(connection)
    return found


def push(connections: Sequence[socket.socket], data: bytes, seconds: float) -> int:
    """Sends as much of `data` on each as it takes, for so long; returns how many bytes that was."""
    views = {connection: memoryview(data) for connection in connections}
    sent, end = 0, time.monotonic() + seconds
    while views and time.monotonic() < end:
        moved = 0
        for connection, view in list(views.items()):
            try:
                count = connection.send(view[: 1 << 18])
            except BlockingIOError:
                continue
            except OSError:
                del views[connection]
                continue
            moved += count
            views[connection] = view[count:]
            if not views[connection]:
                del views[connection]
        sent += moved
        if not moved:
            time.sleep(0.005)
    return sent


def test_pipelines(server: ServerProcess) -> None:
    """Requests sent ahead by many, who read nothing: whoever asks for one thing is not behind them all."""
    with ExitStack() as stack:
        connections = connected(stack, server.http_port, 50)
        with attacked(server, "50 connections x 5,000 requests sent ahead", Limits(peak_mb=150)):
            assert push(connections, LIVE * 5_000, 4) > 0
            for connection in connections:
                connection.close()
    assert_answers(server)


def test_pipelines_of_inferences(server: ServerProcess) -> None:
    with attacked(server, "3,000 inferences sent ahead", Limits(peak_mb=64)):
        answer = exchange(server.http_port, (POST + GOOD) * 3_000)
        assert statuses(answer) == [200] * 3_000


def test_readers_that_never_read(server: ServerProcess) -> None:
    """Each asks for long answers, over and over; the server makes no more than it can send."""
    page = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"
    with ExitStack() as stack:
        connections = connected(stack, server.http_port, 20, receive=4096)
        with attacked(server, "20 readers that never read", Limits(peak_mb=128)):
            push(connections, page * 500, 2)
            for connection in connections:
                connection.close()
    assert_answers(server)


def test_health_flood(server: ServerProcess) -> None:
    """As many questions as four connections can ask in a second."""
    with attacked(server, "health flood", Limits(peak_mb=64)):
        end = time.monotonic() + 1
        counts: list[int] = []

        def ask() -> None:
            with dialled(server.http_port) as connection:
                count = 0
                while time.monotonic() < end:
                    connection.sendall(LIVE * 8)
                    received = b""
                    while received.count(b"HTTP/1.1 200") < 8:
                        received += connection.recv(65536)
                    count += 8
                counts.append(count)

        in_parallel([ask] * 4)
        assert len(counts) == 4


def test_connection_churn(server: ServerProcess) -> None:
    with attacked(server, "1,000 connections, one after the other", Limits(peak_mb=32)):
        for index in range(1_000):
            with dialled(server.http_port) as connection:
                connection.sendall(LIVE)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
                if index % 2:
                    reset(connection)
    assert_answers(server)


@pytest.mark.parametrize("port", ["http", "grpc", "metrics"])
def test_connections_that_are_reset(server: ServerProcess, port: str) -> None:
    """At every moment: before a byte, in a head, in a body, before the answer is read."""
    number = {"http": server.http_port, "grpc": server.grpc_port, "metrics": server.metrics_port}[port]
    with attacked(server, f"300 resets, {port}", Limits(peak_mb=32)):
        for index in range(300):
            with dialled(number) as connection:
                with suppress(ConnectionError):
                    connection.sendall((POST + GOOD)[: index * (len(POST) + len(GOOD)) // 290])
                reset(connection)
    assert_answers(server)


def reset(connection: socket.socket) -> None:
    """Closes it so that the other side hears of it as of a failure."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def test_many_connections_at_once(server: ServerProcess) -> None:
    with ExitStack() as stack, attacked(server, "500 idle connections", Limits(peak_mb=64)):
        for connection in connected(stack, server.http_port, 500):
            connection.settimeout(10)
        eventually(lambda: footprint(server.pid).descriptors > 500)
        assert_answers(server)
        stack.close()


def in_parallel(functions: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_random_bytes(server: ServerProcess) -> None:
    """Bytes by chance, from a fixed seed; what is no request is refused or waited for, and leaves nothing."""
    with attacked(server, "250 x random bytes", Limits(peak_mb=64)):
        for choose in chances(1, 250):
            answer = exchange(server.http_port, choose.randbytes(choose.choice((1, 10, 100, 5_000))))
            assert all(status in (400, 431, 501, 505) for status in statuses(answer))
    assert_answers(server)


def test_mutated_requests(server: ServerProcess) -> None:
    """Good requests with a few bytes changed, taken out or put in: answered, never with a failure of the server's."""
    requests = (POST + GOOD, LIVE, POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GOOD)
    with attacked(server, "250 mutated requests", Limits(peak_mb=64)):
        for choose in chances(2, 250):
            data = mutated(choose.choice(requests), choose)
            answer = exchange(server.http_port, data)
            assert all(status < 500 or status in (501, 505) for status in statuses(answer)), data
    assert_answers(server)


_TOKENS = (b"\r\n", b"\n", b"\0", b":", b" ", b"0", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"%2e",
           b"[" * 200, b"9" * 50, b'"', b"{", b"NaN", b"\xff", b"-1", b"1e999")  # fmt: skip


def mutated(data: bytes, choose: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 5))):
        if not changed:
            break  # all was taken out
        at = choose.randrange(len(changed))
        match choose.randrange(4):
            case 0:
                changed[at] = choose.randrange(256)
            case 1:
                del changed[at : at + choose.choice((1, 3, 40))]
            case 2:
                changed[at:at] = choose.choice(_TOKENS)
            case _:
                changed[at:at] = changed[at : at + choose.choice((1, 10, 100))]
    return bytes(changed)


# Time-outs

_SHORT: Final = ("--http-idle-timeout=1", "--http-client-timeout=1")
"""Seconds. The times below are limits on how long the server may take to notice, not how long it does."""


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServerProcess]:
    """Its clients have a second for everything."""
    with serving(EXAMPLES, options=_SHORT) as running:
        yield running


@contextmanager
def trickling(connection: socket.socket, data: bytes, seconds: float) -> Iterator[None]:
    """Sends one byte after the other, from a thread, until the block is over."""
    stopped = threading.Event()

    def send() -> None:
        with suppress(OSError):
            for byte in data:
                connection.sendall(bytes([byte]))
                if stopped.wait(seconds):
                    return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


SILENT: Final = {
    "nothing": b"",
    "half a request line": b"GET /v2/he",
    "half a head": b"GET / HTTP/1.1\r\nHost: a\r\n",
    "a head without its body": POST,
    "half a body": POST + GOOD[:20],
    "half a chunk": POST.replace(b"Content-Length: %d" % len(GOOD), b"Transfer-Encoding: chunked") + b"ff\r\nabc",
    "half a trailer": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ",
    "nothing after an answer": LIVE,
    "half a head after an answer": LIVE + LIVE[:10],
}


def test_clients_that_fall_silent(impatient: ServerProcess) -> None:
    """Each at its own point; all connections are closed, with 408 or without a word."""
    before = footprint(impatient.pid).descriptors
    with attacked(impatient, "clients that fall silent"), ExitStack() as stack:
        opened = {name: stack.enter_context(dialled(impatient.http_port)) for name in SILENT}
        for name, connection in opened.items():
            connection.sendall(SILENT[name])
        answers = {name: statuses(read_to_end(connection)) for name, connection in opened.items()}
    for name, found in answers.items():
        first = [200] if SILENT[name].startswith(LIVE) else []
        assert found in (first, [*first, 408], [*first, 400]), f"{name}: {found}"
    eventually(lambda: footprint(impatient.pid).descriptors <= before)


def test_a_head_that_trickles(impatient: ServerProcess) -> None:
    """A byte now and then is no head: it must be whole in time, however lively its sender."""
    with (
        attacked(impatient, "a head that trickles"),
        dialled(impatient.http_port) as connection,
        trickling(connection, LIVE[:-2] + b"x: y\r\n" * 1000, 0.05),
    ):
        assert statuses(read_to_end(connection)) in ([], [408])


def test_a_body_that_keeps_coming_is_not_cut_off(impatient: ServerProcess) -> None:
    """Slow is not silent: it takes longer than the time-out, and a byte arrives within each."""
    with attacked(impatient, "a body that keeps coming"), dialled(impatient.http_port) as connection:
        connection.sendall(POST + GOOD[:-4])
        with trickling(connection, GOOD[-4:], 0.4):
            received = b""
            while not received.startswith(b"HTTP/1.1 200 "):
                data = connection.recv(65536)
                assert data, "cut off"
                received += data


def test_a_client_that_does_not_read_is_let_go(impatient: ServerProcess) -> None:
    before = footprint(impatient.pid).descriptors
    page = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"
    with ExitStack() as stack, attacked(impatient, "a client that does not read, with a time-out"):
        connections = connected(stack, impatient.http_port, 5, receive=4096)
        for connection in connections:
            connection.setblocking(True)
            connection.sendall(LIVE)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")  # so the server knows of it
            connection.sendall(page * 200)
        eventually(lambda: footprint(impatient.pid).descriptors <= before + 1)  # the probe's


def test_memory_after_many_large_requests(tmp_path: Path) -> None:
    """800 requests of 4.8 MB from four connections: of what they carried, less than a fortieth stays resident."""
    write_identity(tmp_path, "numbers", "FP32")
    count = 3 * 400 * 1000
    header = (
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],'
        b'"parameters":{"binary_data_output":true}}' % (count, 4 * count)
    )
    body = header + bytes(4 * count)
    request = (
        b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\n"
        b"Content-Length: %d\r\n\r\n" % (len(header), len(body))
    ) + body

    with serving(tmp_path) as server:

        def client() -> None:
            buffer = bytearray(1 << 20)
            with dialled(server.http_port) as connection:
                for _ in range(200):
                    connection.sendall(request)
                    begin = connection.recv(4096)
                    length = int(begin.partition(b"\r\nContent-Length: ")[2].partition(b"\r\n")[0])
                    left = length + begin.index(b"\r\n\r\n") + 4 - len(begin)
                    while left:
                        received = connection.recv_into(buffer, min(left, len(buffer)))
                        assert received, "the connection ended"
                        left -= received

        before = footprint(server.pid).rss_mb
        in_parallel([client] * 4)
        assert (
            http(server.http_port, "GET", "/v2/models/numbers/stats").json["model_stats"][0]["inference_count"] == 800
        )
        eventually(lambda: footprint(server.pid).rss_mb <= before + 90)


def test_a_body_too_large_for_the_memory(server: ServerProcess) -> None:
    """Announced, and sent in chunks without an announcement: 503 or 413, before it is all there."""
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 10\r\n" % INFER.encode()
    with attacked(server, "a body of 100 GB, announced", Limits(peak_mb=32)):
        assert statuses(exchange(server.http_port, head + b"Content-Length: 100000000000\r\n\r\n", more=True)) in (
            [503],
            [413],
        )
    with (
        attacked(server, "a body without end, in chunks", Limits(peak_mb=700)),
        dialled(server.http_port) as connection,
    ):
        chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with suppress(ConnectionError):
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(1000):
                connection.sendall(chunk)
        assert statuses(read_to_end(connection)) in ([503], [413])
    assert post(server, INFER, GOOD).status == 200

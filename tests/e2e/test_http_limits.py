"""What one HTTP client may take of a real server: connections, time, the event loop."""

import re
import resource
import selectors
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server, ServerProcess, eventually, serving
from wire import HOST, SECONDS, assert_serving, connect, http, send

from attack.measuring import footprint
from attack.probe import cpu_seconds

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def dialled(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=SECONDS)


def answer_of(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    received = b""
    with closing(connection):
        while data := connection.recv(65536):
            received += data
    return received


def with_few_files(count: int, script: Path) -> str:
    """A Python that may have `count` files open, and cannot change it."""
    script.write_text(f'#!/bin/sh\nulimit -n {count}\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def is_taken(server: Server) -> bool:
    """Whether there is room for a connection. One that is turned away may be reset before its client reads why."""
    try:
        return http(server.http_port, "GET", "/v2/health/live").status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    options = ["--http-max-connections=20", "--http-idle-timeout=2", "--http-client-timeout=2"]
    with serving_here(EXAMPLES, options=options) as running:
        yield running


def test_connections_above_the_limit_are_told(limited: Server) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            kept = stack.enter_context(dialled(limited.http_port))
            kept.sendall(LIVE)
            assert kept.recv(65536).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):
            with dialled(limited.http_port) as refused:
                answer = answer_of(refused)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"20 connections open, which is its limit" in answer
        eventually(lambda: len(re.findall("which is the limit", limited.log)) == 1)
        with socket.create_connection((HOST, limited.http_port), SECONDS, ("127.0.0.2", 0)) as other:
            other.sendall(LIVE)
            assert other.recv(65536).startswith(b"HTTP/1.1 200 "), "another address has its place"
    eventually(lambda: is_taken(limited))
    assert_serving(limited)


def test_silent_clients_are_ended(limited: Server) -> None:
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"
    with dialled(limited.http_port) as idle, dialled(limited.http_port) as half, dialled(limited.http_port) as body:
        half.sendall(head[:30])
        body.sendall(head + b"{")
        assert answer_of(half).startswith(b"HTTP/1.1 408 ")
        assert answer_of(body).startswith(b"HTTP/1.1 408 ")
        assert answer_of(idle) == b""


def test_the_system_looks_after_silent_clients(limited: Server) -> None:
    """Timers of the server's end of a connection, as the kernel shows them; 02 is keep-alive."""
    with dialled(limited.http_port) as connection:
        connection.sendall(LIVE)
        assert connection.recv(65536)
        ours, theirs = connection.getsockname()[1], limited.http_port
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # By its addresses: the kernel lists a connection twice where others come and go while it is read.
        timers = {(row[1], row[2]): row[5] for row in rows if row[1].endswith(f":{theirs:04X}")}
        (timer,) = [timer for (_, peer), timer in timers.items() if peer.endswith(f":{ours:04X}")]
        assert timer.startswith("02:")


def test_few_descriptors_are_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", with_few_files(64, tmp_path / "python"))
    with serving(EXAMPLES) as server:
        possible = int(server.wait_for(r"allows only (\d+) HTTP connections, not 10000")[1])
        with ExitStack() as stack:
            connections = [stack.enter_context(dialled(server.http_port)) for _ in range(100)]
            for connection in connections[:possible]:
                connection.sendall(LIVE)
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert footprint(server.pid).descriptors < 64
            connections[0].close()
            eventually(lambda: is_taken(server))
            assert_serving(server)  # over gRPC, too


def test_a_flood_of_pipelined_requests_keeps_nobody_waiting(server: ServerProcess) -> None:
    before = memory(server)
    flood = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 14_000
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        greedy = [stack.enter_context(dialled(server.http_port)) for _ in range(100)]
        for connection in greedy:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE, memoryview(flood))
        push(selector)
        with closing(connect(server.http_port)) as other:
            waits = []
            for _ in range(20):
                push(selector)
                begun = cpu_seconds(server.pid)
                assert send(other, "GET", "/v2/health/live").status == 200
                waits.append(cpu_seconds(server.pid) - begun)  # what it did before that
        assert sorted(waits)[10] < 0.25, waits
        assert memory(server) - before < 100e6


def memory(server: ServerProcess) -> int:
    """Bytes that the process has in memory."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def push(selector: selectors.BaseSelector) -> None:
    """Write what the server takes at the moment."""
    for key, _ in selector.select(0):
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        sent = connection.send(key.data)
        if sent == len(key.data):
            selector.unregister(connection)
        else:
            selector.modify(connection, selectors.EVENT_WRITE, key.data[sent:])


def test_a_request_beyond_the_memory_for_all() -> None:
    with serving_here(EXAMPLES, options=["--request-memory-limit=1000000"]) as server:
        head = "POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 10\r\n"
        with dialled(server.http_port) as connection:
            connection.sendall(f"{head}Content-Length: 1000001\r\n\r\n".encode())
            assert answer_of(connection).startswith(b"HTTP/1.1 413 ")
        held_and_refused(server, f"{head}Content-Length: 900000\r\n\r\n".encode() + bytes(900_000))
        assert_serving(server)


def held_and_refused(server: Server, request: bytes) -> None:
    """Two clients send most of a large body: one finds no room, and the other is served."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        clients = [stack.enter_context(dialled(server.http_port)) for _ in range(2)]
        for client in clients:
            client.setblocking(False)
            selector.register(client, selectors.EVENT_WRITE | selectors.EVENT_READ, memoryview(request)[:-100_000])
        refused: socket.socket | None = None
        while refused is None:
            ready = selector.select(SECONDS)
            assert ready, "nobody was refused"
            for key, events in ready:
                opened = key.fileobj
                assert isinstance(opened, socket.socket)
                if events & selectors.EVENT_READ:
                    refused = opened
                    break
                rest = key.data[opened.send(key.data) :]
                selector.modify(opened, selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0), rest)
        for client in clients:
            client.settimeout(SECONDS)
            if client is not refused:
                client.sendall(selector.get_key(client).data)
                client.sendall(request[-100_000:])
        answers = {client is refused: client.recv(13) for client in clients}
        assert answers == {True: b"HTTP/1.1 503 ", False: b"HTTP/1.1 400 "}

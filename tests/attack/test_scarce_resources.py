"""A server with little memory, or few descriptors: it refuses what is too much, says so in its log, and lives."""

import http.client
import resource
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack, closing
from typing import Final

import grpc
import pytest
from repositories import EXAMPLES
from server_process import LOADED, ServerProcess, eventually, started
from tritonclient.grpc import service_pb2 as pb
from wire import HOST, SECONDS, assert_serving, stub

from attack import http2
from attack.measuring import Limits, attacked, footprint, status_number
from attack.sending import GZIP, INFER, REFUSALS, dialled, exchange, gzipped, post, read_to_end, repeated, statuses

ROOM: Final = 450 << 20
"""Bytes of addresses that are left to the server above those it has after its start."""
_BODY: Final = 300 << 20


def assert_lives(server: ServerProcess) -> None:
    eventually(lambda: exchange(server.http_port, LIVE).startswith(b"HTTP/1.1 200 "))
    assert_serving(server)


LIVE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def end(server: ServerProcess) -> None:
    """In order, whatever its log says: where memory runs out, errors belong there."""
    server.signal(signal.SIGTERM)
    eventually(lambda: not server.running)


def limit_memory(server: ServerProcess) -> None:
    size = status_number(server.pid, "VmSize") << 10
    resource.prlimit(server.pid, resource.RLIMIT_AS, (size + ROOM, size + ROOM))


def test_http_bodies_beyond_the_memory() -> None:
    """The system refuses memory in the middle of a body: 503 to that client, and a line in the log."""
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 10\r\n" % INFER.encode()
    with started(EXAMPLES, options=["--request-memory-limit=0"]) as server:
        server.wait_for(LOADED)
        limit_memory(server)
        for _ in range(2):
            with dialled(server.http_port) as connection:
                connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (2 * _BODY))
                try:
                    for _ in range(2 * _BODY >> 20):
                        connection.sendall(bytes(1 << 20))
                except ConnectionError:
                    pass
                assert statuses(read_to_end(connection)) in ([503], [413], [])
            assert_lives(server)
        eventually(lambda: "emory" in server.log.partition("load time")[2])
        end(server)


def test_json_bombs_beyond_the_memory() -> None:
    bomb = gzipped(repeated(b'{"a":0}', 4_000_000, b'{"parameters":{"x":[', b']},"inputs":[]}'))
    with started(EXAMPLES, options=["--request-memory-limit=0"]) as server:
        server.wait_for(LOADED)
        limit_memory(server)
        for _ in range(3):
            assert post(server, INFER, bomb, GZIP).status in REFUSALS
            assert_lives(server)
        end(server)


@pytest.mark.parametrize("options", [["--request-memory-limit=200000000"], []], ids=["with a limit", "by default"])
def test_grpc_messages_beyond_the_memory(options: list[str]) -> None:
    """Twice, since what the first has left makes the second worse."""
    with started(EXAMPLES, options=options, before=("sh", "-c", 'ulimit -v 3000000 && exec "$0" "$@"')) as server:
        server.wait_for(LOADED)
        for _ in range(2):
            with http2.connected(server.grpc_port) as connection:
                block = http2.call_headers("ModelInfer")
                connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block))
                start = b"\0" + (3 * _BODY).to_bytes(4, "big")
                connection.send_data(1, [start, *[bytes(1 << 20)] * (3 * _BODY >> 20)])
                status = connection.wait_for_status(1)
                assert status == 8 or (status is None and 1 in connection.resets), f"status {status}"
            assert_lives(server)
        end(server)


def test_few_descriptors() -> None:
    """200 idle connections where 64 descriptors are allowed: others get through, or are told so at once."""
    with started(EXAMPLES, before=("sh", "-c", 'ulimit -n 64 && exec "$0" "$@"')) as server:
        server.wait_for(LOADED)
        before = footprint(server.pid)
        # gRPC's library has a line of its own about it.
        limits = Limits(errors="posix_engine_listener")
        with attacked(server, "200 connections, 64 descriptors", limits), ExitStack() as stack:
            for _ in range(200):
                connection = stack.enter_context(dialled(server.http_port))
                connection.setblocking(False)
            server.wait_for("WARNING.*(connections|descriptors|open files)")
            codes: Counter[str] = Counter()
            for _ in range(5):
                codes[call(server)] += 1
            assert set(codes) <= {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}, codes
            assert codes["OK"], "gRPC has descriptors of its own"
            assert new_connection(server) in (200, 503)
        eventually(lambda: footprint(server.pid).descriptors <= before.descriptors)
        assert_lives(server)
        end(server)


def test_few_descriptors_and_many_grpc_connections() -> None:
    """Those on one port do not take the other's: HTTP is served, a line in the log says what is wrong, and it ends.

    Nor do those of one address keep others out.
    """
    with started(EXAMPLES, before=("sh", "-c", 'ulimit -n 128 && exec "$0" "$@"')) as server:
        server.wait_for(LOADED)
        before = footprint(server.pid)
        with attacked(server, "300 gRPC connections, 128 descriptors"):
            with ExitStack() as stack:
                for _ in range(300):
                    stack.enter_context(dialled(server.grpc_port)).setblocking(False)
                server.wait_for("WARNING.*gRPC connections are open")
                assert [new_connection(server) for _ in range(5)] == [200] * 5
                for number in range(2, 12):
                    elsewhere = socket.create_connection((HOST, server.grpc_port), SECONDS, (f"127.0.0.{number}", 0))
                    assert stack.enter_context(elsewhere).recv(9), f"address {number} gets no settings"
            eventually(lambda: footprint(server.pid).descriptors <= before.descriptors + 1)
            assert call(server) == "OK"
        assert_lives(server)
        server.stop()


def call(server: ServerProcess) -> str:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}", options) as channel:
        try:
            stub(channel).ServerLive(pb.ServerLiveRequest(), timeout=SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def new_connection(server: ServerProcess) -> int:
    with closing(http.client.HTTPConnection(HOST, server.http_port, timeout=SECONDS)) as connection:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status


def test_a_client_that_vanishes_in_a_burst_of_connections() -> None:
    """More connections than fit into the listening queue, again and again."""
    with started(EXAMPLES) as server:
        server.wait_for(LOADED)
        with attacked(server, "bursts of connections"):
            end = time.monotonic() + 1
            while time.monotonic() < end:
                with ExitStack() as stack:
                    for _ in range(150):
                        stack.enter_context(dialled(server.http_port))
        assert_lives(server)
        server.stop()

"""A client that leaves takes exactly its own request with it, whether it waits or runs."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
from open_server import OpenServer
from repositories import Gate, write_held
from server_process import ServerProcess, eventually
from tritonclient.grpc import service_pb2
from wire import (
    SECONDS,
    Answer,
    Ask,
    Input,
    binary_outputs,
    binary_request,
    channel,
    connect,
    http,
    infer_path,
    ints,
    message,
    metric,
    raw_outputs,
    statistics,
    stub,
)

MODEL = "gathering"
NARROW = "narrow"
WIDE = 400_000
FULL = 4


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cancelling")


@pytest.fixture(scope="module")
def gate(repository: Path) -> Gate:
    """Of a model that waits until four requests are there. It is open."""
    batching = f"dynamic_batching {{ preferred_batch_size: [ {FULL} ] max_queue_delay_microseconds: 600000000 }}"
    found = write_held(repository, MODEL, extra=batching)
    found.open()
    return found


@pytest.fixture(scope="module")
def narrow(repository: Path) -> Gate:
    """Of a model with a queue of one."""
    found = write_held(repository, NARROW, extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    found.open()
    return found


@pytest.fixture(scope="module")
def server(repository: Path, gate: Gate, narrow: Gate, open_server: OpenServer) -> Iterator[ServerProcess]:
    with open_server.host(repository) as running:
        yield running


class Call(Protocol):
    """A request on its way."""

    def cancel(self) -> None: ...

    def wait_until_noticed(self) -> None:
        """The server has heard of the cancellation."""
        ...

    def result(self) -> bytes: ...


class HttpCall:
    def __init__(self, server: ServerProcess, connection: HTTPConnection, ask: Ask) -> None:
        self._server = server
        self._connection = connection
        self._other_end = ""
        body, headers = binary_request(ask)
        connection.request("POST", infer_path(ask.model), body, headers)

    def cancel(self) -> None:
        self._other_end = other_end(self._server, self._connection)
        self._connection.close()

    def wait_until_noticed(self) -> None:
        eventually(lambda: self._other_end not in open_files(self._server))

    def result(self) -> bytes:
        response = self._connection.getresponse()
        answer = Answer(response.status, dict(response.headers.items()), response.read())
        assert answer.status == 200, answer.body
        return binary_outputs(answer)["OUTPUT0"]


class GrpcCall:
    def __init__(self, opened: Any, ask: Ask) -> None:
        self._stub = stub(opened)
        self._future = self._stub.ModelInfer.future(message(ask), timeout=SECONDS)

    def cancel(self) -> None:
        assert self._future.cancel()

    def wait_until_noticed(self) -> None:
        """What comes after it on the same connection has been answered."""
        for _ in range(2):
            self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS)

    def result(self) -> bytes:
        return raw_outputs(self._future.result())["OUTPUT0"]


def other_end(server: ServerProcess, connection: HTTPConnection) -> str:
    """The server's socket of a connection, as the link in /proc names it."""
    ports = server.http_port, connection.sock.getsockname()[1]
    for line in Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if tuple(int(address.partition(":")[2], 16) for address in fields[1:3]) == ports:
            return f"socket:[{fields[9]}]"
    raise AssertionError(f"no connection between ports {ports}")


def open_files(server: ServerProcess) -> set[str]:
    found = set()
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            found.add(os.readlink(link))
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


class Clients:
    """One client a call, as different users would be."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self._count = 0

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call it when the test is over, however it ends."""
        self._stack.callback(callback)

    def send(self, protocol: str, model: str = MODEL, size: int = 8) -> tuple[Call, bytes]:
        """A call, and the data it must bring back, which no other call has; it has `size` bytes."""
        self._count += 1
        data = ints(self._count, -self._count) + bytes(size - 8)
        ask = Ask((Input("INPUT0", "INT32", (1, size // 4), data),), model=model)
        if protocol == "http":
            connection = self._stack.enter_context(closing(connect(self._server.http_port)))
            return HttpCall(self._server, connection, ask), data
        return GrpcCall(self._stack.enter_context(channel(self._server.grpc_port)), ask), data


@pytest.fixture
def clients(server: ServerProcess) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(server, stack)


def waiting(server: ServerProcess, model: str = MODEL) -> float:
    return metric(server, "nv_inference_pending_request_count", model=model)


def memory_held(server: ServerProcess) -> float:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    return next(
        float(line.split()[1]) for line in page.splitlines() if line.startswith("modserve_request_memory_bytes ")
    )


def cancelled(server: ServerProcess) -> float:
    return metric(server, "nv_inference_request_failure", model=MODEL, reason="CANCELED")


def counts(server: ServerProcess) -> dict[str, int]:
    found = statistics(server, MODEL)
    full = [row["compute_infer"]["count"] for row in found["batch_stats"] if row["batch_size"] == FULL]
    return {
        "executions": found["execution_count"],
        "inferences": found["inference_count"],
        "success": found["inference_stats"]["success"]["count"],
        "fail": found["inference_stats"]["fail"]["count"],
        "full batches": sum(full),
    }


def growth(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_that_waits(server: ServerProcess, clients: Clients, protocol: str) -> None:
    before, gone = counts(server), cancelled(server)
    stays = [clients.send("http"), clients.send("grpc")]
    leaves, _ = clients.send(protocol)
    eventually(lambda: waiting(server) == 3)
    leaves.cancel()
    eventually(lambda: waiting(server) == 2)
    assert cancelled(server) == gone + 1
    # It no longer counts towards a full batch: two more are needed, not one.
    stays += [clients.send("grpc"), clients.send("http")]
    assert [call.result() for call, _ in stays] == [data for _, data in stays]
    assert growth(before, counts(server)) == {
        "executions": 1,
        "inferences": 4,
        "success": 4,
        "fail": 1,
        "full batches": 1,
    }


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_that_runs(server: ServerProcess, gate: Gate, clients: Clients, protocol: str) -> None:
    before, gone, begun = counts(server), cancelled(server), gate.begun
    gate.shut()
    stays = [clients.send("http"), clients.send("grpc")]
    leaves, _ = clients.send(protocol)
    eventually(lambda: waiting(server) == 3)
    stays.append(clients.send("grpc"))
    eventually(lambda: gate.begun == begun + 1)
    leaves.cancel()
    leaves.wait_until_noticed()
    gate.open()
    assert [call.result() for call, _ in stays] == [data for _, data in stays]
    assert growth(before, counts(server)) == {
        "executions": 1,
        "inferences": 3,
        "success": 3,
        "fail": 1,
        "full batches": 1,
    }
    assert cancelled(server) == gone + 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_place_in_a_full_queue(server: ServerProcess, narrow: Gate, clients: Clients, protocol: str) -> None:
    """One runs, one waits, and no other may: when the one that waits leaves, its place and its memory are free."""
    begun, held = narrow.begun, memory_held(server)
    narrow.shut()
    clients.at_end(narrow.open)
    runs, _ = clients.send("grpc", NARROW, WIDE)
    eventually(lambda: narrow.begun == begun + 1)
    leaves, _ = clients.send(protocol, NARROW, WIDE)
    eventually(lambda: waiting(server, NARROW) == 1)
    assert memory_held(server) >= held + 2 * WIDE
    with pytest.raises((AssertionError, grpc.RpcError), match="Exceeds maximum queue size"):
        clients.send("grpc", NARROW)[0].result()
    leaves.cancel()
    eventually(lambda: waiting(server, NARROW) == 0)
    eventually(lambda: memory_held(server) < held + 2 * WIDE)
    follows, data = clients.send(protocol, NARROW)
    eventually(lambda: waiting(server, NARROW) == 1)
    narrow.open()
    assert follows.result() == data
    runs.result()
    eventually(lambda: memory_held(server) == held)


def test_all_that_wait(server: ServerProcess, clients: Clients) -> None:
    before, gone = counts(server), cancelled(server)
    calls = [clients.send(protocol)[0] for protocol in ("http", "grpc", "http")]
    eventually(lambda: waiting(server) == 3)
    for call in calls:
        call.cancel()
    eventually(lambda: waiting(server) == 0)
    assert cancelled(server) == gone + 3
    assert growth(before, counts(server)) == {
        "executions": 0,
        "inferences": 0,
        "success": 0,
        "fail": 3,
        "full batches": 0,
    }


def test_requests_pipelined_behind_the_one_that_waits(server: ServerProcess, clients: Clients) -> None:
    """A closed connection takes with it what was sent on it and not begun: it is never run."""
    before = counts(server)
    with closing(connect(server.http_port)) as connection:
        body, headers = binary_request(Ask((Input("INPUT0", "INT32", (1, 2), ints(0, 0)),), model=MODEL))
        head = f"POST {infer_path(MODEL)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.connect()
        connection.sock.sendall((head.encode() + b"\r\n" + body) * 3)
        eventually(lambda: waiting(server) == 1)
    eventually(lambda: waiting(server) == 0)
    assert growth(before, counts(server)) == {
        "executions": 0,
        "inferences": 0,
        "success": 0,
        "fail": 1,
        "full batches": 0,
    }

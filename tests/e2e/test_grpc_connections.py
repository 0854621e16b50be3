"""Health watched over gRPC, deadlines, and what the options of connections do."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from open_server import OpenServer
from repositories import HELD, Gate, write_held, write_identity
from server_here import serving_here
from server_process import Server, ServerProcess, eventually, started
from tritonclient.grpc import service_pb2, service_pb2_grpc
from wire import (
    HOST,
    SECONDS,
    UNLIMITED,
    Ask,
    Input,
    channel,
    message,
    metric,
    raw_outputs,
    stub,
    text,
)

STATUSES = {b"\x08\1": "SERVING", b"\x08\2": "NOT_SERVING", b"\x08\3": "SERVICE_UNKNOWN"}
LIVE = service_pb2.ServerLiveRequest()


def ask(model: str, width: int = 4) -> Ask:
    return Ask((Input("INPUT0", "INT32", (1, width), bytes(4 * width)),), model=model)


class Watching:
    """What a client that watches is told, as it comes."""

    def __init__(self, opened: grpc.Channel, service: str) -> None:
        self.call: Any = opened.unary_stream("/grpc.health.v1.Health/Watch", None, None)(text(1, service), timeout=60)

    def next(self) -> str:
        return STATUSES[next(self.call)]

    def rest(self) -> list[str]:
        return [STATUSES[each] for each in self.call]


def test_health_is_watched_until_the_server_stops(tmp_path: Path) -> None:
    gate = write_held(tmp_path, "late", loads=False)
    with started(tmp_path, environment=HELD) as server, channel(server.grpc_port) as opened:
        late, whole, unknown = (Watching(opened, name) for name in ("late", "", "nosuch"))
        gone = Watching(opened, "late")
        assert whole.next() == "NOT_SERVING"
        assert unknown.next() == "SERVICE_UNKNOWN"
        gate.let_load()
        while (status := late.next()) != "SERVING":
            assert status in ("SERVICE_UNKNOWN", "NOT_SERVING")
        assert whole.next() == "SERVING"
        gone.next()
        gone.call.cancel()
        server.signal(signal.SIGTERM)
        assert late.rest() == ["NOT_SERVING"]
        assert whole.rest() == ["NOT_SERVING"]
        assert unknown.rest() == []
        assert late.call.code() is grpc.StatusCode.OK
        server.wait(0)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connections")


@pytest.fixture(scope="module")
def busy(repository: Path) -> Gate:
    """Of the model of that name."""
    return write_held(repository, "busy")


@pytest.fixture(scope="module")
def plain(repository: Path, busy: Gate, open_server: OpenServer) -> Iterator[ServerProcess]:
    write_identity(repository, "quick")
    with open_server.host(repository) as running:
        yield running


def test_a_deadline_that_passes_in_the_queue(plain: ServerProcess, busy: Gate) -> None:
    def failed() -> float:
        """The client's cancellation and the server's own deadline arrive in either order: one of them counts."""
        reasons = ("REJECTED", "CANCELED")
        return sum(metric(plain, "nv_inference_request_failure", model="busy", reason=reason) for reason in reasons)

    late = 0

    def passes() -> float:
        """Once more, if the deadline of the one before has passed on the client's side, before the server had it."""
        nonlocal late
        late += 1
        with pytest.raises(grpc.RpcError) as raised:
            stub(opened).ModelInfer(message(ask("busy")), timeout=0.3)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return failed()

    with channel(plain.grpc_port) as opened:
        before = [stub(opened).ModelInfer.future(message(ask("busy")), timeout=60) for _ in range(2)]
        eventually(lambda: busy.begun == 1)
        eventually(lambda: metric(plain, "nv_inference_pending_request_count", model="busy") == 1)
        eventually(passes)
        eventually(lambda: metric(plain, "nv_inference_pending_request_count", model="busy") == 1)
        busy.open()
        for call in before:
            call.result()
    assert 1 <= failed() <= late
    assert metric(plain, "nv_inference_exec_count", model="busy") == 2


class Meter:
    """Passes connections on, and counts what comes back: there is a second one when the first is too old."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self.bytes = 0
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # it is over
                return
            thread = threading.Thread(target=self._connect, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._target)) as server:
            up = threading.Thread(target=self._pass, args=(client, server, False), daemon=True)
            up.start()
            self._pass(server, client, True)
            up.join()

    def _pass(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.bytes += len(data) if count else 0
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # which ends the waiting for another connection
        self._accepting.join(SECONDS)
        self._listening.close()
        for thread in self._threads:
            thread.join(SECONDS)


@contextmanager
def metered(server: Server, *options: tuple[str, int]) -> Iterator[tuple[Any, Meter]]:
    meter = Meter(server.grpc_port)
    opened = grpc.insecure_channel(f"{HOST}:{meter.port}", [*UNLIMITED, *options])
    with closing(meter), opened:
        yield stub(opened), meter


WIDTH = 1 << 17


def answer_size(server: Server, *options: tuple[str, int]) -> int:
    """The bytes of a large answer on the wire."""
    with metered(server, *options) as (calls, meter):
        answer = calls.ModelInfer(message(ask("quick", WIDTH)), timeout=SECONDS)
        assert raw_outputs(answer) == {"OUTPUT0": bytes(4 * WIDTH)}
        return meter.bytes


def test_answers_are_not_compressed_unless_asked(plain: ServerProcess) -> None:
    assert answer_size(plain) > 4 * WIDTH


def test_answers_are_compressed_and_connections_age(tmp_path: Path) -> None:
    write_identity(tmp_path, "quick")
    options = ["--grpc-infer-response-compression-level=high", "--grpc-max-connection-age=700"]
    with serving_here(tmp_path, options=[*options, "--grpc-max-connection-age-grace=5000"]) as server:
        assert answer_size(server) < WIDTH
        # A client that takes none gets none.
        assert answer_size(server, ("grpc.compression_enabled_algorithms_bitset", 1)) > 4 * WIDTH

        asyncio.run(outlive_a_connection(server.grpc_port))


async def outlive_a_connection(port: int) -> None:
    """It ends by itself, if it has not yet, and the client makes another."""
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as opened:
        calls: Any = service_pb2_grpc.GRPCInferenceServiceStub(opened)
        assert (await calls.ServerLive(LIVE, timeout=SECONDS)).live
        await asyncio.wait_for(opened.wait_for_state_change(grpc.ChannelConnectivity.READY), SECONDS)
        assert (await calls.ServerLive(LIVE, timeout=SECONDS)).live

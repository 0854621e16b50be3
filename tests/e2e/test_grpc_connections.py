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
from grpc_health.v1 import health_pb2, health_pb2_grpc
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, eventually, serving, started
from tritonclient.grpc import service_pb2, service_pb2_grpc
from wire import HOST, SECONDS, UNLIMITED, Ask, Input, channel, grpc_infer, http, message, metric, raw_outputs, stub

Status = health_pb2.HealthCheckResponse
LIVE = service_pb2.ServerLiveRequest()


def ask(model: str, width: int = 4) -> Ask:
    return Ask((Input("INPUT0", "INT32", (1, width), bytes(4 * width)),), model=model)


class Watching:
    """What a client that watches is told, as it comes."""

    def __init__(self, opened: grpc.Channel, service: str) -> None:
        request = health_pb2.HealthCheckRequest(service=service)
        self.call: Any = health_pb2_grpc.HealthStub(opened).Watch(request, timeout=60)

    def next(self) -> str:
        return str(Status.ServingStatus.Name(next(self.call).status))

    def rest(self) -> list[str]:
        return [str(Status.ServingStatus.Name(each.status)) for each in self.call]


def test_health_is_watched_until_the_server_stops(tmp_path: Path) -> None:
    write_identity(tmp_path, "late", parameters={"creation_delay_sec": 1})
    with started(tmp_path) as server, channel(server.grpc_port) as opened:
        late, whole, unknown = (Watching(opened, name) for name in ("late", "", "nosuch"))
        gone = Watching(opened, "late")
        assert whole.next() == "NOT_SERVING"
        assert unknown.next() == "SERVICE_UNKNOWN"
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
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("connections")
    write_identity(repository, "quick")
    write_identity(repository, "busy", parameters={"execute_delay_ms": 1000})
    with serving(repository) as running:
        yield running


def test_a_deadline_that_passes_in_the_queue(plain: ServerProcess) -> None:
    with channel(plain.grpc_port) as opened:
        before = [stub(opened).ModelInfer.future(message(ask("busy")), timeout=60) for _ in range(2)]
        eventually(lambda: metric(plain, "nv_inference_pending_request_count", model="busy") == 1)
        with pytest.raises(grpc.RpcError) as raised:
            stub(opened).ModelInfer(message(ask("busy")), timeout=0.3)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for call in before:
            call.result()
    # The client's clock says it first: its cancellation and the server's own deadline arrive in either order.
    reasons = [metric(plain, "nv_inference_request_failure", model="busy", reason=r) for r in ("REJECTED", "CANCELED")]
    assert sorted(reasons) == [0, 1]
    assert metric(plain, "nv_inference_exec_count", model="busy") == 2


class Meter:
    """Passes one connection on, and counts what comes back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self.bytes = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        server = socket.create_connection((HOST, self._target))
        up = threading.Thread(target=self._pass, args=(client, server, False), daemon=True)
        up.start()
        self._pass(server, client, True)
        up.join()
        client.close()
        server.close()

    def _pass(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.bytes += len(data) if count else 0
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._threads[0].join(SECONDS)
        self._listening.close()


@contextmanager
def metered(server: ServerProcess, *options: tuple[str, int]) -> Iterator[tuple[Any, Meter]]:
    meter = Meter(server.grpc_port)
    opened = grpc.insecure_channel(f"{HOST}:{meter.port}", [*UNLIMITED, *options])
    with closing(meter), opened:
        yield stub(opened), meter


WIDTH = 1 << 17


def answer_size(server: ServerProcess, *options: tuple[str, int]) -> int:
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
    with serving(tmp_path, options=[*options, "--grpc-max-connection-age-grace=5000"]) as server:
        assert answer_size(server) < WIDTH
        # A client that takes none gets none.
        assert answer_size(server, ("grpc.compression_enabled_algorithms_bitset", 1)) > 4 * WIDTH

        asyncio.run(outlive_a_connection(server.grpc_port))


async def outlive_a_connection(port: int) -> None:
    """It ends by itself, and the client makes another."""
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as opened:
        calls: Any = service_pb2_grpc.GRPCInferenceServiceStub(opened)
        assert (await calls.ServerLive(LIVE, timeout=SECONDS)).live
        ready = grpc.ChannelConnectivity.READY
        assert opened.get_state() is ready
        await asyncio.wait_for(opened.wait_for_state_change(ready), SECONDS)
        assert (await calls.ServerLive(LIVE, timeout=SECONDS)).live


def test_servers_that_share_their_ports() -> None:
    shared = ["--reuse-grpc-port=true", "--reuse-http-port=true"]
    with serving(EXAMPLES, options=shared) as first:
        ports = [f"--grpc-port={first.grpc_port}", f"--http-port={first.http_port}"]
        with serving(EXAMPLES, options=[*shared, *ports]) as second:
            assert (second.http_port, second.grpc_port) == (first.http_port, first.grpc_port)
        # One of them stops, and the other takes all.
        for _ in range(8):
            assert http(first.http_port, "GET", "/v2/health/ready").status == 200
            assert grpc_infer(first.grpc_port, Ask()).model_name == "simple"

"""From opening the ports to the exit code: what probes, clients and process supervisors see."""

import asyncio
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from repositories import EXAMPLES, HELD, Gate, write_held, write_identity
from server_here import serving_here, started_here
from server_process import LOADED, Server, ServerProcess, eventually, free_port, own_ports, refuses, serving, started
from tritonclient.grpc import service_pb2, service_pb2_grpc
from wire import (
    HOST,
    SECONDS,
    Ask,
    Input,
    assert_serving,
    binary_outputs,
    binary_request,
    channel,
    connect,
    grpc_infer,
    http,
    http_infer,
    infer_path,
    ints,
    metric,
    raw_outputs,
    send,
    stub,
)

STOPPING = (
    r"modserve\.server\.drain: stopping: no new requests; those in flight have {} s: 2 of model 'model'\. "
    r"A second SIGTERM or SIGINT \(Ctrl-C\) ends the server at once\.$"
)
DATA = ints(3, 4)
ASK = Ask((Input("INPUT0", "INT32", (1, 2), DATA),), model="model")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    found = tmp_path / "models"
    found.mkdir()
    return found


def by_http(server: Server) -> bytes:
    answer = http_infer(server.http_port, ASK)
    assert answer.status == 200, answer.body
    return binary_outputs(answer)["OUTPUT0"]


def by_grpc(server: Server) -> bytes:
    return raw_outputs(grpc_infer(server.grpc_port, ASK))["OUTPUT0"]


@contextmanager
def under_way(server: Server, gate: Gate) -> Iterator[list["Future[bytes]"]]:
    """A request over each protocol: one runs, until the gate opens, and the other waits for it."""
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(by_http, server), threads.submit(by_grpc, server)]
        try:
            one_runs_and_one_waits(server, gate)
            yield calls
        except BaseException:
            server.dispose()  # or the threads would wait for answers
            raise


def one_runs_and_one_waits(server: Server, gate: Gate) -> None:
    eventually(lambda: gate.begun == 1)
    eventually(lambda: metric(server, "nv_inference_pending_request_count", model="model") == 1)


def grpc_metadata(server: Server, model: str) -> service_pb2.ModelMetadataResponse:
    with channel(server.grpc_port) as opened:
        return stub(opened).ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=SECONDS)


# --- start ------------------------------------------------------------------------------------------------------------


def test_while_a_model_loads(repository: Path) -> None:
    write_identity(repository, "sluggish", parameters={"creation_delay_sec": 60})
    with started(EXAMPLES, repository) as server:
        assert http(server.http_port, "GET", "/v2/health/live").status == 200
        eventually(lambda: http(server.http_port, "GET", "/v2/models/simple/ready").status == 200)
        assert_serving(server)

        ready = http(server.http_port, "GET", "/v2/health/ready")
        assert ready.status == 400
        assert ready.json == {
            "ready": False,
            "phase": "starting",
            "reasons": [{"name": "sluggish", "version": "1", "state": "LOADING", "reason": ""}],
        }
        with channel(server.grpc_port) as opened:
            assert stub(opened).ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS).live
            assert not stub(opened).ServerReady(service_pb2.ServerReadyRequest(), timeout=SECONDS).ready
        assert http(server.http_port, "GET", "/v2/models/sluggish/ready").status == 400
        answer = http_infer(server.http_port, Ask(model="sluggish", version="1"))
        assert answer.status == 503
        assert answer.json == {"error": "model 'sluggish' version 1 is not at ready state: it is still loading"}
        loading = "model 'sluggish' has no available versions: it is still loading"
        for answer in (
            http_infer(server.http_port, Ask(model="sluggish")),
            http(server.http_port, "GET", "/v2/models/sluggish"),
        ):
            assert (answer.status, answer.json) == (503, {"error": loading})
        calls: list[Callable[[], object]] = [
            lambda: grpc_infer(server.grpc_port, Ask(model="sluggish")),
            lambda: grpc_metadata(server, "sluggish"),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as raised:
                call()
            assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNAVAILABLE, loading)
        # A server that is told to go does not wait for the model first.
        server.signal(signal.SIGTERM)
        server.wait(0)


def test_ready_as_soon_as_the_last_model_is(repository: Path) -> None:
    gate = write_held(repository, "sluggish", loads=False)
    with started_here(repository, environment=HELD) as server:
        assert http(server.http_port, "GET", "/v2/health/ready").status == 400
        gate.let_load()
        server.wait_for(LOADED)
        assert http(server.http_port, "GET", "/v2/health/ready").json == {"ready": True}
        server.stop()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "localhost"])
@pytest.mark.parametrize("name", ["HTTP", "gRPC", "metrics"])
def test_a_port_in_use(name: str, address: str) -> None:
    """One entry says which, and what to do; no library has anything to add."""
    with closing(socket.create_server(("0.0.0.0", 0))) as taken:
        port = taken.getsockname()[1]
        option = f"--{name.lower()}"
        with started_here(EXAMPLES, options=[f"{option}-port={port}", f"{option}-address={address}"]) as server:
            server.wait(
                1,
                errors=[
                    rf"cannot open the {name} port {address}:{port}: the port is in use by process {os.getpid()} "
                    rf"\(.*\); '{option}-port' chooses another one\\nthis starts on free ports:\\n"
                    rf".* -m modserve serve .* {option}-address={address} {option}-port=\d+$"
                ],
            )
            assert len(server.log.splitlines()) == 1, server.log


@pytest.mark.parametrize("name", ["HTTP", "gRPC", "metrics"])
def test_an_address_of_another_machine(name: str) -> None:
    option = f"--{name.lower()}"
    with started_here(EXAMPLES, options=[f"{option}-address=192.0.2.1", f"{option}-port={free_port()}"]) as server:
        server.wait(1, errors=[rf"cannot open the {name} port 192.0.2.1:\d+: this machine .*; '{option}-address' "])
        assert len(server.log.splitlines()) == 1, server.log


def test_two_servers_do_not_share_a_port() -> None:
    """gRPC would let them by default, and half of the requests to one would be answered by the other."""
    with serving_here(EXAMPLES) as first:
        with started_here(EXAMPLES, options=[f"--grpc-port={first.grpc_port}"]) as second:
            second.wait(1, errors=["cannot open the gRPC port"])
        assert_serving(first)


@pytest.mark.parametrize("form", [[], ["--supervise"], ["--workers=2"]], ids=["alone", "supervised", "workers"])
def test_a_second_server_says_how_it_can_start_beside_the_first(form: list[str]) -> None:
    """One error names all three ports, and the command line that it shows starts."""
    with serving_here(EXAMPLES) as first:
        ports = {"http": first.http_port, "grpc": first.grpc_port, "metrics": first.metrics_port}
        options = [*form, *(f"--{name}-port={port}" for name, port in ports.items())]
        with started(EXAMPLES, options=options) as second:
            place = r"0\.0\.0\.0:"
            second.wait(
                1,
                errors=[
                    rf"cannot open the ports {place}{ports['http']} \(HTTP\), {place}{ports['grpc']} \(gRPC\) and "
                    rf"{place}{ports['metrics']} \(metrics\): they are in use by process {os.getpid()} "
                ],
            )
            assert f"'modserve status --url http://127.0.0.1:{first.http_port}'" in second.log
            shown = second.log.rstrip().rpartition(r"\n")[2]
        *before, http_port, grpc_port, metrics_port = shlex.split(shown)
        beside = [http_port, grpc_port, metrics_port]
        assert [each.partition("-port=")[0] for each in beside] == ["--http", "--grpc", "--metrics"]
        with started(program=before, options=beside) as third:
            third.wait_for(LOADED)
            third.stop()


@pytest.mark.parametrize(
    ("options", "closed"),
    [(["--allow-http=false"], "HTTP"), (["--allow-grpc=false"], "gRPC"), (["--allow-metrics=false"], "metrics")],
)
def test_a_front_end_switched_off(options: list[str], closed: str) -> None:
    with serving_here(EXAMPLES, options=options) as server:
        assert f"{closed} listening" not in server.log
        assert server.log.count(" listening on ") == 2


# --- stop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_flight_is_finished(repository: Path, number: signal.Signals) -> None:
    gate = write_held(repository, "model")
    with (
        serving(repository, options=own_ports(), environment=HELD) as server,
        closing(connect(server.http_port)) as idle,
        under_way(server, gate) as calls,
    ):
        send(idle, "GET", "/v2/health/live")
        server.signal(number)
        server.wait_for(STOPPING.format(30))
        for port in (server.http_port, server.grpc_port):
            eventually(lambda port=port: refuses(port))  # type: ignore[misc]
        assert http(server.metrics_port, "GET", "/metrics").status == 200
        assert idle.sock.recv(1) == b""
        # All that was seen while the work still went on.
        assert not any(call.done() for call in calls)
        gate.open()
        assert [call.result() for call in calls] == [DATA, DATA]
        server.wait(0)


def test_an_open_channel_gets_no_new_calls(repository: Path) -> None:
    gate = write_held(repository, "model")

    async def told_to_go_away() -> None:
        async with grpc.aio.insecure_channel(f"{HOST}:{server.grpc_port}") as opened:
            ready: Any = service_pb2_grpc.GRPCInferenceServiceStub(opened).ServerReady
            assert (await ready(service_pb2.ServerReadyRequest(), timeout=SECONDS)).ready
            server.begin_stop()
            # The server says goodbye on every connection, and a new one is not to be had.
            await asyncio.wait_for(opened.wait_for_state_change(grpc.ChannelConnectivity.READY), SECONDS)
            with pytest.raises(grpc.RpcError) as raised:
                await ready(service_pb2.ServerReadyRequest(), timeout=SECONDS)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    with serving_here(repository, environment=HELD) as server, under_way(server, gate) as calls:
        asyncio.run(told_to_go_away())
        assert not any(call.done() for call in calls)
        gate.open()
        assert [call.result() for call in calls] == [DATA, DATA]
        server.wait(0)


def test_requests_pipelined_behind_the_one_in_flight_are_answered(repository: Path) -> None:
    """They have come before the stop; the last answer says that it is the last."""
    gate = write_held(repository, "model")
    body, headers = binary_request(ASK)
    lines = [f"POST {infer_path('model')} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    with serving_here(repository, options=own_ports(), environment=HELD) as server, ThreadPoolExecutor(1) as threads:
        with socket.create_connection((HOST, server.http_port), timeout=SECONDS) as connection:
            connection.sendall(request * 2)
            call = threads.submit(by_grpc, server)
            one_runs_and_one_waits(server, gate)
            server.begin_stop()
            eventually(lambda: refuses(server.http_port))
            gate.open()
            answer = b""
            while data := connection.recv(65536):
                answer += data
        _, first, last = answer.split(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" not in first
        assert b"\r\nConnection: close\r\n" in last
        assert call.result() == DATA
        server.wait(0)


def test_more_time_than_there_is(repository: Path) -> None:
    with serving_until_late(repository, "--exit-timeout-secs=1") as server:
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        server.wait_for(STOPPING.format(1))
        server.wait(1, errors=[r"Exit timeout expired\. Exiting immediately\."])
        assert time.monotonic() - begun >= 1


def test_no_time_at_all(repository: Path) -> None:
    with serving_until_late(repository, "--exit-timeout-secs=0") as server:
        server.signal(signal.SIGTERM)
        server.wait_for(STOPPING.format(0))
        server.wait(1, errors=[r"Exit timeout expired\. Exiting immediately\."])


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)],
)
def test_a_second_signal_ends_it_at_once(repository: Path, first: signal.Signals, second: signal.Signals) -> None:
    with serving_until_late(repository, "--exit-timeout-secs=600") as server:
        server.signal(first)
        server.wait_for(STOPPING.format(600))
        server.signal(second)
        server.wait(-second)


@contextmanager
def serving_until_late(repository: Path, *options: str) -> Iterator[ServerProcess]:
    """A server with requests that outlast every test; the answers are nobody's concern."""
    gate = write_held(repository, "model")
    with started(repository, options=options, environment=HELD) as server, ThreadPoolExecutor(2) as threads:
        server.wait_for(LOADED)
        calls = [threads.submit(by_http, server), threads.submit(by_grpc, server)]
        try:
            one_runs_and_one_waits(server, gate)
            yield server
        finally:
            server.dispose()
        for call in calls:
            assert call.exception(timeout=SECONDS) is not None, "answered, although it had no time to be"


def test_an_idle_server_ends_at_once_though_clients_are_connected() -> None:
    """Which have nothing in flight: it does not give them the time that it has for what is."""
    with (
        serving_here(EXAMPLES, options=["--exit-timeout-secs=600"]) as server,
        closing(connect(server.http_port)) as idle,
        channel(server.grpc_port) as opened,
    ):
        send(idle, "GET", "/v2/health/live")
        stub(opened).ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS)
        server.stop()


def test_an_engine_that_does_not_close(repository: Path) -> None:
    """It is waited for until the exit time-out, and not until it has closed."""
    gate = write_held(repository, "model")
    gate.stick()
    with started(repository, options=["--exit-timeout-secs=1"], environment=HELD) as server:
        server.wait_for(LOADED)
        server.signal(signal.SIGTERM)
        server.wait(1, errors=[r"Exit timeout expired\. Exiting immediately\."])

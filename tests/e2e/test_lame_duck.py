"""Out of service in order: unready first, then closed to new connections, then drained; by a signal or by a command."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http
from repositories import EXAMPLES, HELD, write_accumulator, write_held
from server_here import serving_here
from server_process import LOADED, ServerProcess, eventually, free_port, own_ports, refuses, started
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, Ask, Input, channel, connect, grpc_infer, http, http_infer, ints, message, send, stub

import shutdowns
from modserve.pb.health import HealthCheckResponse
from modserve.pb.orca import OrcaLoadReport

REPORTS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
HELD_ASK = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="held")


class Command:
    """One that runs."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "modserve", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it has printed."""
        text = self.process.communicate(timeout=SECONDS)[0]
        return self.process.returncode, text


@contextmanager
def modserve(*words: str) -> Iterator[Command]:
    command = Command(*words)
    with command.process:
        try:
            yield command
        finally:
            command.process.kill()


def url(server: ServerProcess) -> str:
    return f"http://{HOST}:{server.http_port}"


def phase_of(server: ServerProcess) -> float:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith("modserve_drain_phase "))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_notice_before_the_stop(workers: int) -> None:
    """Load balancers see it in whichever way they ask, and what they still send is served."""
    options = ["--shutdown-delay-secs=600", f"--workers={workers}"]
    with started(EXAMPLES, options=options) as server, channel(server.grpc_port) as opened:
        server.wait_for(LOADED)
        statuses: list[int] = []
        call = opened.unary_stream("/grpc.health.v1.Health/Watch", None, HealthCheckResponse.FromString)
        watch: Any = call(b"", timeout=SECONDS)
        statuses.append(next(watch).status)
        assert phase_of(server) == 0
        with closing(connect(server.http_port)) as kept:
            send(kept, "GET", "/v2")
            server.signal(signal.SIGTERM)
            statuses.append(next(watch).status)
            assert statuses == [HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING]
            eventually(lambda: phase_of(server) == 1)
            assert not stub(opened).ServerReady(service_pb2.ServerReadyRequest(), timeout=SECONDS).ready
            for _ in range(4):  # over new connections: to whichever worker
                ready = http(server.http_port, "GET", "/v2/health/ready")
                assert (ready.status, ready.json) == (503, {"error": "Server exiting", "phase": "draining"})
                assert http(server.http_port, "GET", "/v2/health/live").status == 200
            assert http_infer(server.http_port, Ask()).status == 200
            grpc_infer(server.grpc_port, Ask())
            answer = send(kept, "GET", "/v2")
            assert answer.status == 200
            assert "Connection" not in answer.headers
            with modserve("status", "--url", url(server)) as status:
                code, text = status.end()
            assert code == 1
            assert "not ready (draining)" in text
            watch.cancel()
        server.wait_for("draining: not ready any more, and all requests are served for 600 s; connections: ")
        server.signal(signal.SIGTERM)
        server.wait(-signal.SIGTERM if workers == 1 else 128 + signal.SIGTERM)


class Sequence:
    """One sequence over HTTP, on a new connection for each request."""

    def __init__(self, server: ServerProcess, id: int) -> None:
        self._server = server
        self._id = id

    def __call__(self, value: int, **how: Any) -> int:
        with tritonclient.http.InferenceServerClient(f"{HOST}:{self._server.http_port}") as client:
            tensor = tritonclient.http.InferInput("INPUT", (1, 1), "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            result = client.infer("sum", [tensor], sequence_id=self._id, **how)
            return int(result.as_numpy("OUTPUT").item())


def test_a_drain_by_command_finishes_what_has_begun(tmp_path: Path) -> None:
    gate = write_held(tmp_path, "held")
    write_accumulator(tmp_path, "sum", "direct { }", "max_sequence_idle_microseconds: 600000000")
    with (
        started(tmp_path, options=["--orca=text", *own_ports()], environment=HELD) as server,
        ThreadPoolExecutor(2) as threads,
        ExitStack() as commands,
        channel(server.grpc_port) as opened,
    ):
        commands.callback(gate.open)
        server.wait_for(LOADED)
        reports: Any = opened.unary_stream(REPORTS, None, OrcaLoadReport.FromString)(b"", timeout=SECONDS)
        assert next(reports).mem_utilization > 0
        load = http(server.http_port, "GET", "/v2").headers["endpoint-load-metrics"]
        assert load.startswith("TEXT cpu_utilization=")
        calls = [threads.submit(http_infer, server.http_port, HELD_ASK)]
        calls.append(threads.submit(grpc_infer, server.grpc_port, HELD_ASK))
        eventually(lambda: gate.begun == 1)
        sequence = Sequence(server, 5)
        assert sequence(1, sequence_start=True) == 1
        drain = commands.enter_context(modserve("drain", "--url", url(server)))
        eventually(lambda: phase_of(server) == 3)
        # What is new may try elsewhere, and knows it.
        assert http_infer(server.http_port, HELD_ASK).status == 503
        with pytest.raises(grpc.RpcError) as raised:
            grpc_infer(server.grpc_port, HELD_ASK)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(InferenceServerException, match="stop"):
            Sequence(server, 6)(1, sequence_start=True)
        # The sequence began here, and goes on here.
        assert [sequence(2), sequence(3, sequence_end=True)] == [3, 6]
        for _ in reports:  # one now and then, and then no more: its server is about to end
            pass
        for port in (server.http_port, server.grpc_port):
            eventually(lambda port=port: refuses(port))  # type: ignore[misc]
        assert drain.process.poll() is None
        gate.open()
        assert calls[0].result().status == 200
        calls[1].result()
        code, text = drain.end()
        assert (code, text[:15]) == (0, "drained, after ")
        assert phase_of(server) == 4
        assert server.running
        server.wait_for(r"drained: all accepted requests are finished, after [\d.]+ s$")
        address = url(server)
        server.stop()
        code, text = commands.enter_context(modserve("drain", "--url", address)).end()
        assert code == 1
        assert "cannot reach" in text


def test_a_drain_that_takes_too_long(tmp_path: Path) -> None:
    """Of two servers, of which nobody answers for the other."""
    gate = write_held(tmp_path, "held")
    with (
        started(tmp_path, options=["--exit-timeout-secs=1"], environment=HELD) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        server.wait_for(LOADED)
        call = threads.submit(http_infer, server.http_port, HELD_ASK)
        eventually(lambda: gate.begun == 1)
        try:
            absent = f"http://{HOST}:{free_port()}"
            with modserve("drain", "--url", f"{url(server)},{absent}") as drain:
                code, text = drain.end()
        finally:
            gate.open()  # it is not given up before the process ends
        left = "not drained: --exit-timeout-secs is over, and in flight are 1 of model 'held'"
        rows = [tuple(line.split(maxsplit=1)) for line in text.splitlines()[2:]]
        assert rows == [(url(server), left), (absent, "not drained: it does not respond"), ("Connection", "refused")]
        assert code == 1
        assert call.result().status == 200
        server.stop()


class Callers:
    """Each calls over a channel of its own, until nobody listens any more."""

    def __init__(self, port: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._port = port
        self._lock = threading.Lock()
        self._request = message(Ask())

    def run(self) -> None:
        # With retries off, the library gives up calls that it has not sent yet when the GOAWAY comes. By itself, it
        # repeats nothing that a server may have seen.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{HOST}:{self._port}", options=options) as opened:
            while True:
                try:
                    stub(opened).ModelInfer(self._request, timeout=SECONDS)
                    self._count("ok")
                except grpc.RpcError as error:
                    gone = error.code() is grpc.StatusCode.UNAVAILABLE and "onnect" in (error.details() or "")
                    self._count("nobody listens" if gone else f"lost: {error.details()}")
                    return

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


def test_no_call_of_a_grpc_client_is_refused_before_it_knows() -> None:
    """It gets a GOAWAY first. What it had sent by then is served."""
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        callers = Callers(stack.enter_context(serving_here(EXAMPLES)).grpc_port)
        running = [threads.submit(callers.run) for _ in range(8)]
        eventually(lambda: callers.outcomes["ok"] > 80)
        stack.close()
        for each in running:
            each.result(SECONDS)
    assert callers.outcomes["nobody listens"] == 8, callers.outcomes
    assert set(callers.outcomes) == {"ok", "nobody listens"}, callers.outcomes


@pytest.mark.parametrize("kind", shutdowns.KINDS)
def test_no_request_is_lost_at_the_stop(kind: str) -> None:
    """The benchmark's clients, for less long; whoever comes while the port closes is served, or refused before."""
    tally = asyncio.run(shutdowns.shut_down(kind, 300, 1))
    assert tally.outcomes["answered"] >= 300, tally.outcomes
    assert not tally.lost, tally.outcomes

"""Several workers behind the same ports look like one server."""

import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import EXAMPLES, HELD, write_accumulator, write_held, write_identity
from server_process import ServerProcess, eventually, own_ports, started
from tritonclient.utils import InferenceServerException
from wire import (
    HOST,
    SECONDS,
    Answer,
    Ask,
    Input,
    assert_serving,
    binary_outputs,
    binary_request,
    connect,
    http,
    http_infer,
    infer_path,
    ints,
    message,
    metric,
    raw_outputs,
    send,
    stub,
)

WORKERS = 2
OPTIONS = ["--workers", str(WORKERS), "--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"]
STARTED = r"^\S+ INFO    modserve\.supervisor: supervising worker (\d), process (\d+)$"
PATIENT = "max_sequence_idle_microseconds: 600000000"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(EXAMPLES / "simple", folder / "simple")
    write_identity(folder, "other")
    write_accumulator(folder, "sum", "direct { }", PATIENT)
    return folder


@pytest.fixture(scope="module")
def errors() -> list[str]:
    """What is in the log of `server` in the end, as for `ServerProcess.wait`: tests that cause it add it."""
    return []


@pytest.fixture(scope="module")
def server(repository: Path, errors: list[str]) -> Iterator[ServerProcess]:
    """All tests that name it have the same one."""
    with started(repository, options=OPTIONS) as running:
        eventually(lambda: is_ready(running), 60)
        yield running
        running.stop(errors=errors)


def is_ready(server: ServerProcess) -> bool:
    return http(server.http_port, "GET", "/v2/health/ready").status == 200


def pids(server: ServerProcess) -> dict[int, int]:
    """The process of each worker, the latest one."""
    return {int(index): int(pid) for index, pid in re.findall(STARTED, server.log, re.MULTILINE)}


def asked(server: ServerProcess, path: str, times: int = 24, method: str = "GET") -> list[Answer]:
    """The answers to the same request over many connections, which both workers get some of."""
    return [http(server.http_port, method, path) for _ in range(times)]


def post(server: ServerProcess, path: str, document: object = None) -> Answer:
    body = b"" if document is None else json.dumps(document).encode()
    return http(server.http_port, "POST", path, body)


def test_both_workers_serve_and_count_as_one(server: ServerProcess) -> None:
    """Comes first: nobody else has called this model."""
    for _ in range(20):
        assert_serving(server)
    (statistics,) = http(server.http_port, "GET", "/v2/models/simple/stats").json["model_stats"]
    assert statistics["inference_stats"]["success"]["count"] == 40
    assert statistics["inference_count"] == 40
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}")
    with closing(client):
        (over_grpc,) = client.get_inference_statistics("simple").model_stats
        assert over_grpc.inference_stats.success.count == 40
    for port in (server.metrics_port, server.http_port):
        page = http(port, "GET", "/metrics").body.decode()
        assert "\nmodserve_workers 2.0\n" in page
        assert "\nmodserve_worker_restarts_total 0.0\n" in page
        assert len(re.findall(r"^# TYPE nv_inference_count ", page, re.MULTILINE)) == 1
    assert metric(server, "nv_inference_request_success", model="simple") == 40
    assert metric(server, "modserve_request_duration_seconds_count", model="simple") == 40
    assert metric(server, "modserve_model_state", model="simple") == 1
    single = [count_alone(server, pid) for pid in pids(server).values()]
    assert min(single) > 0, "one worker got all of 40 connections"


def count_alone(server: ServerProcess, pid: int) -> float:
    """Requests that a single worker has served: at its own socket."""
    (path,) = [path for path in sockets(pid) if path.endswith(".control")]
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(path)
        connection.sendall(b"GET /v2/models/simple/stats HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as response:
            body = response.read().partition(b"\r\n\r\n")[2]
    (statistics,) = json.loads(body)["model_stats"]
    return float(statistics["inference_stats"]["success"]["count"])


def sockets(pid: int) -> list[str]:
    """The Unix-domain sockets on which a process listens."""
    own = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [line[7] for line in lines if len(line) > 7 and f"socket:[{line[6]}]" in own and line[3] == "00010000"]


def test_what_is_changed_is_changed_in_both(server: ServerProcess) -> None:
    assert post(server, "/v2/repository/models/other/unload").status == 200
    assert {answer.status for answer in asked(server, "/v2/models/other/ready")} == {400}
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}")
    with closing(client):
        client.load_model("other")
        client.update_log_settings({"log_verbose_level": 3})
    assert {answer.status for answer in asked(server, "/v2/models/other")} == {200}
    assert {answer.json["log_verbose_level"] for answer in asked(server, "/v2/logging")} == {3}
    assert post(server, "/v2/trace/setting", {"trace_rate": "7"}).status == 200
    assert {answer.json["trace_rate"] for answer in asked(server, "/v2/trace/setting")} == {"7"}
    index = {entry["name"]: entry["state"] for entry in post(server, "/v2/repository/index").json}
    assert [index[name] for name in ("other", "simple", "sum")] == ["READY"] * 3
    refused = post(server, "/v2/repository/models/nosuch/load")
    assert refused.status == 404
    assert "failed to load 'nosuch'" in refused.json["error"]
    assert "worker" not in refused.json["error"]


def test_a_region_is_known_to_both(server: ServerProcess, errors: list[str]) -> None:
    key = Path(f"/dev/shm/modserve_workers_{os.getpid()}")
    key.write_bytes(ints(*range(4)))
    try:
        path = "/v2/systemsharedmemory/region/part/"
        assert post(server, f"{path}register", {"key": f"/{key.name}", "offset": 0, "byte_size": 16}).status == 200
        assert {len(answer.json) for answer in asked(server, "/v2/systemsharedmemory/status")} == {1}
        first = pids(server)[0]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: pids(server)[0] != first)  # until then a connection may be one to the dead
        eventually(lambda: "modserve_workers 2.0" in page(server))
        assert {len(answer.json) for answer in asked(server, "/v2/systemsharedmemory/status")} == {1}
        assert post(server, f"{path}unregister").status == 200
        assert {len(answer.json) for answer in asked(server, "/v2/systemsharedmemory/status")} == {0}
    finally:
        key.unlink()
    errors.append("was killed by SIGKILL")


def page(server: ServerProcess) -> str:
    return http(server.metrics_port, "GET", "/metrics").body.decode()


def restarts(server: ServerProcess) -> float:
    (count,) = re.findall(r"^modserve_worker_restarts_total (\S+)$", page(server), re.MULTILINE)
    return float(count)


def test_a_worker_that_dies_comes_back_with_the_state_of_the_other(server: ServerProcess, errors: list[str]) -> None:
    assert post(server, "/v2/repository/models/simple/unload").status == 200
    config = json.dumps({"backend": "identity", "max_batch_size": 4, **TENSORS})
    assert post(server, "/v2/repository/models/other/load", {"parameters": {"config": config}}).status == 200
    assert post(server, "/v2/logging", {"log_verbose_level": 2}).status == 200
    before, restarted = pids(server), restarts(server)
    stop = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        clients = [threads.submit(calling, server, stop) for _ in range(4)]
        kill(before[1])
        gone = time.monotonic()
        eventually(lambda: pids(server)[1] != before[1])
        assert is_ready(server)
        eventually(lambda: "modserve_workers 2.0" in page(server))
        stop.set()
        failures = [failure for client in clients for failure in client.result()]
    assert not [why for began, why in failures if began > gone], "the dead one can fail only what reached it"
    assert restarts(server) == restarted + 1
    assert {answer.status for answer in asked(server, "/v2/models/simple/ready")} == {400}
    assert {answer.json["max_batch_size"] for answer in asked(server, "/v2/models/other/config")} == {4}
    assert {answer.json["log_verbose_level"] for answer in asked(server, "/v2/logging")} == {2}
    errors.append("was killed by SIGKILL")
    for model in ("simple", "other"):  # the others find the server as it was
        assert post(server, f"/v2/repository/models/{model}/load").status == 200
    assert post(server, "/v2/logging", {"log_verbose_level": 0}).status == 200


FAILS_ONCE = """
import os

class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.dirname(__file__)
        loads = len([name for name in os.listdir(folder) if name.startswith("load-")])
        open(os.path.join(folder, f"load-{loads}"), "w").close()
        if loads == 1:
            raise ValueError("not the second time")

    def execute(self, requests):
        return []
"""


MOODY_TENSORS = """
input { name: "INPUT" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ -1 ] }
"""


def test_a_load_that_fails_in_one_worker_is_undone_in_the_other(
    server: ServerProcess, repository: Path, errors: list[str]
) -> None:
    folder = repository / "moody"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(FAILS_ONCE)
    (folder / "config.pbtxt").write_text('backend: "python" ' + MOODY_TENSORS)
    refused = post(server, "/v2/repository/models/moody/load")
    assert refused.status == 400, refused.body
    assert "not the second time" in refused.json["error"]
    assert "(refused by worker 1, done before by 1 of 2 workers, and undone)" in refused.json["error"]
    assert {answer.status for answer in asked(server, "/v2/models/moody")} == {404}
    assert post(server, "/v2/repository/models/moody/load").status == 200
    assert {answer.status for answer in asked(server, "/v2/models/moody")} == {200}
    assert post(server, "/v2/repository/models/moody/unload").status == 200
    errors.extend(["Traceback", "not the second time"])


def test_a_worker_that_dies_in_the_middle_of_a_load(server: ServerProcess, repository: Path, errors: list[str]) -> None:
    """Whether the call came in at this worker or at the other one: both have the model afterwards, or none."""
    write_identity(repository, "sluggish", parameters={"creation_delay_sec": 1})
    ready = "worker 0.repository.manager: model 'sluggish', version 1: ready"
    with ThreadPoolExecutor(1) as thread:
        for loads in (1, 2):
            before = pids(server)[1]
            call = thread.submit(post, server, "/v2/repository/models/sluggish/load")
            eventually(lambda count=loads: server.log.count(ready) == count)  # type: ignore[misc]
            os.kill(before, signal.SIGKILL)
            try:
                status = call.result().status
            except (OSError, HTTPException):
                status = 0  # the one that has died was to respond
            eventually(lambda dead=before: pids(server)[1] != dead)  # type: ignore[misc]
            eventually(lambda: "modserve_workers 2.0" in page(server))
            models = {answer.status for answer in asked(server, "/v2/models/sluggish")}
            assert models == {200: {200}, 503: {404}, 0: {404}}[status]
            assert post(server, "/v2/repository/models/sluggish/unload").status == 200
    errors.append("was killed by SIGKILL")


TENSORS = {
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
}


def kill(pid: int) -> None:
    """Returns when the process is gone: until then, the system gives new connections to it, too."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        assert select.select([process], [], [], 30)[0], f"{pid} is still there"
    finally:
        os.close(process)


def calling(server: ServerProcess, stop: threading.Event) -> list[tuple[float, str]]:
    """Calls `other` until `stop`; when calls began that failed, and why."""
    failures = []
    ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="other")
    while not stop.is_set():
        began = time.monotonic()
        try:
            assert binary_outputs(http_infer(server.http_port, ask)) == {"OUTPUT0": ints(3, 4)}
        except Exception as exception:
            failures.append((began, repr(exception)))
    return failures


def test_sequences_from_many_connections(server: ServerProcess) -> None:
    """Every request on a connection of its own, so that most of them come in at the wrong worker."""

    def sequence(id: int | str) -> list[int]:
        sums = []
        for step, how in ((1, {"sequence_start": True}), (2, {}), (30, {"sequence_end": True})):
            with closing(tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}")) as client:
                result = client.infer("sum", number(tritonclient.http, step), sequence_id=id, **how)
                sums.append(int(result.as_numpy("OUTPUT").item()))
        return sums

    before = succeeded(server, "sum")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(sequence, range(1, 21))) == [[1, 3, 33]] * 20
    assert succeeded(server, "sum") - before == 60
    with closing(tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}")) as client:
        for id in range(100, 110):
            with pytest.raises(InferenceServerException, match="must specify the START flag"):
                client.infer("sum", number(tritonclient.http, 1), sequence_id=id)


def succeeded(server: ServerProcess, model: str) -> int:
    (statistics,) = http(server.http_port, "GET", f"/v2/models/{model}/stats").json["model_stats"]
    count: int = statistics["inference_stats"]["success"]["count"]
    return count


def number(client: Any, value: int) -> list[Any]:
    tensor = client.InferInput("INPUT", (1, 1), "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


def test_sequences_on_a_stream_stay_in_order(server: ServerProcess) -> None:
    results: list[tuple[Any, Any]] = []
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}")
    with closing(client):
        client.start_stream(lambda result, error: results.append((result, error)))
        for step, id in itertools.product(range(10), range(1, 9)):
            how = {"sequence_start": step == 0, "sequence_end": step == 9}
            client.async_stream_infer("sum", number(tritonclient.grpc, 1), request_id=str(id), sequence_id=id, **how)
        eventually(lambda: len(results) == 80)
        client.stop_stream()
    sums: dict[str, list[int]] = {}
    for result, error in results:
        assert error is None
        sums.setdefault(result.get_response().id, []).append(int(result.as_numpy("OUTPUT").item()))
    assert sums == {str(id): list(range(1, 11)) for id in range(1, 9)}


def test_a_stop_drains_one_after_the_other_and_loses_nothing(tmp_path: Path) -> None:
    gate = write_held(tmp_path, "held")
    write_identity(tmp_path, "other")
    ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="held")
    options = ["--workers=2", *own_ports()]
    with started(tmp_path, options=options, environment=HELD) as server, ThreadPoolExecutor(16) as threads:
        eventually(lambda: is_ready(server), 60)
        calls = [threads.submit(http_infer, server.http_port, ask) for _ in range(8)]
        over_grpc = [threads.submit(once_over_grpc, server, ask) for _ in range(4)]
        eventually(lambda: gate.begun >= 2)
        outcomes: Counter[str] = Counter()
        stop = threading.Event()
        clients = [threads.submit(keep_calling, server, outcomes, stop) for _ in range(2)]
        clients += [threads.submit(keep_calling_over_grpc, server, outcomes, stop) for _ in range(2)]
        eventually(lambda: outcomes["ok"] > 20 and outcomes["ok over gRPC"] > 20)
        server.signal(signal.SIGTERM)
        server.wait_for("stopping: ")
        begun = outcomes.copy()
        eventually(lambda: all(outcomes[kind] > begun[kind] + 20 for kind in ("ok", "ok over gRPC")))
        gate.open()
        server.wait(0)
        stop.set()
        for client in clients:
            client.result()
        assert {call.result().status for call in calls} == {200}
        assert [call.result() for call in over_grpc] == [{"OUTPUT0": ints(3, 4)}] * 4
        assert outcomes["lost"] == outcomes["refused"] == 0, outcomes


def own_channel(server: ServerProcess) -> grpc.Channel:
    """One with a connection of its own."""
    return grpc.insecure_channel(f"{HOST}:{server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)])


def once_over_grpc(server: ServerProcess, ask: Ask) -> dict[str, bytes]:
    with own_channel(server) as opened:
        return raw_outputs(stub(opened).ModelInfer(message(ask), timeout=SECONDS))


def keep_calling_over_grpc(server: ServerProcess, outcomes: Counter[str], stop: threading.Event) -> None:
    """Over one channel, which goes to another worker when its own says goodbye, until nobody listens any more."""
    asked = message(Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="other"))
    with own_channel(server) as opened:
        while not stop.is_set():
            try:
                stub(opened).ModelInfer(asked, timeout=SECONDS)
                outcomes["ok over gRPC"] += 1
            except grpc.RpcError as error:
                try:
                    with closing(connect(server.grpc_port)) as attempt:
                        attempt.connect()
                except ConnectionRefusedError:
                    return
                outcomes[f"lost over gRPC: {error}"] += 1
                outcomes["lost"] += 1


def keep_calling(server: ServerProcess, outcomes: Counter[str], stop: threading.Event) -> None:
    """Calls over connections that are kept as long as the server keeps them, until nobody listens any more."""
    ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="other")
    body, headers = binary_request(ask)
    while not stop.is_set():
        try:
            connection = connect(server.http_port)
            connection.connect()
        except ConnectionRefusedError:
            return
        with closing(connection):
            while not stop.is_set():
                try:
                    answer = send(connection, "POST", infer_path("other"), body, headers)
                except OSError:
                    outcomes["lost"] += 1
                    break
                outcomes["ok" if answer.status == 200 else "refused"] += 1
                if answer.headers.get("Connection") == "close":
                    break


def test_a_failed_start_ends_the_server() -> None:
    with started(EXAMPLES / "nosuch", options=["--workers=2"]) as server:
        server.wait(1, errors=["during startup: the server stops", "nosuch"])

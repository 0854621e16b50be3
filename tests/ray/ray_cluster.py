"""A cluster of Ray on this machine, models for it, and clients that keep account of what becomes of their requests."""

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any

import httpx

os.environ.update(
    RAY_memory_monitor_refresh_ms="0",  # or it ends processes of a machine that others use as well
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DEDUP_LOGS="0",
    RAY_gcs_server_request_timeout_seconds="120",
    RAY_raylet_start_wait_time_s="120",
    RAY_health_check_period_ms="1000",  # a killed raylet is noticed after ten of these,
    RAY_health_check_failure_threshold="10",
    RAY_health_check_timeout_ms="30000",  # and a slow one is none
)

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions, gRPCOptions

import modserve.ray
from modserve.ray.application import SERVICERS

APP = "modserve"
PATIENCE = 180.0
"""Seconds for what takes one or two on a machine with nothing else to do."""

_MODELS = Path(__file__).parents[2] / "model_repository"
_ACCUMULATE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            value, start, id = (pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]
                                for name in ("VALUE", "START", "ID"))
            self.sums[id] = int(value) + (0 if start else self.sums[id])
            outputs = [pb_utils.Tensor("SUM", np.array([[self.sums[id]]], np.int32)),
                       pb_utils.Tensor("PROCESS", np.array([[os.getppid()]], np.int32))]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
_WHERE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        output = pb_utils.Tensor("PROCESS", np.array([[os.getppid()]], np.int32))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""
_WHERE_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "VALUE" data_type: TYPE_INT32 dims: 1 }
output { name: "PROCESS" data_type: TYPE_INT32 dims: 1 }
parameters { key: "residency.load" value { string_value: "lazy" } }
"""
_ACCUMULATE_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "VALUE" data_type: TYPE_INT32 dims: 1 }
output { name: "SUM" data_type: TYPE_INT32 dims: 1 }
output { name: "PROCESS" data_type: TYPE_INT32 dims: 1 }
sequence_batching {
  oldest { max_candidate_sequences: 64 }
  max_sequence_idle_microseconds: 600000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
instance_group { kind: KIND_CPU count: 2 }
"""


def repository(place: Path) -> Path:
    """The example models; `accumulate` adds up the values of each sequence; `where` loads late and says where it is."""
    for name in ("simple", "repeat", "digits"):
        shutil.copytree(_MODELS / name, place / name)
    for name, model, config in (("accumulate", _ACCUMULATE, _ACCUMULATE_CONFIG), ("where", _WHERE, _WHERE_CONFIG)):
        (place / name / "1").mkdir(parents=True)
        (place / name / "1" / "model.py").write_text(model)
        (place / name / "config.pbtxt").write_text(config)
    return place


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def wait(condition: Callable[[], Any], what: str) -> Any:
    """What the condition returns once that is true. Raises AssertionError if it takes too long."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s"
        time.sleep(0.2)
    return value


class RayCluster:
    """Three nodes with a CPU each, of which the first has the proxies."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.http, self.grpc = free_port(), free_port()
        self.url, self.grpc_url = f"http://127.0.0.1:{self.http}", f"grpc://127.0.0.1:{self.grpc}"
        node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=node)
        self.others = [self.add_node() for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="warning")
        serve.start(
            proxy_location="HeadOnly",
            http_options=HTTPOptions(host="127.0.0.1", port=self.http),
            grpc_options=gRPCOptions(port=self.grpc, grpc_servicer_functions=[SERVICERS]),
        )

    def add_node(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=80_000_000)

    def deploy(self, revision: str = "", deployment: dict[str, Any] | None = None, **options: Any) -> None:
        """Three replicas, one for each node."""
        options = {
            "model_control_mode": "explicit",
            "load_model": ["simple", "repeat", "accumulate", "where"],
            **options,
        }
        replicas = {"num_replicas": 3, "graceful_shutdown_timeout_s": 60, **(deployment or {})}
        app = modserve.ray.app(self.models, revision=revision, deployment=replicas, **options)
        serve.run(app, name=APP)

    def running(self) -> int:
        """How many replicas run, as Ray has it."""
        application = serve.status().applications.get(APP)
        if application is None:
            return 0
        return int(application.deployments["modserve"].replica_states.get("RUNNING", 0))

    def steady(self, count: int) -> None:
        """Wait until so many replicas run, none is on its way, and they respond."""
        wait(lambda: self.running() == count and self._health() == "RUNNING", f"{count} replicas")
        wait(lambda: len(self.processes()) == count, f"{count} processes")

    def _health(self) -> str:
        return str(serve.status().applications[APP].status.value)

    def processes(self, kind: str = "ServeReplica") -> list[int]:
        """Those of the replicas, or other actors: children of the raylets that this cluster has started."""
        nodes = [self.cluster.head_node, *self.others]
        raylets = {str(each.all_processes["raylet"][0].process.pid) for each in nodes if "raylet" in each.all_processes}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                title = (entry / "cmdline").read_bytes()
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if title.startswith(f"ray::{kind}".encode()) and parent in raylets:
                found.append(int(entry.name))
        return found

    def stop(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


class Load:
    """Clients that send requests to `simple`, each with other numbers, until they are stopped.

    `name` is what happens meanwhile, in the account that `benchmarks/ray_faults.py` reads.
    """

    def __init__(self, url: str, name: str, clients: int) -> None:
        self._name = name
        self.outcomes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._url = f"{url}/v2/models/simple/infer"
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def _run(self, number: int) -> None:
        with httpx.Client(timeout=120) as client:
            value = number * 1_000_000
            while not self._over.is_set():
                value += 1
                inputs = [
                    {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [first] * 16}
                    for name, first in (("INPUT0", value), ("INPUT1", number))
                ]
                with self._lock:
                    self.outcomes["sent"] += 1
                try:
                    response = client.post(self._url, json={"inputs": inputs, "id": str(value)})
                    outcome, text = self._judged(response, value, number)
                except httpx.HTTPError as error:
                    outcome, text = "failed", type(error).__name__
                with self._lock:
                    self.outcomes[outcome] += 1
                    if text:
                        self.failures[text] += 1

    @staticmethod
    def _judged(response: httpx.Response, value: int, number: int) -> tuple[str, str]:
        if response.status_code != 200:
            kind = "refused" if "error" in response.text[:10] else "failed"
            return kind, f"{response.status_code}: {response.text[:200]}"
        body = response.json()
        sums = {each["name"]: each["data"] for each in body["outputs"]}
        right = body["id"] == str(value) and sums == {
            "OUTPUT0": [value + number] * 16,
            "OUTPUT1": [value - number] * 16,
        }
        return ("answered", "") if right else ("wrong", response.text[:200])

    @property
    def answered(self) -> int:
        return self.outcomes["answered"]

    def until_answered(self, more: int) -> None:
        goal = self.answered + more
        wait(lambda: self.answered >= goal, f"{more} responses")

    @property
    def lost(self) -> int:
        return self.outcomes["refused"] + self.outcomes["failed"]

    def finish(self) -> None:
        """Stop the clients, and check their account: each request has one outcome, and none is wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        outcomes = {name: self.outcomes[name] for name in ("sent", "answered", "refused", "failed", "wrong")}
        print(f"\naccount of {self._name}: {json.dumps(outcomes)}", dict(self.failures), flush=True)
        assert self.outcomes["wrong"] == 0, self.failures
        assert self.outcomes["sent"] == self.answered + self.lost

    def start(self) -> None:
        for thread in self._threads:
            thread.start()


@contextmanager
def load(url: str, name: str, clients: int = 4) -> Iterator[Load]:
    """Requests while the block runs, of which some have been answered before it begins."""
    clients_at_work = Load(url, name, clients)
    clients_at_work.start()
    try:
        clients_at_work.until_answered(20)
        yield clients_at_work
    finally:
        clients_at_work.finish()

"""Processes that Python models start by multiprocessing: they import what the model can, and hold up no stop."""

from collections.abc import Iterator

import pytest
from python_faults import call
from server_process import LOADED, ServerProcess, started

CODE = """
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils


def double(value):
    return pb_utils.Tensor("OUT", np.array([2 * value], np.float32))


def by_executor(method, function, value):
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        return pool.submit(function, value).result()


def by_pool(method, function, value):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(function, [value])[0]


def sleep(value):
    import time
    time.sleep(1000)


class TritonPythonModel:
    def initialize(self, args):
        # Neither is ever closed: one waits for work, the other works.
        self.waiting = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.busy = multiprocessing.get_context("spawn").Process(target=sleep, args=(0,))

    def execute(self, requests):
        responses = []
        for request in requests:
            method, way = request.request_id().split()
            value = float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if way == "library":
                made = pb_utils.Tensor("OUT", np.array([by_pool(method, math.sqrt, value)], np.float32))
            elif way == "groups":
                parent = os.getppid()
                same = 10 * (os.getsid(0) == os.getsid(parent)) + (os.getpgid(0) == os.getpgid(parent))
                made = pb_utils.Tensor("OUT", np.array([same], np.float32))
            elif way == "secrets":
                count = sum("SECRET" in text for text in os.environ.values())
                made = pb_utils.Tensor("OUT", np.array([count], np.float32))
            elif way == "kept":
                self.busy.start()
                made = self.waiting.submit(double, value).result()
            else:
                made = {"executor": by_executor, "pool": by_pool}[way](method, double, value)
            responses.append(pb_utils.InferenceResponse([made]))
        return responses
"""
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "EXECUTION_MODE" value { string_value: "%s" } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for mode in ("process", "thread"):
        folder = repository / mode / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(CODE)
        (folder.parent / "config.pbtxt").write_text(CONFIG % mode)
    # Longer than the test waits: a stop that waits for a process fails.
    options = ["--backend-config=python,stop-timeout-seconds=600"]
    restricted = "logging:admin-key=SECRET"
    environment = {
        "MODSERVE_HTTP_RESTRICTED_API": restricted,
        "MODSERVE_GRPC_RESTRICTED_PROTOCOL": restricted,
        "TRITONCACHE_REDIS_PASSWORD": "SECRET",
    }
    with started(repository, options=options, environment=environment) as running:
        running.wait_for(LOADED)
        yield running


def outcome(server: ServerProcess, model: str, way: str) -> str:
    inputs = [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [9]}]
    return call(server.http_port, f"models/{model}/infer", {"id": way, "inputs": inputs}).text


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("way", ["executor", "pool"])
def test_a_function_of_the_model_runs_in_another_process(server: ServerProcess, method: str, way: str) -> None:
    assert '"data":[18.0]' in outcome(server, "process", f"{method} {way}")


@pytest.mark.parametrize("model", ["process", "thread"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_main_module_starts_nothing_in_another_process(server: ServerProcess, model: str, method: str) -> None:
    assert '"data":[3.0]' in outcome(server, model, f"{method} library")


@pytest.mark.parametrize("model", ["process", "thread"])
def test_models_do_not_inherit_the_secrets_of_restricted_calls(server: ServerProcess, model: str) -> None:
    assert call(server.http_port, "logging").status == 403
    assert '"data":[0.0]' in outcome(server, model, "any secrets")


def test_a_worker_shares_the_session_of_its_server_and_has_a_group_of_its_own(server: ServerProcess) -> None:
    """Linux gives each session a share of the processor, and a worker of its own waits for it on a busy machine."""
    assert '"data":[10.0]' in outcome(server, "process", "any groups")


def test_processes_that_are_left_hold_up_no_stop(server: ServerProcess) -> None:
    assert '"data":[18.0]' in outcome(server, "process", "spawn kept")
    server.stop()

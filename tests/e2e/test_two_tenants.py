"""Tenants over the wire: limits, regions and sequences of their own, and an execution that never ends."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server, eventually, serving
from tritonclient.utils import InferenceServerException
from wire import HOST

LIMITS = """
tenants:
  slow: {requests_per_second: 0.01}
"""


class Place(NamedTuple):
    server: Server
    secrets: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    file = tmp_path_factory.mktemp("tenants") / "keys.yaml"
    secrets = {}
    for name in ("alice", "bob", "slow"):
        command = [sys.executable, "-m", "modserve", "keys", "add", name, "--scope", "*=infer,read,control,admin"]
        output = subprocess.run([*command, "--file", str(file)], check=True, capture_output=True, text=True).stdout
        secrets[name] = output.splitlines()[-1]
    file.write_text(file.read_text() + LIMITS)
    with serving_here(EXAMPLES, options=[f"--auth-file={file}", "--allow-client-shm=true"]) as server:
        yield Place(server, secrets)


def client(place: Place) -> Any:
    return tritonclient.http.InferenceServerClient(f"{HOST}:{place.server.http_port}")


def headers(place: Place, name: str) -> dict[str, str]:
    return {"x-api-key": place.secrets[name]}


def inputs(module: Any) -> list[Any]:
    tensors = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    return tensors


def test_a_tenant_above_its_rate_hears_when_to_come_back_and_others_go_on(place: Place) -> None:
    body = {"inputs": [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for n in (0, 1)]}
    url = f"http://{HOST}:{place.server.http_port}/v2/models/simple/infer"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers(place, "slow"))
    with urllib.request.urlopen(request) as answer:
        answer.read()
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request):
        pass
    with caught.value as refusal:
        assert refusal.code == 429
        assert 90 <= int(refusal.headers["Retry-After"]) <= 100
        assert (
            "tenant 'slow' sends more than its 'requests_per_second' of 0.01; try again in" in refusal.read().decode()
        )
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{place.server.grpc_port}") as over_grpc:
        with pytest.raises(InferenceServerException) as refused:
            over_grpc.infer("simple", inputs(tritonclient.grpc), headers=headers(place, "slow"))
        assert refused.value.status() == f"StatusCode.{grpc.StatusCode.RESOURCE_EXHAUSTED.name}"
        over_grpc.infer("simple", inputs(tritonclient.grpc), headers=headers(place, "alice"))


def test_statistics_show_tenants_to_those_who_see_all_models(place: Place) -> None:
    with client(place) as http:
        before = tenants(http, place)
        http.infer("simple", inputs(tritonclient.http), headers=headers(place, "bob"))
        after = tenants(http, place)
    assert after["bob"]["rows"] == before.get("bob", {"rows": 0})["rows"] + 1
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{place.server.grpc_port}") as over_grpc:
        document = over_grpc.get_inference_statistics(headers=headers(place, "alice"), as_json=True)
    assert "simple" in {model["name"] for model in document["model_stats"]}


def tenants(http: Any, place: Place) -> dict[str, Any]:
    document = http.get_inference_statistics(headers=headers(place, "alice"))
    return {row["name"]: row for row in document["tenant_stats"]}


def test_a_region_of_shared_memory_is_its_tenants_own(place: Place) -> None:
    key = "/tenants_of_a_test"
    memory = shm.create_shared_memory_region("r", key, 64)
    try:
        with client(place) as http:
            for name in ("alice", "bob"):
                http.register_system_shared_memory("r", key, 64, headers=headers(place, name))
            http.unregister_system_shared_memory(headers=headers(place, "bob"))
            assert http.get_system_shared_memory_status(headers=headers(place, "bob")) == []
            regions = http.get_system_shared_memory_status(headers=headers(place, "alice"))
            assert regions == [{"name": "r", "key": key, "offset": 0, "byte_size": 64}]
            shared = inputs(tritonclient.http)
            shared[0].set_shared_memory("r", 64)
            http.infer("simple", shared, headers=headers(place, "alice"))
            with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
                http.infer("simple", shared, headers=headers(place, "bob"))
    finally:
        shm.destroy_shared_memory_region(memory)


STUCK = """
import time
import modserve

@modserve.model
def stuck(x: list[float]) -> list[float]:
    while x[0] > 0:
        time.sleep(0.05)
    return x
"""


def test_an_execution_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "stuck_model.py").write_text(STUCK)
    options = ["--python-model=stuck_model:stuck", "--execution-timeout-secs=1"]
    errors = ["an execution took longer than 1 s"]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    with (
        serving(options=options, environment=paths, errors=errors) as server,
        tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as http,
    ):

        def ask(value: float) -> list[float]:
            tensor = tritonclient.http.InferInput("x", [1], "FP64")
            tensor.set_data_from_numpy(np.array([value]))
            return http.infer("stuck", [tensor]).as_numpy("output").tolist()  # type: ignore[no-any-return]

        assert ask(-1.0) == [-1.0]
        with pytest.raises(InferenceServerException, match="an execution took longer than 1 s"):
            ask(1.0)
        eventually(lambda: http.is_model_ready("stuck"))
        assert ask(-2.0) == [-2.0]

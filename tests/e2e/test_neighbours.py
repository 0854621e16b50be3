"""Requests that share a batch, or a server: what is wrong with one of them is not the others' failure."""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper
from server_here import serving_here
from server_process import Server
from tritonclient.utils import InferenceServerException
from wire import HOST

TABLE = (np.arange(8, dtype=np.float32) * 10).reshape(8, 1)
CONFIG = """
backend: "onnxruntime"
max_batch_size: 2
input { name: "index" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "entry" data_type: TYPE_FP32 dims: [ 1, 1 ] }
instance_group { count: 1 }
dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 600000000 }
"""
"""A batch is of two requests, however long the second one takes to come."""


@pytest.fixture(scope="module")
def looking_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("lookup")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["entry"])],
        "lookup",
        [helper.make_tensor_value_info("index", TensorProto.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("entry", TensorProto.FLOAT, ["batch", 1, 1])],
        [numpy_helper.from_array(TABLE, "table")],
    )
    (repository / "lookup" / "1").mkdir(parents=True)
    (repository / "lookup" / "config.pbtxt").write_text(CONFIG)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, repository / "lookup" / "1" / "model.onnx")
    with serving_here(repository, errors=["onnxruntime refused the request"]) as running:
        yield running


def over_http(server: Server, index: int) -> float | str:
    with httpclient.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        given = httpclient.InferInput("index", [1, 1], "INT64")
        given.set_data_from_numpy(np.array([[index]], np.int64))
        try:
            return float(client.infer("lookup", [given]).as_numpy("entry")[0, 0, 0])
        except InferenceServerException as error:
            return f"{error.status()}"


def over_grpc(server: Server, index: int) -> float | str:
    with grpcclient.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        given = grpcclient.InferInput("index", [1, 1], "INT64")
        given.set_data_from_numpy(np.array([[index]], np.int64))
        try:
            return float(client.infer("lookup", [given]).as_numpy("entry")[0, 0, 0])
        except InferenceServerException as error:
            return f"{error.status()}"


def statistics(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/v2/models/lookup/stats", timeout=20) as response:
        [model] = json.load(response)["model_stats"]
        found: dict[str, Any] = model
        return found


@pytest.mark.parametrize("rounds", [1, 60], ids=["at first", "when it is quick"])
def test_an_index_that_is_out_of_range_is_one_clients_failure(looking_up: Server, rounds: int) -> None:
    before = statistics(looking_up)
    with ThreadPoolExecutor(2) as clients:
        for _ in range(rounds):
            good, bad = clients.submit(over_http, looking_up, 3), clients.submit(over_grpc, looking_up, 99)
            assert (good.result(60), bad.result(60)) == (30.0, "StatusCode.INTERNAL")
        good, bad = clients.submit(over_grpc, looking_up, 7), clients.submit(over_http, looking_up, -99)
        assert (good.result(60), bad.result(60)) == (70.0, "500")
    after = statistics(looking_up)
    counts = {key: after[key] - before[key] for key in ("inference_count", "execution_count")}
    assert counts == {"inference_count": rounds + 1, "execution_count": rounds + 1}, "those that succeeded"
    assert after["inference_stats"]["fail"]["count"] - before["inference_stats"]["fail"]["count"] == rounds + 1

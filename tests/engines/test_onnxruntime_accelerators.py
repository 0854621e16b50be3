"""A provider beside the CPU's in a real server: OpenVINO, in ONNX Runtime's distribution for it.

The distribution is not installed: it lies on the server's path in front of the other one.
"""

import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
from model_packages import unpacked
from onnx import TensorProto, helper
from onnx_repository import page_configs, write
from server_process import ServerProcess, serving
from triton_http import connected
from tritonclient.utils import InferenceServerException
from wire import http as request

pytest.importorskip("onnxruntime")
if sys.platform != "linux" or platform.machine() != "x86_64" or sys.version_info >= (3, 14):
    pytest.skip("there is no such distribution for this machine", allow_module_level=True)

DISTRIBUTION = "onnxruntime-openvino==1.24.1"
ENDS = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
NODES = [helper.make_node("Relu", ["IN"], ["HALF"]), helper.make_node("Add", ["HALF", "HALF"], ["OUT"])]


def accelerated(name: str, **parameters: str) -> str:
    pairs = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    accelerator = f'cpu_execution_accelerator {{ name: "{name}" {pairs} }}'
    return f"max_batch_size: 4 optimization {{ execution_accelerators {{ {accelerator} }} }}"


FAILING = {
    "no_device": (
        accelerated("openvino", device_type="NPU"),
        r"asks for 'openvino', but ONNX Runtime could not use its OpenVINOExecutionProvider \(.*NPU is not available\)",
    ),
    "no_option": (
        accelerated("openvino", unheard_of="1"),
        "failed to load model 'no_option' .*Invalid OpenVINO EP opt",
    ),
    "no_provider": (
        accelerated("tensorrt"),
        r"asks for 'tensorrt', but this build of ONNX Runtime \(onnxruntime 1.24.1: OpenVINOExecutionProvider, "
        r"CPUExecutionProvider\) has no TensorrtExecutionProvider; onnxruntime-gpu has it",
    ),
    "no_name": (accelerated("openwino"), "unknown Execution Accelerator 'openwino' .* did you mean 'openvino'"),
}


@pytest.fixture(scope="module")
def errors() -> list[str]:
    """What the tests make the server log."""
    return []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, errors: list[str]) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    threads = 'parameters { key: "intra_op_thread_count" value { string_value: "3" } } instance_group { count: 2 }'
    write(repository, "openvino", NODES, ENDS[:1], ENDS[1:], f"{accelerated('openvino')} {threads}")
    page = page_configs()["openvino"].replace("/var/cache/openvino", str(tmp_path_factory.mktemp("cache")))
    write(repository, "page", NODES, ENDS[:1], ENDS[1:], page)
    listed = 'max_batch_size: 4 parameters { key: "execution_providers" value { string_value: "OpenVINO,cpu" } }'
    write(repository, "listed", NODES, ENDS[:1], ENDS[1:], listed)
    for name, (config, _) in FAILING.items():
        write(repository, name, NODES, ENDS[:1], ENDS[1:], config)
    path = [str(unpacked(DISTRIBUTION)), *filter(None, [os.getenv("PYTHONPATH")])]
    options = ["--exit-on-error=false", "--model-control-mode=explicit", "--log-info=true"]
    environment = {"PYTHONPATH": os.pathsep.join(path)}
    with serving(repository, options=options, errors=errors, environment=environment) as running:
        yield running
        with connected(running) as client:
            assert client.is_server_live()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with connected(server) as opened:
        yield opened


@pytest.mark.parametrize("name", ["openvino", "listed", "page"])
def test_openvino_inside_onnx_runtime(server: ServerProcess, client: Any, name: str) -> None:
    client.load_model(name)
    assert "onnxruntime 1.24.1: OpenVINOExecutionProvider, CPUExecutionProvider" in server.log
    values = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    tensor = http.InferInput("IN", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    response = client.infer(name, [tensor])
    assert response.as_numpy("OUT").tolist() == (2 * np.maximum(values, 0)).tolist()
    report = request(server.http_port, "GET", f"/v2/models/{name}/engine").json
    assert report["providers"] == ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    assert report["nodes"]["OpenVINOExecutionProvider"] > 0
    assert "WARNING" not in "".join(line for line in server.log.splitlines() if f"'{name}'" in line)


@pytest.mark.parametrize("name", FAILING)
def test_what_cannot_be_used_is_not_replaced(client: Any, errors: list[str], name: str) -> None:
    errors.append(f"ERROR .* model '{name}', version 1: ")
    with pytest.raises(InferenceServerException, match=FAILING[name][1]) as caught:
        client.load_model(name)
    assert caught.value.status() == "400"

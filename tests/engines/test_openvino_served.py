"""OpenVINO behind a server: a real process and real clients, a real network in every form, damage, and load."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

import tritonclient.grpc
import tritonclient.http
from model_packages import place, unpacked
from numpy.typing import NDArray
from openvino_models import named, op, parameter, save, save_one, save_sum
from server_process import ServerProcess, serving
from tritonclient.utils import InferenceServerException
from wire import HOST, http

from modserve.backends.openvino.library import VERSION

PAGE = Path(__file__).parents[2] / "docs" / "engines" / "openvino.md"
OWN = {"onset": ("StatefulPartitionedCall:2", "onset"), "contour": ("StatefulPartitionedCall:0", "contour")}
"""What the network's outputs are called in ONNX and TensorFlow Lite, and by TensorFlow's signature."""
FORMS = {
    "pitch_reference": ("nmp.onnx", "model.onnx", "onnxruntime", 0),
    "pitch_onnx": ("nmp.onnx", "model.onnx", "openvino", 0),
    "pitch_tflite": ("nmp.tflite", "model.tflite", "openvino", 0),
    "pitch_savedmodel": ("nmp", "model.savedmodel", "openvino", 1),
}
ERRORS = [
    r"model 'damaged', version 1: .*Incorrect weights",
    r"model 'absent', version 1: .*is for device GPU",
    r"1 problem in the configuration of model 'mistyped'",
    r"1 problem in the configuration of model 'misranked'",
]
SUM = """
backend: "openvino"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
TOTAL = """
backend: "openvino"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "TOTAL" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }
}
"""
PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
Arrays = dict[str, NDArray[Any]]


def shown_configurations() -> list[str]:
    return re.findall(r"^```\n(backend: .*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("openvino")
    pitch = unpacked("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022"
    for name, (source, filename, backend, _) in FORMS.items():
        place(pitch / source, repository / name, f'backend: "{backend}"\n', filename)

    def write(name: str, config: str) -> Path:
        path = save_sum(repository / name / "1" / "model.xml")
        (repository / name / "config.pbtxt").write_text(config)
        return path

    write("sum", SUM)
    write("lanes", SUM + PARAMETER.format("nireq", 3) + "dynamic_batching { }\n")
    write("mistyped", SUM.replace("TYPE_FP32", "TYPE_INT32", 1))
    write("misranked", SUM.replace("dims: [ 4 ]", "dims: [ 4, 4 ]", 1))
    write("absent", SUM + PARAMETER.format("TARGET_DEVICE", "GPU.7"))
    for number, config in enumerate(shown_configurations()):
        write(f"shown_{number}", config)
    write("unconfigured", 'backend: "openvino"').with_name("other.txt").touch()
    save_total(repository / "total" / "1" / "model.xml")
    (repository / "total" / "config.pbtxt").write_text(TOTAL)
    ids = save_one(repository / "ids" / "1" / "model.xml", lambda x: op.add(x, x), [-1, 2], "i64")
    (ids.parents[1] / "config.pbtxt").write_text('backend: "openvino"')
    weights = op.constant(np.ones((3, 4), np.float32))
    damaged = save_one(
        repository / "damaged" / "1" / "model.xml", lambda x: op.matmul(x, weights, False, False), [-1, 3]
    )
    damaged.with_suffix(".bin").write_bytes(b"cut")
    options = ["--strict-readiness=false"]
    with serving(repository, options=options, errors=ERRORS) as running:
        yield running


def save_total(path: Path) -> None:
    """TOTAL = AFTER = X + BEFORE."""
    x, before = parameter("X", [-1, 1]), parameter("BEFORE", [-1, 1])
    total = named(op.add(x, before), "TOTAL")
    save(path, [total, named(op.add(total, op.constant(np.float32(0))), "AFTER")], [x, before])


def infer(client: Any, module: Any, model: str, arrays: Arrays) -> Any:
    kinds = {"float32": "FP32", "int64": "INT64"}
    inputs = [module.InferInput(name, list(array.shape), kinds[str(array.dtype)]) for name, array in arrays.items()]
    for tensor, array in zip(inputs, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return client.infer(model, inputs)


def over_http(server: ServerProcess, model: str, arrays: Arrays) -> Any:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        return infer(client, tritonclient.http, model, arrays)


def over_grpc(server: ServerProcess, model: str, arrays: Arrays) -> Any:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        return infer(client, tritonclient.grpc, model, arrays)


def two_arrays(value: float, rows: int = 1, columns: int = 4) -> Arrays:
    return {name: np.full((rows, columns), value, np.float32) for name in "AB"}


@pytest.mark.parametrize("model", [name for name in FORMS if name != "pitch_reference"])
@pytest.mark.parametrize("call", [over_http, over_grpc])
def test_a_real_network_agrees_with_onnxruntime(server: ServerProcess, call: Any, model: str) -> None:
    time = np.arange(2 * 43844) / 22050
    sound = (np.sin(2 * np.pi * 440 * time) * np.exp(-time)).astype(np.float32).reshape(2, 43844, 1)
    names = "serving_default_input_2:0", "input_2"
    reference = over_grpc(server, "pitch_reference", {names[0]: sound})
    column = FORMS[model][3]
    result = call(server, model, {names[column]: sound})
    for name, own in OWN.items():
        expected = reference.as_numpy(OWN[name][0])
        assert expected.max() > 0.3
        np.testing.assert_allclose(result.as_numpy(own[column]), expected, atol=1e-4)


def test_many_clients_keep_the_streams_of_an_instance_busy(server: ServerProcess) -> None:
    for model in ("sum", "lanes"):
        barrier = threading.Barrier(6)

        def call(number: int, model: str = model, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(20)
            with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
                for step in range(25):
                    value = number * 100 + step
                    result = infer(client, tritonclient.grpc, model, two_arrays(value, 1 + step % 3))
                    assert (result.as_numpy("SUM") == 2 * value).all()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(call, range(6)))


def test_the_configurations_of_the_page(server: ServerProcess) -> None:
    assert len(shown_configurations()) == 1
    for number in range(len(shown_configurations())):
        assert (over_http(server, f"shown_{number}", two_arrays(3)).as_numpy("SUM") == 6).all()


def test_a_model_describes_itself(server: ServerProcess) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        metadata = client.get_model_metadata("unconfigured")
        config = client.get_model_config("unconfigured")
    assert metadata["inputs"] == [{"name": name, "datatype": "FP32", "shape": [-1, 4]} for name in "AB"]
    assert metadata["outputs"] == [{"name": "SUM", "datatype": "FP32", "shape": [-1, 4]}]
    assert config["max_batch_size"] == 4
    assert len(config["instance_group"]) == 1


def test_what_runs_a_model(server: ServerProcess) -> None:
    engine = http(server.http_port, "GET", "/v2/models/sum/engine").json
    expected = {"engine": "OpenVINO", "version": VERSION, "precision": "fp32", "device": "CPU", "streams": 1}
    assert {key: engine.get(key) for key in expected} == expected
    assert engine["threads"] >= 1
    assert engine["file"] == "model.xml"


def test_numbers_that_the_cpu_cuts_off(server: ServerProcess) -> None:
    assert over_grpc(server, "ids", {"X": np.array([[1, 2]])}).as_numpy("Y").tolist() == [[2, 4]]
    with pytest.raises(InferenceServerException, match="input 'X' has a number outside of") as caught:
        over_grpc(server, "ids", {"X": np.array([[1, 2**40]])})
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_sequences_with_a_state_that_the_server_keeps(server: ServerProcess) -> None:
    totals: dict[int, list[float]] = {7: [], 8: []}
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        for step in range(3):
            for sequence, seen in totals.items():
                tensor = tritonclient.grpc.InferInput("X", [1, 1], "FP32")
                tensor.set_data_from_numpy(np.array([[sequence + step]], np.float32))
                flags = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 2}
                seen.append(float(client.infer("total", [tensor], **flags).as_numpy("TOTAL")[0, 0]))
    assert totals == {7: [7.0, 15.0, 24.0], 8: [8.0, 17.0, 27.0]}


def test_what_is_damaged_or_elsewhere_harms_nobody(server: ServerProcess) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        index = {row["name"]: row for row in client.get_model_repository_index()}
        assert "The .bin file is truncated" in index["damaged"]["reason"]
        assert "is for device GPU.7, but here OpenVINO has: CPU" in index["absent"]["reason"]
        mistyped = "configuration expects datatype TYPE_INT32 for input 'A', model provides TYPE_FP32"
        assert mistyped in index["mistyped"]["reason"]
        assert "the model expects 2 dimensions" in index["misranked"]["reason"]
        assert client.is_model_ready("sum")
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'A'"):
        over_http(server, "sum", two_arrays(1, 1, 5))
    assert (over_http(server, "sum", two_arrays(1)).as_numpy("SUM") == 2).all()

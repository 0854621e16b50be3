"""Repositories with models written in Python: without configurations, with versions, in ensembles, and wrong ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from python_models import TRITON, infer, serving_python, tensors, write_python
from tritonclient.utils import InferenceServerException
from wire import HOST, http, statistics

COMPLETE = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        names = [one["name"] for one in config.as_dict()["input"]]
        for name in ("INPUT0", "INPUT1"):
            if name not in names:
                config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(MAX)
        if MAX:
            config.set_dynamic_batching()
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = [tensor.as_numpy() for tensor in request.inputs()]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b)]))
        return responses
"""

SAYS = """
class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])
        self.runs = 0

    def execute(self, requests):
        self.runs += 1
        made = [pb_utils.Tensor("OUT", np.array([self.version, self.runs], np.int32))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

UPPER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            lengths = np.vectorize(len, otypes=[np.int32])(texts)
            upper = np.vectorize(lambda text: text.decode().upper().encode(), otypes=[np.object_])(texts)
            made = [pb_utils.Tensor("UPPER", upper), pb_utils.Tensor("LENGTH", lengths)]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

SPREAD = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            lengths = pb_utils.get_input_tensor_by_name(request, "LENGTH").as_numpy()
            made = pb_utils.Tensor("SPREAD", np.repeat(lengths.astype(np.float32), 100_000, axis=1))
            responses.append(pb_utils.InferenceResponse([made]))
        return responses
"""

MEAN = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "SPREAD").as_numpy()
            made = pb_utils.Tensor("MEAN", values.mean(axis=1, keepdims=True))
            responses.append(pb_utils.InferenceResponse([made]))
        return responses
"""

ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "UPPER" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "MEAN" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "upper_MODE" model_version: -1 input_map { key: "TEXT" value: "TEXT" }
         output_map { key: "UPPER" value: "UPPER" } output_map { key: "LENGTH" value: "length" } }
  step { model_name: "spread_MODE" model_version: -1 input_map { key: "LENGTH" value: "length" }
         output_map { key: "SPREAD" value: "spread" } }
  step { model_name: "mean_MODE" model_version: -1 input_map { key: "SPREAD" value: "spread" }
         output_map { key: "MEAN" value: "MEAN" } }
}
"""

SHAPES = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            array = tensor.as_numpy()
            assert list(array.shape) == tensor.shape()
            shape = np.array([list(array.shape)] * (len(array) if array.ndim == 1 else 1), np.int32)
            made = [pb_utils.Tensor("OUT", array * 2), pb_utils.Tensor("SHAPE", shape)]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""

TEXTS = """
class TritonPythonModel:
    def execute(self, requests):
        fixed, mixed = np.array([b"ab", b"c"], "S5"), np.array(["é", 5, None, b"x"], np.object_)
        made = [pb_utils.Tensor("FIXED", fixed), pb_utils.Tensor("MIXED", mixed)]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

IN_PLACE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            array += 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""

WRONG = {
    "no_class": ("class Other: pass", "class TritonPythonModel"),
    "no_execute": ("class TritonPythonModel: pass", "does not implement `execute` method"),
    "syntax": ("class TritonPythonModel:\n    def execute(self, requests)\n        pass", "SyntaxError"),
    "imports": ("import nosuchmodule", "ModuleNotFoundError: No module named 'nosuchmodule'"),
    "initialize": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('not today')\n"
        "    def execute(self, requests): pass",
        "ValueError: not today",
    ),
    "completes": (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.add_input({'name': 'IN', 'data_type': 'TYPE_FP64', 'dims': [1]})\n        return config\n"
        "    def execute(self, requests): pass",
        "configuration expects datatype TYPE_INT32 for input 'IN', model provides TYPE_FP64",
    ),
    "returns": (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        return None\n"
        "    def execute(self, requests): pass",
        "auto_complete_config function in model",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("python_forms")
    for name, size in (("nobatch", 0), ("batch", 4)):
        write_python(repository, name, COMPLETE.replace("MAX", str(size)), "", modes=["process"])
        (repository / f"{name}_process" / "config.pbtxt").unlink()
    numbers = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 2")
    write_python(repository, "versions", SAYS, numbers + "version_policy { all { } }")
    write_python(repository, "renamed", SAYS, numbers + 'default_model_filename: "other.py"')
    for mode in ("process", "thread"):
        add_version(repository / f"versions_{mode}")
        (repository / f"renamed_{mode}" / "1" / "model.py").rename(repository / f"renamed_{mode}" / "1" / "other.py")
        (repository / f"ensemble_{mode}" / "1").mkdir(parents=True)
        (repository / f"ensemble_{mode}" / "config.pbtxt").write_text(ENSEMBLE.replace("MODE", mode))
    four = 'name: "{}" data_type: TYPE_FP32 dims: [ {} ] reshape {{ shape: [ {} ] }}'
    for name, dims, shape in (("scalars", "1", ""), ("matrix", "4", "2, 2")):
        config = f"input {{ {four.format('IN', dims, shape)} }} output {{ {four.format('OUT', dims, shape)} }}"
        config += tensors("output", SHAPE="INT32 -1")
        write_python(repository, name, SHAPES, config + ("max_batch_size: 4" if name == "scalars" else ""))
    write_python(
        repository,
        "texts",
        TEXTS,
        tensors("input", IN="INT32 1") + tensors("output", FIXED="BYTES -1", MIXED="BYTES -1"),
    )
    write_python(repository, "in_place", IN_PLACE, tensors("input", IN="INT32 -1") + tensors("output", OUT="INT32 -1"))
    text = tensors("input", TEXT="BYTES 1") + tensors("output", UPPER="BYTES 1", LENGTH="INT32 1") + "max_batch_size: 8"
    write_python(repository, "upper", UPPER, text)
    spread = tensors("input", LENGTH="INT32 1") + tensors("output", SPREAD="FP32 -1") + "max_batch_size: 8"
    write_python(repository, "spread", SPREAD, spread)
    mean = tensors("input", SPREAD="FP32 -1") + tensors("output", MEAN="FP32 1") + "max_batch_size: 8"
    write_python(repository, "mean", MEAN, mean)
    for name, (code, _) in WRONG.items():
        write_python(
            repository, f"wrong_{name}", code, tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")
        )
    options = ["--model-control-mode=explicit", "--strict-readiness=false"]
    options += [f"--load-model={path.name}" for path in repository.iterdir() if not path.name.startswith("wrong")]
    with serving_python(repository, options, errors=["ERROR", "Traceback"]) as running:
        yield running


def add_version(model: Path) -> None:
    (model / "3").mkdir()
    (model / "3" / "model.py").write_text((model / "1" / "model.py").read_text())


@pytest.mark.parametrize(("name", "size"), [("nobatch", 0), ("batch", 4)])
def test_no_configuration(server: Any, protocol: str, name: str, size: int) -> None:
    config = http(server.http_port, "GET", f"/v2/models/{name}_process/config").json
    assert (config["backend"], config["max_batch_size"]) == ("python", size)
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("INPUT0", "TYPE_FP32", [4]),
        ("INPUT1", "TYPE_FP32", [4]),
    ]
    sent = np.ones((2, 4) if size else (4,), np.float32)
    response = infer(server, protocol, f"{name}_process", {"INPUT0": sent, "INPUT1": sent})
    assert response["OUTPUT0"] == (sent * 2).tolist()


def test_versions(server: Any, mode: str, protocol: str) -> None:
    model = f"versions_{mode}"
    versions = [infer(server, protocol, model, {"IN": [1]}, model_version=each)["OUT"][0] for each in ("1", "3", "")]
    assert versions == [1, 3, 3]


def test_another_file_name(server: Any, mode: str) -> None:
    assert infer(server, "http", f"renamed_{mode}", {"IN": [1]})["OUT"][0] == 1


def test_elements_without_dimensions(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"scalars_{mode}", {"IN": np.array([[3], [4]], np.float32)})
    assert (response["OUT"], response["SHAPE"]) == ([[6], [8]], [[2], [2]])


def test_other_dimensions(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"matrix_{mode}", {"IN": np.arange(4, dtype=np.float32)})
    assert (response["OUT"], response["SHAPE"]) == ([0, 2, 4, 6], [[2, 2]])


def test_what_may_be_a_text(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"texts_{mode}", {"IN": [1]})
    assert (response["FIXED"], response["MIXED"]) == ([b"ab", b"c"], ["é".encode(), b"5", b"None", b"x"])


@pytest.mark.parametrize("count", [2, 300_000])
def test_inputs_are_the_models_own(server: Any, protocol: str, count: int) -> None:
    """In a process; in a thread of the server they may be a client's, and read-only."""
    sent = np.arange(count, dtype=np.int32)
    assert infer(server, protocol, "in_place_process", {"IN": sent})["OUT"] == (sent + 1).tolist()


def test_ensembles_of_python_models(server: Any, mode: str, protocol: str) -> None:
    texts = np.array([["one"], ["fifteen"]], np.object_)
    response = infer(server, protocol, f"ensemble_{mode}", {"TEXT": texts})
    assert (response["UPPER"], response["MEAN"]) == ([[b"ONE"], [b"FIFTEEN"]], [[3.0], [7.0]])


def test_statistics(server: Any, mode: str, protocol: str) -> None:
    model = f"upper_{mode}"
    before = statistics(server, model)
    infer(server, protocol, model, {"TEXT": np.array([["a"], ["b"], ["c"]], np.object_)})
    after = statistics(server, model)
    assert after["inference_count"] == before["inference_count"] + 3
    assert after["execution_count"] == before["execution_count"] + 1
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        count, time = [after["inference_stats"][part][key] for key in ("count", "ns")]
        assert count == before["inference_stats"][part]["count"] + 1
        assert time > 0


@pytest.mark.parametrize("name", WRONG)
def test_models_that_cannot_be_loaded(server: Any, mode: str, name: str) -> None:
    model = f"wrong_{name}_{mode}"
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        with pytest.raises(InferenceServerException) as raised:
            client.load_model(model)
        message = raised.value.message()
        assert WRONG[name][1] in message
        assert TRITON or name in ("no_class", "returns") or re.search(r"model\.py", message)
        assert not client.is_model_ready(model)
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
        assert index[model]["state"] == "UNAVAILABLE"
        assert WRONG[name][1] in index[model]["reason"]

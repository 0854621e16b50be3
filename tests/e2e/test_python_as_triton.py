"""Models that run in Triton as they are: without a configuration, with odd outputs, with a life that ends early."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_models import MODES, PROTOCOLS, events, infer, serving_python, stream, tensors, write_python
from wire import http, statistics

ONE = """
    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([7], np.int32))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""


def completing(*steps: str) -> str:
    """A model whose `auto_complete_config` takes these steps with `config`."""
    body = "".join([f"        {step}\n" for step in steps])
    head = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
    return f"{head}{body}        return config\n{ONE}"


IN = 'config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})'
OUT = 'config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})'
FIELDS = {
    *("backend", "batch_input", "batch_output", "cc_model_filenames", "default_model_filename", "input"),
    *("instance_group", "max_batch_size", "metric_tags", "model_warmup", "name", "optimization", "output"),
    *("parameters", "platform", "runtime", "version_policy"),
}
LOOKS = (
    f"missing = sorted({FIELDS} - set(config.as_dict()))",
    "assert not missing, missing",
    "assert config.as_dict()['version_policy'] == {'latest': {'num_versions': 1}}",
    "assert config.as_dict()['optimization']['input_pinned_memory']['enable']",
)
BARE: dict[str, str] = {
    "completes": completing(IN, OUT),
    "looks_at_all_fields": completing(*LOOKS, IN, OUT),
    "has_files_beside": completing(IN, OUT),
    "has_no_inputs": completing(OUT),
    "has.a.dot": completing(IN, OUT),
}
"""Models of which there is no configuration."""

PARSES = (
    """
import argparse
import sys
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("--number", type=int, default=7)
options = parser.parse_args()
assert sys.argv == [""], sys.argv

class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(options.number, 7)

assert unittest.main(exit=False, verbosity=0).result.wasSuccessful()

class TritonPythonModel:
"""
    + ONE
)

LIVES = (
    """
import os

class TritonPythonModel:
    def initialize(self, args):
        model = args["model_repository"]
        self.notes = os.path.join(os.path.dirname(os.path.dirname(model)), "notes_" + os.path.basename(model))
        self.note("initialize")
        if FAILS:
            raise ValueError("not today")

    def note(self, what):
        with open(self.notes, "a") as file:
            file.write(what + " ")

    def finalize(self):
        self.note("finalize")
"""
    + ONE
)

SENDS = """
import os

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("PROCESS", np.array([os.getpid()], np.int32))])
            sender.send(response)
            if what == "raises":
                raise ValueError("after the response")
            if what == "returns":
                return [response]
            if what == "ends":
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            if what == "asks":
                assert not request.is_cancelled()
            if what == "again":
                try:
                    sender.send(response)
                except pb_utils.TritonModelException:
                    pass
        return None
"""

SQUARE = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(), request.inputs()[0])).start()

    def send(self, sender, count):
        for _ in range(count.as_numpy()[0]):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", count.as_numpy())]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

SUM = """
class TritonPythonModel:
    def execute(self, requests):
        call = pb_utils.InferenceRequest(
            model_name="square_MODE", inputs=[pb_utils.get_input_tensor_by_name(requests[0], "IN")],
            requested_output_names=["OUT"])
        total = np.array([0])  # INT64, as in NVIDIA's example, whose configuration says INT32
        for response in call.exec(decoupled=True):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            if response.output_tensors():
                total += pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])]
"""

CHUNKS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for chunk in (np.array([]), np.array(b"", np.object_), np.array([[b"a"], [b"b"]], np.object_)):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", chunk)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

PASSES = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PASSED", r.inputs()[0].as_numpy())]) for r in requests]
"""

STEPS = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "PASSED" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "sum_MODE" model_version: -1 input_map { key: "IN" value: "IN" }
         output_map { key: "SUM" value: "sum" } }
  step { model_name: "passes_MODE" model_version: -1 input_map { key: "TAKEN" value: "sum" }
         output_map { key: "PASSED" value: "PASSED" } }
}
"""

INT = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("as_triton") / "models"
    for name, code in BARE.items():
        write_python(repository, name, code, "", modes=["process"])
        (repository / f"{name}_process" / "config.pbtxt").unlink()
    for name in ("saved_model.pb", "model.tflite", "model.pdmodel"):
        (repository / "has_files_beside_process" / "1" / name).write_bytes(b"weights")
    write_python(repository, "adds", completing(IN, OUT), tensors("input", MORE="INT32 1 optional"))
    write_python(repository, "silent", f"class TritonPythonModel:\n{ONE}", "")
    write_python(repository, "parses", PARSES, INT, modes=["process"])
    for name, fails in (("lives", False), ("fails", True)):
        write_python(repository, name, LIVES.replace("FAILS", str(fails)), INT)
    write_python(
        repository,
        "sends",
        SENDS,
        tensors("input", WHAT="BYTES 1") + tensors("output", PROCESS="INT32 1"),
    )
    write_python(repository, "square", SQUARE, INT + "model_transaction_policy { decoupled: true }")
    write_python(repository, "sum", SUM, tensors("input", IN="INT32 1") + tensors("output", SUM="INT32 1"))
    write_python(
        repository,
        "chunks",
        CHUNKS,
        tensors("input", IN="INT32 1")
        + tensors("output", TEXT="BYTES 1")
        + "max_batch_size: 4 model_transaction_policy { decoupled: true }",
    )
    write_python(repository, "passes", PASSES, tensors("input", TAKEN="INT32 1") + tensors("output", PASSED="INT32 1"))
    for mode in MODES:
        (repository / f"steps_{mode}" / "1").mkdir(parents=True)
        (repository / f"steps_{mode}" / "config.pbtxt").write_text(STEPS.replace("MODE", mode))
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Any]:
    options = ["--model-control-mode=explicit", "--strict-readiness=false"]
    options += [f"--load-model={path.name}" for path in repository.iterdir() if not path.name.startswith("fails")]
    with serving_python(repository, options, errors=["ERROR", "Traceback"]) as running:
        yield running


def configuration(server: Any, model: str) -> Mapping[str, Any]:
    return http(server.http_port, "GET", f"/v2/models/{model}/config").json  # type: ignore[no-any-return]


# Configurations


@pytest.mark.parametrize("name", BARE)
def test_a_folder_with_nothing_but_a_model(server: Any, name: str) -> None:
    inputs = {} if name == "has_no_inputs" else {"IN": [1]}
    assert infer(server, "http", f"{name}_process", inputs)["OUT"] == [7]
    config = configuration(server, f"{name}_process")
    assert (config["backend"], config["default_model_filename"]) == ("python", "model.py")


@pytest.mark.parametrize("mode", MODES)
def test_tensors_are_added_to_those_that_are_configured(server: Any, mode: str) -> None:
    config = configuration(server, f"adds_{mode}")
    assert [(one["name"], one["optional"]) for one in config["input"]] == [("MORE", True), ("IN", False)]
    assert [one["name"] for one in config["output"]] == ["OUT"]
    assert infer(server, "http", f"adds_{mode}", {"IN": [1]})["OUT"] == [7]
    assert "expected" in infer(server, "http", f"adds_{mode}", {"MORE": [1]}).message


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_says_nothing_of_its_tensors_loads(server: Any, mode: str) -> None:
    config = configuration(server, f"silent_{mode}")
    assert config["input"] == config["output"] == []
    server.wait_for(f"WARNING .*model 'silent_{mode}' has no inputs and no outputs: ")
    assert "expected 0 inputs but got 1" in infer(server, "http", f"silent_{mode}", {"IN": [1]}).message


# Lives


def test_a_model_that_parses_arguments_when_it_is_imported(server: Any) -> None:
    assert infer(server, "http", "parses_process", {"IN": [1]})["OUT"] == [7]


@pytest.mark.parametrize("mode", MODES)
def test_what_was_not_initialized_is_not_finalized(server: Any, repository: Path, mode: str) -> None:
    for name, status, notes in (("lives", 200, "initialize finalize "), ("fails", 400, "initialize ")):
        path = f"/v2/repository/models/{name}_{mode}"
        assert http(server.http_port, "POST", f"{path}/load", b"{}").status == status
        http(server.http_port, "POST", f"{path}/unload", b"{}")
        server.wait_for(rf"'{name}_{mode}'.*(unloaded|not today)")
        assert (repository.parent / f"notes_{name}_{mode}").read_text() == notes


# Responses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("what", ["raises", "returns", "ends", "asks", "again", "nothing"])
def test_a_response_without_the_final_flag_is_the_one(server: Any, mode: str, protocol: str, what: str) -> None:
    """Of a model that is not decoupled: whatever it does then, its process lives on."""
    texts = [np.array([text], np.object_) for text in (what, "nothing")]
    processes = [infer(server, protocol, f"sends_{mode}", {"WHAT": text})["PROCESS"] for text in texts]
    assert processes[0] == processes[1]
    assert statistics(server, f"sends_{mode}")["inference_stats"]["fail"]["count"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_output_of_another_type_is_passed_on(server: Any, mode: str, protocol: str) -> None:
    """As that of NVIDIA's example bls_decoupled is."""
    for count in (4, 0):
        response = infer(server, protocol, f"sum_{mode}", {"IN": [count]})
        assert response["SUM"] == [count * count]
        assert response.outputs["SUM"].dtype == np.int64
    server.wait_for(
        f"WARNING .*output 'SUM' of model 'sum_{mode}' is of type INT64, but .* says TYPE_INT32; it is passed on"
    )
    assert server.log.count(f"output 'SUM' of model 'sum_{mode}'") == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_step_gets_no_type_that_it_does_not_take(server: Any, mode: str) -> None:
    message = infer(server, "http", f"steps_{mode}", {"IN": [2]}).message
    assert "INT64" in message
    assert "INT32" in message


@pytest.mark.parametrize("mode", MODES)
def test_empty_chunks(server: Any, mode: str) -> None:
    """As language models send them: without elements, of any type and shape."""
    with stream(server) as opened:
        opened.send(f"chunks_{mode}", {"IN": [[1]]})
        responses = opened.until_final()
    assert [one.message for one in responses] == [""] * 4
    texts = [one.outputs["TEXT"] for one in responses[:3]]
    assert [(text.dtype.kind, text.shape) for text in texts] == [("f", (0,)), ("O", ()), ("O", (2, 1))]
    assert texts[2].tolist() == [[b"a"], [b"b"]]
    parts = events(server, f"/v2/models/chunks_{mode}/generate_stream", {"IN": 1})
    assert [part.get("TEXT") for part in parts] == [[], "", ["a", "b"]]


@pytest.mark.parametrize("mode", MODES)
def test_v1_predictions_with_other_types(server: Any, mode: str) -> None:
    body = json.dumps({"inputs": {"IN": [3]}}).encode()
    answer = http(server.http_port, "POST", f"/v1/models/sum_{mode}:predict", body)
    assert (answer.status, answer.json) == (200, {"outputs": [9]})

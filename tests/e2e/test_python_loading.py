"""Models written in Python that load and unload others, and call them while they load themselves."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from python_models import TRITON, infer, serving_python, tensors, write_python
from server_process import eventually
from wire import HOST

TARGET = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.answer = int(config["parameters"].get("answer", {"string_value": "1"})["string_value"])

    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([self.answer], np.int32))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

LOADER = """
import time

def call(name):
    request = pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.array([1], np.int32))])
    response = request.exec()
    if response.has_error():
        return response.error().message()
    return int(response.output_tensors()[0].as_numpy()[0])

def failure(function, *arguments, **more):
    try:
        return function(*arguments, **more)
    except pb_utils.TritonModelException as error:
        return "failed: " + str(error)

class TritonPythonModel:
    def initialize(self, args):
        self.first = pb_utils.is_model_ready("target_MODE")
        pb_utils.load_model(model_name="target_MODE")
        self.second = pb_utils.is_model_ready("target_MODE", "1")

    def execute(self, requests):
        what = pb_utils.get_input_tensor_by_name(requests[0], "WHAT").as_numpy()[0].decode()
        made = [pb_utils.Tensor("OUT", np.array([json.dumps(getattr(self, what)())], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]

    def found(self):
        return [self.first, self.second, call("target_MODE")]

    def config(self):
        config = json.dumps({"backend": "python", "parameters": {"answer": {"string_value": "42"}}, **TENSORS})
        pb_utils.load_model(model_name="target_MODE", config=config)
        answers = [call("target_MODE")]
        pb_utils.load_model("target_MODE")  # no file has changed
        answers.append(call("target_MODE"))
        pb_utils.unload_model("target_MODE")
        while pb_utils.is_model_ready("target_MODE"):
            time.sleep(0.01)
        pb_utils.load_model("target_MODE")
        return [*answers, call("target_MODE")]

    def files(self):
        config = json.dumps({"backend": "python", **TENSORS})
        with open(__file__.replace("loader_", "target_")) as file:
            text = file.read().replace("self.answer]", "77]")
        pb_utils.load_model("of_files_MODE", config=config, files={"file:1/model.py": text.encode()})
        answers = [call("of_files_MODE")]
        pb_utils.unload_model("of_files_MODE", unload_dependents=True)
        return answers

    def unload(self):
        pb_utils.unload_model("spare_MODE")
        return True

    def errors(self):
        return [failure(pb_utils.load_model, "nosuch"), failure(pb_utils.load_model, "target_MODE", config="{"),
                failure(pb_utils.load_model, "broken_MODE")]

TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
}
"""

INITIALIZING = (
    LOADER.split("class TritonPythonModel")[0]
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.got = [call("target_MODE"), call("nosuch"), call("calling_MODE")]

    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([json.dumps(self.got)], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""
)

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise pb_utils.TritonModelException("broken on purpose")

    def execute(self, requests):
        pass
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("python_loading")
    number = tensors("input", IN="INT32 1") + tensors("output", OUT="INT32 1")
    what = tensors("input", WHAT="BYTES 1") + tensors("output", OUT="BYTES 1")
    for name in ("target", "spare", "of_files"):
        write_python(repository, name, TARGET, number)
    write_python(repository, "loader", LOADER, what)
    write_python(repository, "calling", INITIALIZING, what)
    write_python(repository, "broken", BROKEN, number)
    options = ["--model-control-mode=explicit"]
    with serving_python(repository, options, errors=["ERROR", "Traceback"]) as running:
        yield running


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}", network_timeout=20.0) as opened:
        yield opened


def done(server: Any, mode: str, what: str, model: str = "loader") -> Any:
    response = infer(server, "grpc", f"{model}_{mode}", {"WHAT": np.array([what], np.object_)})
    return json.loads(response["OUT"][0])


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return set()


@pytest.fixture(autouse=True)
def loader(client: Any, mode: str, loaded: set[str]) -> None:
    """It is loaded while the server runs, as the documentation says."""
    if mode not in loaded:
        client.load_model(f"loader_{mode}")
        loaded.add(mode)


def test_a_model_is_loaded_by_another_that_loads(server: Any, mode: str) -> None:
    assert done(server, mode, "found") == [False, True, 1]


def test_another_configuration(server: Any, mode: str) -> None:
    assert done(server, mode, "config") == [42, 42, 1]


def test_files_in_place_of_a_directory(server: Any, mode: str) -> None:
    assert done(server, mode, "files") == [77]


def test_unload(server: Any, mode: str, client: Any) -> None:
    client.load_model(f"spare_{mode}")
    assert client.is_model_ready(f"spare_{mode}")
    assert done(server, mode, "unload") is True
    eventually(lambda: not client.is_model_ready(f"spare_{mode}"))


def test_models_that_do_not_load(server: Any, mode: str) -> None:
    unknown, config, broken = done(server, mode, "errors")
    assert unknown.startswith("failed: ")
    assert "nosuch" in unknown
    assert config.startswith("failed: ")
    assert "broken on purpose" in broken


@pytest.mark.skipif(bool(TRITON), reason="Triton has no calls in initialize")
def test_calls_in_initialize(server: Any, mode: str, client: Any) -> None:
    client.load_model(f"calling_{mode}")
    got, unknown, itself = done(server, mode, "-", "calling")
    assert got == 1
    assert "nosuch" in unknown
    assert f"calling_{mode}" in itself

"""What clients are told of a failure in a Python model's code, what operators are, and which door shows what."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from python_models import EVERY_MODE, MODES, PROTOCOLS, Stream, every_mode, infer, tensors, write_python
from server_here import serving_here
from server_process import WORKERS, Server, eventually
from wire import HOST, http

import modserve

HELPER = """
def inverse(array):
    import numpy as np
    return np.linalg.inv(array)
"""
SINGULAR = """
import helper

class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]
    def one(self, request):
        return helper.inverse(np.zeros((2, 2)))
"""
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))]))
        json.loads("{")
"""
CALLER = """
class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="singular_MODE", requested_output_names=["OUT"], inputs=request.inputs())
            response = await call.async_exec()
            raise pb_utils.TritonModelException(response.error().message())
"""
DECORATED = """
import modserve

@modserve.model
def OUT(IN: int) -> int:
    return json.loads("{")
"""
UNLOADABLE = """
class TritonPythonModel:
    def initialize(self, args):
        np.linalg.inv(np.zeros((2, 2)))
    def execute(self, requests):
        return []
"""
MISFIT = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 2), np.int32))]) for _ in requests]
"""
TENSORS = tensors("input", IN="INT32 -1") + "\n" + tensors("output", OUT="INT32 -1")
FIXED = tensors("input", IN="INT32 -1") + "\n" + tensors("output", OUT="INT32 64")
TAKES_FIXED = tensors("input", IN="INT32 64") + "\n" + tensors("output", OUT="INT32 64")
ENSEMBLE = """
platform: "ensemble"
{tensors}
ensemble_scheduling {{
  step [
    {{ model_name: "misfit_{mode}" model_version: -1
       input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "middle" }} }},
    {{ model_name: "fixed_{mode}" model_version: -1
       input_map {{ key: "IN" value: "middle" }} output_map {{ key: "OUT" value: "OUT" }} }}
  ]
}}
"""
ERRORS = ["unloadable_|LinAlgError: Singular matrix|JSONDecodeError: |TritonModelException: "]
LIBRARY = re.compile(r"site-packages/numpy/linalg/\w+\.py")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    write_python(root, "singular", SINGULAR, TENSORS, modes=EVERY_MODE, files={"helper.py": HELPER})
    write_python(root, "stream", STREAM, f"model_transaction_policy {{ decoupled: true }}\n{TENSORS}")
    write_python(root, "caller", CALLER, TENSORS, modes=EVERY_MODE)
    write_python(root, "decorated", DECORATED, "", modes=EVERY_MODE)
    write_python(root, "unloadable", UNLOADABLE, TENSORS, modes=EVERY_MODE)
    write_python(root, "misfit", MISFIT, FIXED, modes=EVERY_MODE)
    write_python(root, "fixed", MISFIT, TAKES_FIXED, modes=EVERY_MODE)
    for mode in EVERY_MODE:
        (root / f"ensemble_{mode}" / "1").mkdir(parents=True)
        (root / f"ensemble_{mode}" / "config.pbtxt").write_text(ENSEMBLE.format(mode=mode, tensors=FIXED))
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serving_here(repository, options=["--strict-readiness=false"], errors=ERRORS) as running:
        yield running


@pytest.fixture(scope="module")
def frank(repository: Path) -> Iterator[Server]:
    """A server whose clients get Triton's texts."""
    options = ["--strict-readiness=false", "--backend-config=python,full-errors=true"]
    with serving_here(repository, options=options, errors=ERRORS) as running:
        yield running


def asked(server: Any, protocol: str, model: str) -> tuple[str, str]:
    response = infer(server, protocol, model, {"IN": [1]})
    return response.status, response.message


def singular(mode: str) -> str:
    return (
        f"Failed to process the request(s) for model 'singular_{mode}', message: LinAlgError: Singular matrix\n\nAt:\n"
        "  helper.py(4): inverse\n  model.py(11): one\n  model.py(9): <listcomp>\n  model.py(9): execute\n"
    )


def in_one_function(text: str) -> str:
    """Since Python 3.12, a comprehension is no function of its own."""
    return re.sub(r"  model.py\(9\): <listcomp>\n", "", text)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_an_exception_is_told_with_the_model_s_own_places(server: Server, protocol: str, mode: str) -> None:
    status, text = asked(server, protocol, f"singular_{mode}")
    assert status == {"http": "500", "grpc": "INTERNAL"}[protocol]
    assert in_one_function(text) == in_one_function(singular(mode))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_a_failed_call_of_another_model(server: Server, protocol: str, mode: str) -> None:
    _, text = asked(server, protocol, f"caller_{mode}")
    before = f"Failed to process the request(s) for model 'caller_{mode}', message: TritonModelException: "
    assert in_one_function(text) == in_one_function(f"{before}{singular(mode)}\n\nAt:\n  model.py(12): execute\n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_a_decorated_function(server: Server, protocol: str, mode: str) -> None:
    response = infer(server, protocol, f"decorated_{mode}", {"IN": ("INT64", np.array([1]))})
    assert re.fullmatch(r"JSONDecodeError: .*\n\nAt:\n  model\.py\(9\): OUT\n", response.message)


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_breaks(server: Server, repository: Path, mode: str) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        stream = Stream(client)
        client.start_stream(stream.callback)
        stream.send(f"stream_{mode}", {"IN": [1]})
        assert stream.next()["OUT"] == [0]
        text = stream.next().message
    assert re.search(r"message: JSONDecodeError: .*\n\nAt:\n  model\.py\(10\): execute\n$", text)
    body = http(server.http_port, "POST", f"/v2/models/stream_{mode}/generate_stream", b'{"IN": [1]}').body.decode()
    assert r"At:\n  model.py(10): execute\n" in body
    assert str(repository) not in body


@every_mode
def test_the_log_has_all_of_it(server: Server, repository: Path, mode: str) -> None:
    asked(server, "http", f"singular_{mode}")
    server.wait_for(rf"ERROR .*model 'singular_{mode}', .*Traceback.*LinAlgError: Singular matrix")
    (line, *_) = re.findall(rf"ERROR .*model 'singular_{mode}', .*", server.log)
    assert f'File "{repository}/singular_{mode}/1/helper.py", line 4, in inverse' in line
    assert LIBRARY.search(line)
    assert "modserve/backends" not in line


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_with_full_errors_the_text_is_triton_s(frank: Server, repository: Path, protocol: str, mode: str) -> None:
    version = repository / f"singular_{mode}" / "1"
    _, text = asked(frank, protocol, f"singular_{mode}")
    before, _, places = text.partition("\n\nAt:\n")
    assert before == singular(mode).partition("\n\nAt:\n")[0]
    assert LIBRARY.search(places.splitlines()[0])
    assert in_one_function(places).endswith(
        f"  {version}/helper.py(4): inverse\n  {version}/model.py(11): one\n"
        + f"  {version}/model.py(9): <listcomp>\n" * ("<listcomp>" in places)
        + f"  {version}/model.py(9): execute\n"
    )
    response = infer(frank, protocol, f"decorated_{mode}", {"IN": ("INT64", np.array([1]))})
    assert f"  {repository}/decorated_{mode}/1/model.py(9): OUT\n" in response.message
    assert inspect.getfile(json.decoder.JSONDecoder) in response.message


@every_mode
def test_a_model_that_cannot_be_loaded(server: Server, repository: Path, mode: str) -> None:
    """The index and the log have all that an operator needs; whoever sends requests gets the error."""
    name = f"unloadable_{mode}"
    index = {each["name"]: each for each in http(server.http_port, "POST", "/v2/repository/index").json}
    reason = index[name]["reason"]
    assert reason.startswith("Internal: LinAlgError: Singular matrix\n\nAt:\n")
    assert LIBRARY.search(reason)
    assert reason.endswith(f"\n  {repository}/{name}/1/model.py(7): initialize\n")
    expected = (
        f"Request for unknown model: '{name}' has no available versions: version 1 is at UNAVAILABLE state: "
        "Internal: LinAlgError: Singular matrix;"
    )
    for protocol in PROTOCOLS:
        assert asked(server, protocol, name)[1] == expected
    assert http(server.http_port, "GET", f"/v2/models/{name}").json["error"] == expected
    versioned = http(server.http_port, "POST", f"/v2/models/{name}/versions/1/infer", b'{"inputs": []}').json["error"]
    assert versioned.endswith("is not at ready state: Internal: LinAlgError: Singular matrix")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_an_output_of_another_shape_is_passed_on(server: Server, protocol: str, mode: str) -> None:
    for _ in range(2):
        assert infer(server, protocol, f"misfit_{mode}", {"IN": [1]})["OUT"] == [[0, 0]]
    text = (
        f"output 'OUT' of model 'misfit_{mode}' has shape [1,2], but the model configuration says [64]; "
        "it is passed on unchanged, and this output is not reported again"
    )
    eventually(lambda: text in server.log)
    assert server.log.count(text) <= int(WORKERS or 1)  # each process says it once


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_an_output_of_another_shape_in_an_ensemble(server: Server, protocol: str, mode: str) -> None:
    assert asked(server, protocol, f"ensemble_{mode}") == (
        {"http": "500", "grpc": "INTERNAL"}[protocol],
        f"in ensemble 'ensemble_{mode}', model 'misfit_{mode}' (step 1 of 2) returned output 'OUT' with shape [1,2], "
        f"but its configuration says [64]; model 'fixed_{mode}' cannot take it as input 'IN'",
    )


def test_in_the_library(repository: Path) -> None:
    with modserve.connect(repository) as client:
        for mode in EVERY_MODE:
            with pytest.raises(modserve.ModserveError) as caught:
                client.infer(f"singular_{mode}", {"IN": np.array([1], np.int32)})
            assert in_one_function(caught.value.message) == in_one_function(singular(mode))

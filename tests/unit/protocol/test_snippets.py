"""Programs to copy: each is well-formed for models of every kind, and sends what the model takes."""

import json
import shlex
from typing import Any

import pytest

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import DirectStrategy, SequenceBatching
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape
from modserve.protocol import examples
from modserve.protocol.http import infer_request
from modserve.protocol.snippets import MOST_LISTED, snippets
from modserve.testing import config


def model(datatype: Datatype = dtypes.FP32, dims: Shape = (3,), **more: Any) -> ModelConfig:
    inputs = (TensorSpec("A", datatype, dims), TensorSpec("B", datatype, dims))
    return config("it's a model", inputs=inputs, outputs=(TensorSpec("sum", datatype, dims),), **more)


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("dims", [(), (3,), (-1, 2), (8, 8), (3, 224, 224)], ids=str)
def test_programs_are_python(datatype: Datatype, dims: Shape) -> None:
    programs = snippets(model(datatype, dims), {})
    for client in ("python", "tritonclient"):
        compile(programs[client], client, "exec")
        assert len(programs[client]) < 1500
        assert '"A"' in programs[client]
        assert '["sum"]' in programs[client].replace("as_numpy", "").replace('("sum")', '["sum"]')


def test_curl_sends_the_example() -> None:
    described = model(dtypes.BYTES, (2,))
    words = shlex.split(snippets(described, {})["curl"])
    assert words[:3] == ["curl", "http://localhost:8000/v2/models/it%27s%20a%20model/infer", "-d"]
    assert json.loads(words[3]) == examples.infer(described, {})


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_curl_sends_many_elements_as_zeros(datatype: Datatype) -> None:
    described = model(datatype, (3, 10, 12))
    command = snippets(described, {})["curl"]
    words = shlex.split(command.replace("(printf", "printf").replace("; head", " ; head").replace("zero)", "zero"))
    text = words[words.index("%s") + 1].encode()
    size = int(words[words.index("-c") + 1])
    (header,) = [word for word in words if word.startswith("Inference-Header-Content-Length: ")]
    assert int(header.partition(": ")[2]) == len(text)
    request, _ = infer_request.decode_request(described.name, None, text + bytes(size), len(text), 0)
    assert {name: tensor.shape for name, tensor in request.inputs.items()} == dict.fromkeys("AB", (1, 3, 10, 12))
    assert len(command) < 800


@pytest.mark.parametrize(("size", "listed"), [(MOST_LISTED, True), (MOST_LISTED + 1, False)])
def test_clients_get_lists_up_to_a_number_of_elements(size: int, listed: bool) -> None:
    programs = snippets(model(dims=(size,)), {})
    assert ('"B": [[1, 1, ' in programs["python"]) == listed
    assert ('"B": ("FP32", np.array([[1, 1, ' in programs["tritonclient"]) == listed


def test_a_sequence_is_begun_and_ended() -> None:
    programs = snippets(model(sequence_batching=SequenceBatching(DirectStrategy())), {})
    assert '"sequence_id": 1' in programs["curl"]
    assert "parameters={'sequence_id': 1, 'sequence_start': True, 'sequence_end': True}" in programs["python"]
    assert "sequence_id=1, sequence_start=True, sequence_end=True" in programs["tritonclient"]


def test_a_decoupled_model_streams() -> None:
    programs = snippets(model(decoupled=True), {})
    assert "/infer_stream" in programs["curl"]
    assert "client.stream(" in programs["python"]
    assert "tritonclient.grpc" in programs["tritonclient"]
    compile(programs["tritonclient"], "tritonclient", "exec")

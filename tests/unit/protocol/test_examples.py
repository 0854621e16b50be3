"""Bodies to try: every call takes its own, for models of every kind."""

import json

import pytest

from modserve.core.configuration.ensemble_config import EnsembleConfig, Step
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import DirectStrategy, SequenceBatching
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape
from modserve.protocol import examples
from modserve.protocol.http import generate, infer_request, v1_predict_request
from modserve.testing import RecordingSink, config


def model(datatype: Datatype, dims: Shape, max_batch_size: int) -> ModelConfig:
    inputs = (
        TensorSpec("A", datatype, dims),
        TensorSpec("B", datatype, dims),
        TensorSpec("C", datatype, (1,), None, True),
    )
    return config(inputs=inputs, max_batch_size=max_batch_size)


def accepted(config: ModelConfig, request: InferenceRequest) -> dict[str, Shape]:
    inflight = Signature(config).accept(request, RecordingSink(), 0)
    return {name: tensor.shape for name, tensor in inflight.inputs.items()}


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("max_batch_size", [0, 8])
@pytest.mark.parametrize("dims", [(3,), (-1,), (2, -1, 3)], ids=str)
def test_each_call_takes_its_example(datatype: Datatype, dims: Shape, max_batch_size: int) -> None:
    described = model(datatype, dims, max_batch_size)
    shape = tuple(map(abs, dims))
    expected = dict.fromkeys("AB", (1, *shape) if max_batch_size else shape)
    bodies = examples.bodies(described, {})
    assert bodies.pop("note") == ""
    assert bodies.keys() == {"infer", "infer_stream", "generate", "generate_stream", "predict"}
    sent = {call: json.dumps(body).encode() for call, body in bodies.items()}
    for call in ("infer", "infer_stream"):
        request, _ = infer_request.decode_request(described.name, None, sent[call], None, 0)
        assert accepted(described, request) == expected
    for call in ("generate", "generate_stream"):
        assert accepted(described, generate.decode(described, None, sent[call], 10**6)) == expected
    tensors = v1_predict_request.decode(described, sent["predict"]).inputs
    assert accepted(described, InferenceRequest(described.name, dict(tensors))) == expected


def test_the_shape_of_a_scalar() -> None:
    scalar = config(inputs=(TensorSpec("A", dtypes.FP32, ()),), max_batch_size=0)
    bodies = examples.bodies(scalar, {})
    assert bodies["generate"] == {"A": 0}
    assert bodies["predict"] == {"inputs": {"A": 0}}


SEQUENCE = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}


def test_sequences_and_streams_have_the_calls_that_work() -> None:
    sequence = config("s", sequence_batching=SequenceBatching(DirectStrategy()))
    bodies = examples.bodies(sequence, {})
    assert "predict" not in bodies
    assert "sequences" in str(bodies["note"])
    assert SEQUENCE.items() <= dict(bodies["generate"]).items()  # type: ignore[call-overload]
    stream = examples.bodies(config(decoupled=True), {})
    assert stream.keys() == {"note", "infer_stream", "generate_stream"}
    assert "any number of times" in str(stream["note"])


def test_an_ensemble_takes_what_its_models_take() -> None:
    step = Step("s", None, {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})
    ensemble = config("e", ensemble=EnsembleConfig((step,)))
    sequence = config("s", sequence_batching=SequenceBatching(DirectStrategy()))
    assert examples.infer(ensemble, {"s": sequence})["parameters"] == SEQUENCE
    assert "parameters" not in examples.infer(ensemble, {})


def test_what_is_too_long_for_a_page() -> None:
    large = config(inputs=(TensorSpec("A", dtypes.FP32, (3, 224, 224)),))
    assert examples.bodies(large, {}) == {
        "note": "An example would have 150528 elements, too many to show. See the model's metadata."
    }

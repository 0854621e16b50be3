"""What a request may have at most, on both wires."""

import re
from typing import Any

import orjson
import pytest

from modserve.core.errors import Code, ModserveError
from modserve.pb import inference as pb
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.infer_message import from_protobuf
from modserve.protocol.http import infer_request
from modserve.protocol.limits import LIMITS


def decode_json(document: dict[str, Any]) -> None:
    infer_request.decode_request("model", None, orjson.dumps(document), None)


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ModserveError) as caught:
        call(*arguments)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


DIMENSIONS = re.compile("invalid shape for input 'IN': it has 65 dimensions, a tensor has at most 64")


@pytest.mark.parametrize(
    "source",
    [
        {"data": [1]},
        {"parameters": {"binary_data_size": 4}},
        {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}},
    ],
    ids=["JSON", "binary", "shared memory"],
)
def test_dimensions_in_json(source: dict[str, Any]) -> None:
    """To multiply a hundred thousand large dimensions takes minutes, in which nothing else runs."""
    given = {"name": "IN", "datatype": "INT32", "shape": [2**62] * 65, **source}
    assert DIMENSIONS.fullmatch(refusal(decode_json, {"inputs": [given]}))


@pytest.mark.parametrize("contents", [False, True])
def test_dimensions_in_messages(contents: bool) -> None:
    message = pb.ModelInferRequest(model_name="model")
    given = message.inputs.add(name="IN", datatype="INT32", shape=[2**62] * 65)
    if contents:
        given.contents.int_contents.append(1)
    else:
        message.raw_input_contents.append(b"1234")
    assert DIMENSIONS.fullmatch(refusal(grpc_messages.decode_request, from_protobuf(message)))


def test_inputs_and_outputs() -> None:
    count = LIMITS.tensors + 1
    some = [{"name": str(index), "datatype": "INT32", "shape": [1]} for index in range(count)]
    inputs = [{**each, "parameters": {"binary_data_size": 0}} for each in some]
    message = pb.ModelInferRequest(model_name="model")
    for index in range(count):
        message.inputs.add(name=str(index), datatype="INT32", shape=[1])
    text = f"the request has {count} inputs, at most {LIMITS.tensors} are possible"
    assert refusal(decode_json, {"inputs": inputs}) == text
    assert refusal(grpc_messages.decode_request, from_protobuf(message)) == text

    decode_json({"inputs": [], "outputs": some[1:]})
    text = text.replace("inputs", "outputs")
    assert refusal(decode_json, {"inputs": [], "outputs": some}) == text
    message = pb.ModelInferRequest(model_name="model")
    for index in range(count):
        message.outputs.add(name=str(index))
    assert refusal(grpc_messages.decode_request, from_protobuf(message)) == text


def test_parameters() -> None:
    names = [str(index) for index in range(LIMITS.parameters + 1)]
    text = f"the request has {len(names)} parameters, at most {LIMITS.parameters} are possible"
    assert refusal(decode_json, {"parameters": dict.fromkeys(names, 1), "inputs": []}) == text
    decode_json({"parameters": dict.fromkeys(names[1:], 1), "inputs": []})
    message = pb.ModelInferRequest(model_name="model")
    for name in names:
        message.parameters[name].int64_param = 1
    assert refusal(grpc_messages.decode_request, from_protobuf(message)) == text
    del message.parameters["0"]
    grpc_messages.decode_request(from_protobuf(message))

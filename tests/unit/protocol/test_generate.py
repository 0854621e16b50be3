"""The generate extension's objects, both ways. Texts and key order are those of a real Triton."""

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.protocol.http import generate
from modserve.testing import config

ROOM = 1000
LLM = config(
    "llm",
    inputs=(
        TensorSpec("text_input", dtypes.BYTES, (1,)),
        TensorSpec("stream", dtypes.BOOL, (1,)),
        TensorSpec("ids", dtypes.INT64, (-1,)),
        TensorSpec("heat", dtypes.FP32, (1,)),
        TensorSpec("half", dtypes.BF16, (1,)),
        TensorSpec("pixels", dtypes.UINT8, (-1, 2, -1)),
        TensorSpec("pair", dtypes.INT32, (2,)),
    ),
    max_batch_size=0,
)
BATCHING = config(
    "batching",
    inputs=(TensorSpec("text_input", dtypes.BYTES, (1,)), TensorSpec("ids", dtypes.INT64, (-1,))),
    max_batch_size=8,
)


def decode(document: Any, model: Any = LLM) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return generate.decode(model, None, body, ROOM)


@pytest.mark.parametrize(
    ("name", "value", "shape", "elements"),
    [
        ("text_input", "hello", (1,), [b"hello"]),
        ("text_input", "", (1,), [b""]),
        ("text_input", ["héé"], (1,), ["héé".encode()]),
        ("text_input", [["deep"]], (1,), [b"deep"]),
        ("stream", True, (1,), [True]),
        ("ids", 7, (1,), [7]),
        ("ids", [1, 2, 3], (3,), [1, 2, 3]),
        ("ids", [], (0,), []),
        ("ids", [[1], [2]], (2,), [1, 2]),
        ("heat", 1, (1,), [1.0]),
        ("heat", 0.5, (1,), [0.5]),
        ("heat", math.inf, (1,), [math.inf]),
        ("half", 1.5, (1,), [1.5]),
        ("pixels", [1, 2, 3, 4], (1, 2, 2), [1, 2, 3, 4]),
        ("pixels", [[[1], [2]], [[3], [4]]], (2, 2, 1), [1, 2, 3, 4]),
        ("pair", [1, 2], (2,), [1, 2]),
    ],
    ids=str,
)
def test_an_input(name: str, value: object, shape: tuple[int, ...], elements: list[object]) -> None:
    tensor = decode({name: value}).inputs[name]
    assert (tensor.datatype, tensor.shape) == (LLM.inputs_by_name[name].datatype, shape)
    assert tensor.array.ravel().tolist() == elements


@pytest.mark.parametrize(
    ("name", "value", "shape"),
    [
        ("text_input", "a", (1, 1)),
        ("text_input", ["a", "b"], (2, 1)),
        ("text_input", [["a"], ["b"]], (2, 1)),
        ("ids", [1, 2, 3], (1, 3)),
        ("ids", [[1, 2], [3, 4]], (2, 2)),
        ("ids", [[[1, 2]]], (1, 2)),
    ],
    ids=str,
)
def test_an_input_of_a_model_that_batches(name: str, value: object, shape: tuple[int, ...]) -> None:
    assert decode({name: value}, BATCHING).inputs[name].shape == shape


def test_nan() -> None:
    found = decode(b'{"heat": NaN, "temperature": NaN}')
    assert math.isnan(found.inputs["heat"].array[0])
    assert math.isnan(found.parameters["temperature"])


def test_what_is_no_input_is_a_parameter() -> None:
    found = decode(
        {
            "id": "q",
            "text_input": "a",
            "foo": "bar",
            "timeout": 30,
            "sequence_id": True,
            "parameters": {"k": 1, "x": 0.5, "ids": [1, 2], "big": 2**63},
        }
    )
    assert found.id == "q"
    assert found.parameters == {
        "id": "q",
        "foo": "bar",
        "timeout": 30,
        "sequence_id": True,
        "k": 1,
        "x": 0.5,
        "big": float(2**63),
    }
    assert [type(found.parameters[name]) for name in ("k", "big")] == [int, float]
    assert set(found.inputs) == {"text_input", "ids"}
    assert (found.outputs, found.deadline_ns, found.model_name) == ((), 0, "llm")


NO_SHAPE = (
    "The schema can not convert input '{}' to tensor with proper shape: its value has {}, and the input's shape is {}"
)
WRONG_ELEMENT = "Unable to parse 'data': attempt to access JSON non-{}: element 0 of input '{}' is {}"
NO_PARAMETER = "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."
TWICE = "[request id: <id_unknown>] input 'text_input' already exists in request"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", "attempt to access JSON non-object as object"),
        (b"null", "attempt to access JSON non-object as object"),
        ({"id": 1}, "Unable to parse 'id': attempt to access JSON non-string as string: 'id' is the number 1"),
        ({"id": None}, "Unable to parse 'id': attempt to access JSON non-string as string: 'id' is null"),
        (
            {"text_input": 123},
            WRONG_ELEMENT.format("string as string", "text_input", "the number 123, but BYTES takes strings"),
        ),
        (
            {"text_input": None},
            WRONG_ELEMENT.format("string as string", "text_input", "null, but BYTES takes strings"),
        ),
        (
            {"stream": "false"},
            WRONG_ELEMENT.format("boolean as boolean", "stream", "a string, but BOOL takes true or false"),
        ),
        (
            {"ids": ["x"]},
            WRONG_ELEMENT.format("signed-integer as signed-integer", "ids", "a string, but INT64 takes integers"),
        ),
        (
            {"pair": {"a": 1}},
            NO_SHAPE.format("pair", "1 element", "[2]"),
        ),
        (
            {"heat": {"a": 1}},
            WRONG_ELEMENT.format("number as double", "heat", "an object, but FP32 takes numbers"),
        ),
        (
            {"pixels": [1, 300]},
            "Unable to parse 'data': element 1 of input 'pixels' is 300, UINT8 takes 0 to 255",
        ),
        ({"pair": [1, 2, 3]}, NO_SHAPE.format("pair", "3 elements", "[2]")),
        ({"pair": [1, 2, 3, 4]}, NO_SHAPE.format("pair", "4 elements", "[2]")),
        ({"pair": []}, NO_SHAPE.format("pair", "0 elements", "[2]")),
        ({"text_input": ["a", "b"]}, NO_SHAPE.format("text_input", "2 elements", "[1]")),
        (
            {"pixels": [[[1], [2]], [[3]]]},
            "Failed to parse 'data' field: shape does not match true shape: input 'pixels' has 3 elements, its shape 4",
        ),
        ({"x": None}, NO_PARAMETER),
        ({"x": [1]}, NO_PARAMETER),
        ({"x": {}}, NO_PARAMETER),
        ({"parameters": {"x": {}}}, f"Converting keyword: 'parameters': {NO_PARAMETER}"),
        (
            {"parameters": {"pair": [1]}},
            f"Converting keyword: 'parameters': {NO_SHAPE.format('pair', '1 element', '[2]')}",
        ),
        (
            {"parameters": {"parameters": {}}},
            f"Converting keyword: 'parameters': {NO_PARAMETER.replace('x', 'parameters')}",
        ),
        (
            {"parameters": [1]},
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object: "
            "'parameters' is a list",
        ),
        ({"text_input": "a", "parameters": {"text_input": "b"}}, f"Converting keyword: 'parameters': {TWICE}"),
        (b'{"text_input": "a", "text_input": "b"}', TWICE),
        (b'{"text_input": "a", "t\\u0065xt_input": "b"}', TWICE),
        (b'{"parameters": {"text_input": "a", "text_input": "b"}}', f"Converting keyword: 'parameters': {TWICE}"),
        (
            {"ids": [0] * 100, "pixels": [0] * 202},
            "request size of 800 bytes with input 'pixels' of size 202 bytes exceeds the maximum allowed input size "
            "of 1000. Use --http-max-input-size to increase the limit.",
        ),
        (
            {"text_input": "x" * 997},
            "request size of 0 bytes with input 'text_input' of size 1001 bytes exceeds the maximum allowed input "
            "size of 1000. Use --http-max-input-size to increase the limit.",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_request(document: object, message: str) -> None:
    with pytest.raises(ModserveError) as caught:
        decode(document)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


def test_a_prompt_with_the_name_of_an_input_in_it() -> None:
    found = decode({"text_input": 'say "text_input"', "note": "text_input", "more": ["text_input"][0]})
    assert found.inputs["text_input"].array.tolist() == [b'say "text_input"']
    assert found.parameters == {"note": "text_input", "more": "text_input"}


def test_an_input_with_the_name_of_the_keyword() -> None:
    model = config("odd", inputs=(TensorSpec("parameters", dtypes.INT32, (1,)),))
    with pytest.raises(
        ModserveError, match=r"^Keyword 'parameters' for nested schema also given as input tensor name$"
    ):
        decode({"parameters": 1}, model)


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity"])
def test_a_body_as_it_is(encoding: str | None) -> None:
    generate.check_encoding(encoding)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_body_in_a_coding(encoding: str) -> None:
    with pytest.raises(ModserveError) as caught:
        generate.check_encoding(encoding)
    assert caught.value.message == "Unsupported content-encoding, only 'identity' is supported."


def response(parameters: Any = None, id: str = "", **outputs: Any) -> InferenceResponse:
    tensors = {name: Tensor.from_array(np.array(value)) for name, value in outputs.items()}
    return InferenceResponse("m", 3, tensors, id, parameters or {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (response(OUT=[[7]]), b'{"OUT":7,"model_name":"m","model_version":"3"}'),
        (response(OUT=[[1, 2], [3, 4]]), b'{"OUT":[1,2,3,4],"model_name":"m","model_version":"3"}'),
        (response(OUT=np.zeros(0, np.int32)), b'{"OUT":[],"model_name":"m","model_version":"3"}'),
        (response(id="q"), b'{"id":"q","model_name":"m","model_version":"3"}'),
        (
            response(text_output=[b'say "hi"'], Z=[True, False]),
            b'{"Z":[true,false],"model_name":"m","model_version":"3","text_output":"say \\"hi\\""}',
        ),
        (
            response({"cost": 0.5, "last": True, "n": math.nan}, OUT=[np.float32(math.nan)]),
            b'{"OUT":NaN,"cost":0.5,"last":true,"model_name":"m","model_version":"3","n":NaN}',
        ),
        (
            response({"model_name": "p", "id": "p", "OUT": 1}, id="q", OUT=[2], model_version=[3]),
            b'{"OUT":1,"id":"q","model_name":"m","model_version":"3"}',
        ),
        (response(OUT=np.array([1.5], ml_dtypes.bfloat16)), b'{"OUT":1.5,"model_name":"m","model_version":"3"}'),
    ],
    ids=["scalar", "flat", "empty", "id", "strings", "parameters", "names-taken", "bf16"],
)
def test_a_response(given: InferenceResponse, expected: bytes) -> None:
    assert generate.encode(given) == expected


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(ModserveError, match=r"output 'OUT' holds bytes that are not UTF-8.*in a call of infer"):
        generate.encode(response(OUT=[b"\xff"]))


def test_there_are_not_too_many_values() -> None:
    """They are parsed in one go, in which no other thread runs."""
    with pytest.raises(ModserveError, match="values, keys, lists and objects, at most 500000 are possible"):
        generate.decode(config("m"), None, b'{"text":[%b]}' % b",".join([b"0"] * 500_000), 2**30)

"""The bodies of ``:predict``: bytes in, tensors or a message; tensors in, bytes."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from datatype_samples import IDS, SAMPLES, Sample

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, Tensor
from modserve.protocol import limits
from modserve.protocol.http import v1_predict_request, v1_predict_response
from modserve.protocol.json import cut_json, json_text, long_array
from modserve.testing import config


def spec(name: str, datatype: Datatype = dtypes.INT32, dims: Shape = (2,), optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, dims, optional=optional)


def model(*inputs: TensorSpec, max_batch_size: int = 4) -> ModelConfig:
    return config("m", inputs=inputs, max_batch_size=max_batch_size)


ONE = model(spec("x"))
FLOATS = model(spec("x", dtypes.FP32))
TEXTS = model(spec("x", dtypes.BYTES))
TWO = model(spec("a"), spec("b", dtypes.FP32, (1,)))
OPTIONAL = model(spec("a"), spec("b", dtypes.INT32, (1,), optional=True))


@pytest.mark.parametrize(
    ("given", "body", "expected"),
    [
        (ONE, '{"instances": [[1, 2], [3, 4], [5, 6]]}', {"x": [[1, 2], [3, 4], [5, 6]]}),
        (ONE, '{"instances": [{"x": [1, 2]}]}', {"x": [[1, 2]]}),
        (ONE, '{"instances": [1, 2]}', {"x": [1, 2]}),
        (ONE, '{"instances": [[], []]}', {"x": [[], []]}),
        (ONE, '{"inputs": [[1, 2]]}', {"x": [[1, 2]]}),
        (ONE, '{"inputs": {"x": [[1, 2]]}}', {"x": [[1, 2]]}),
        (ONE, '{"inputs": 7}', {"x": 7}),
        (ONE, '{"inputs": []}', {"x": []}),
        (ONE, '{"instances": [[1, 2]], "signature_name": "serving_default"}', {"x": [[1, 2]]}),
        (ONE, '{"instances": [[1, 2]], "signature_name": "", "parameters": {}}', {"x": [[1, 2]]}),
        (ONE, '{"instances": [[1, 2]], "signature_name": null}', {"x": [[1, 2]]}),
        (ONE, '{"instances": [[[[1]], [[2]]]]}', {"x": [[[[1]], [[2]]]]}),
        (TWO, '{"instances": [{"a": [1, 2], "b": [0.5]}, {"b": [2], "a": [3, 4]}]}',
            {"a": [[1, 2], [3, 4]], "b": [[0.5], [2]]}),
        (TWO, '{"inputs": {"a": [[1, 2]], "b": [[0.5], [1.5], [2.5]]}}', {"a": [[1, 2]], "b": [[0.5], [1.5], [2.5]]}),
        (OPTIONAL, '{"instances": [[1, 2]]}', {"a": [[1, 2]]}),
        (OPTIONAL, '{"instances": [{"a": [1, 2]}]}', {"a": [[1, 2]]}),
        (OPTIONAL, '{"instances": [{"a": [1, 2], "b": [3]}]}', {"a": [[1, 2]], "b": [[3]]}),
        (OPTIONAL, '{"inputs": [[1, 2]]}', {"a": [[1, 2]]}),
        (OPTIONAL, '{"inputs": {"a": [[1, 2]]}}', {"a": [[1, 2]]}),
        (FLOATS, '{"instances": [[1, -0.5]]}', {"x": [[1.0, -0.5]]}),
        (FLOATS, '{"instances": [[1e39, -Infinity]]}', {"x": [[float("inf"), float("-inf")]]}),
        (TEXTS, '{"instances": ["a", "é"]}', {"x": [b"a", "é".encode()]}),
        (TEXTS, '{"instances": [{"b64": "/wA="}, "b"]}', {"x": [b"\xff\0", b"b"]}),
        (TEXTS, '{"instances": [{"x": [{"b64": " /w\\nA"}, ""]}]}', {"x": [[b"\xff\0", b""]]}),
        (TEXTS, '{"inputs": {"b64": "YQ=="}}', {"x": b"a"}),
        (model(spec("b64")), '{"inputs": {"b64": [[1, 2]]}}', {"b64": [[1, 2]]}),
    ],
)  # fmt: skip
def test_requests(given: ModelConfig, body: str, expected: dict[str, Any]) -> None:
    found = v1_predict_request.decode(given, body.encode())
    assert found.rows == ("instances" in body)
    assert {name: tensor.array.tolist() for name, tensor in found.inputs.items()} == expected
    for name, tensor in found.inputs.items():
        assert tensor.datatype is given.inputs_by_name[name].datatype
        assert (tensor.shape, tensor.array.dtype) == (tensor.array.shape, tensor.datatype.numpy)


def test_not_a_number() -> None:
    array = v1_predict_request.decode(FLOATS, b'{"instances": [[NaN, 1]]}').inputs["x"].array
    assert np.isnan(array).tolist() == [[True, False]]


NAMES = "its inputs are 'a', 'b'"


@pytest.mark.parametrize(
    ("given", "body", "message"),
    [
        (ONE, "[1]", "the request body must be an object with 'instances' or 'inputs', but is a list"),
        (ONE, "", "failed to parse the request JSON buffer: Expecting value at 0"),
        (ONE, '{"instances": [[1, 2]', "failed to parse the request JSON buffer: Expecting ',' delimiter at 21"),
        (ONE, "{}", "Missing 'inputs' or 'instances' key: the request has no keys"),
        (ONE, '{"instance": [], "id": 1}', "Missing 'inputs' or 'instances' key: the request has 'instance', 'id'"),
        (ONE, '{"instances": [[1, 2]], "inputs": [[1, 2]]}',
            "the request has both 'instances' (row format) and 'inputs' (column format): give one of them"),
        (ONE, '{"instances": {"x": [1, 2]}}', "'instances' must be a list, but is an object"),
        (ONE, '{"instances": null}', "'instances' must be a list, but is null"),
        (ONE, '{"instances": []}', "No values in 'instances' list: give at least one instance"),
        (ONE, '{"instances": [[1, 2]], "signature_name": 1}', "'signature_name' must be a string, but is the number 1"),
        (ONE, '{"instances": [[1, 2]], "signature_name": "regress_x"}',
            'Serving signature name: "regress_x" not found in signature def: each model has one signature, '
            '"serving_default"'),
        (ONE, '{"instances": [[1, 2], [3]]}',
            "instances[1] has 1 elements where instances[0] has 2: lists of one depth must have one length"),
        (ONE, '{"instances": [[[1, 2], [3, 4]], [[5, 6], [7]]]}',
            "instances[1][1] has 1 elements where instances[0][0] has 2: lists of one depth must have one length"),
        (ONE, '{"instances": [[1, 2], 3]}',
            "instances[1] is the number 3 where instances[0] is a list: lists must be nested evenly"),
        (ONE, '{"instances": [[1, [2]]]}',
            "instances[0][1] is a list where instances[0][0] is the number 1: lists must be nested evenly"),
        (ONE, '{"instances": [[1], [2], [3, 4, 5], [6]]}',
            "instances[2] has 3 elements where instances[0] has 1: lists of one depth must have one length"),
        (ONE, '{"instances": [[1, 2], {"x": [1, 2]}]}',
            "instances[1] is an object where instances[0] is a list: give either objects by input name or values, "
            "not both"),
        (ONE, '{"instances": [{"x": [1, 2]}, [1, 2]]}',
            "instances[1] is a list where instances[0] is an object: give either objects by input name or values, "
            "not both"),
        (ONE, '{"instances": [{"y": [1, 2]}]}',
            "instances[0] has the key 'y', which is not an input of model 'm': its inputs are 'x'"),
        (ONE, '{"instances": [[1, 2], [3, 4.5]]}',
            "instances[1][1] is the number 4.5, but input 'x' of datatype INT32 takes integers"),
        (ONE, '{"instances": [[1, true]]}', "instances[0][1] is true, but input 'x' of datatype INT32 takes integers"),
        (ONE, '{"instances": [[1, null]]}', "instances[0][1] is null, but input 'x' of datatype INT32 takes integers"),
        (ONE, '{"instances": [[1, "2"]]}',
            "instances[0][1] is a string, but input 'x' of datatype INT32 takes integers"),
        (ONE, '{"instances": [[{"b64": "YQ=="}]]}',
            "instances[0][0] is an object, but input 'x' of datatype INT32 takes integers"),
        (ONE, '{"instances": [[1, 2147483648]]}',
            "instances[0][1] is the number 2147483648, but input 'x' of datatype INT32 takes "
            "-2147483648 to 2147483647"),
        (ONE, '{"inputs": {"x": [[1, -2147483649]]}}',
            "inputs['x'][0][1] is the number -2147483649, but input 'x' of datatype INT32 takes "
            "-2147483648 to 2147483647"),
        (model(spec("x", dtypes.BOOL)), '{"instances": [[1]]}',
            "instances[0][0] is the number 1, but input 'x' of datatype BOOL takes true or false"),
        (FLOATS, '{"instances": [[1, "NaN"]]}',
            "instances[0][1] is a string, but input 'x' of datatype FP32 takes numbers"),
        (FLOATS, '{"instances": [[NaN, false]]}',
            "instances[0][1] is false, but input 'x' of datatype FP32 takes numbers"),
        (FLOATS, '{"instances": [[NaN, 1%s]]}' % ("0" * 400),
            "instances[0][1] is the number 10000000000000000000000000000000..., but input 'x' of datatype FP32 takes "
            "numbers of up to 1.8e308"),
        (TEXTS, '{"instances": [1]}',
            "instances[0] is the number 1, but input 'x' of datatype BYTES takes strings, or "
            '{"b64": "<base64>"} for bytes of any kind'),
        (TEXTS, '{"instances": [["a", {"b64": 1}]]}',
            "instances[0][1] is an object, but input 'x' of datatype BYTES takes strings, or "
            '{"b64": "<base64>"} for bytes of any kind'),
        (TEXTS, '{"instances": [["a"], [{"b64": "Y"}]]}',
            "instances[1][0] is not valid base64: it is cut: it ends with 1 of four characters and 0 of padding"),
        (TEXTS, '{"instances": [{"x": [{"b64": "/wA"}, {"b64": "_"}]}]}', 
            "instances[0]['x'][1] is not valid base64: it is cut: it ends with 1 of four characters and 0 of padding"),
        (TEXTS, '{"instances": [{"b64": "Y*=="}]}',
            "instances[0] is not valid base64: byte 0x2a at position 1 is not of Base64"),
        (TEXTS, '{"instances": [{"b64": "\u00e9"}]}',
            "instances[0] is not valid base64: byte 0xc3 at position 0 is not of Base64"),
        (TWO, '{"instances": [[1, 2]]}',
            "'instances' is a list of values, but model 'm' has 2 inputs: give a list of objects with the keys "
            "'a', 'b'"),
        (TWO, '{"inputs": [[1, 2]]}',
            "'inputs' is one value, but model 'm' has 2 inputs: give an object with the keys 'a', 'b'"),
        (TWO, '{"inputs": [{"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}]}',
            "'inputs' is a list of tensors of the v2 protocol, whose requests go to /v2/models/m/infer: "
            "give an object with the keys 'a', 'b'"),
        (TWO, '{"instances": [{"a": [1, 2], "b": [1]}, {"a": [1, 2]}]}',
            "instances[1] lacks the key 'b', a required input of model 'm'"),
        (TWO, '{"instances": [{"a": [1, 2]}, {"a": [1, 2], "b": [1]}]}',
            "instances[0] lacks the key 'b', a required input of model 'm'"),
        (TWO, '{"instances": [{"a": [1, 2], "b": [1]}, {"a": [1, 2], "b": [1], "c": 1}]}',
            f"instances[1] has the key 'c', which is not an input of model 'm': {NAMES}"),
        (TWO, '{"instances": [{}]}', "instances[0] lacks the key 'a', a required input of model 'm'"),
        (TWO, '{"instances": [{"a": [1, 2], "b": [1]}, {"a": [1], "b": [1]}]}',
            "instances[1]['a'] has 1 elements where instances[0]['a'] has 2: lists of one depth must have one length"),
        (TWO, '{"instances": [{"a": [1, 2], "b": [1]}, {"a": [1, 2], "b": ["1"]}]}',
            "instances[1]['b'][0] is a string, but input 'b' of datatype FP32 takes numbers"),
        (TWO, '{"inputs": {"a": [[1, 2]]}}', "'inputs' lacks the key 'b', a required input of model 'm'"),
        (TWO, '{"inputs": {"a": [[1, 2]], "b": [[1]], "c": 1}}',
            f"'inputs' has the key 'c', which is not an input of model 'm': {NAMES}"),
        (TWO, '{"inputs": {"a": [[1, 2], [3]], "b": [[1]]}}',
            "inputs['a'][1] has 1 elements where inputs['a'][0] has 2: lists of one depth must have one length"),
        (OPTIONAL, '{"instances": [{"a": [1, 2]}, {"a": [1, 2], "b": [1]}]}',
            "input 'b' is in some of the instances only: see instances[0] and instances[1]"),
        (OPTIONAL, '{"instances": [{"a": [1, 2], "b": [1]}, {"a": [1, 2]}]}',
            "input 'b' is in some of the instances only: see instances[0] and instances[1]"),
        (ONE, f'{{"inputs": {"[" * 65}1{"]" * 65}}}', "the lists in 'inputs' are nested more than 64 deep"),
    ],
)  # fmt: skip
def test_wrong_requests(given: ModelConfig, body: str, message: str) -> None:
    with pytest.raises(ModserveError) as caught:
        v1_predict_request.decode(given, body.encode())
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


BOOLEANS = model(spec("x", dtypes.BOOL))
MANY = {
    "rows": (ONE, [[index, -index] for index in range(60)]),
    "one row": (FLOATS, [[index / 3 for index in range(120)]]),
    "values": (FLOATS, [float("nan"), 1, float("inf"), -1e300, *range(100)]),
    "booleans": (BOOLEANS, [[True, False, True]] * 40),
    "four dimensions": (FLOATS, np.arange(120).reshape(3, 4, 5, 2).tolist()),
    "lengths of one": (FLOATS, [[[index]] for index in range(100)]),
    "a number out of range": (ONE, [[1, 2]] * 50 + [[2, 2**31]]),
    "a fraction": (ONE, [[1, 2]] * 50 + [[2, 0.5]]),
    "null": (FLOATS, [[1, 2]] * 50 + [[2, None]]),
}
UNEVEN = {
    "a long row": [[1, 2]] * 50 + [[1, 2, 3]],
    "a short row": [[1, 2]] * 50 + [[1]],
    "a number": [[1, 2]] * 50 + [1],
    "a list": [[1, 2]] * 50 + [[1, [2]]],
    "empty lists": [[]] * 100,
    "an empty list": [[1, 2]] * 50 + [[1, []]],
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of little JSON is said that it is much."""
    monkeypatch.setattr(limits, "LIMITS", replace(limits.LIMITS, parsed_parts=30))
    monkeypatch.setattr(cut_json, "WORTHWHILE", 20)
    monkeypatch.setattr(long_array, "_PIECE", 50)


def bodies(data: Any) -> list[bytes]:
    documents = ({"instances": data}, {"inputs": data, "signature_name": ""}, {"inputs": {"x": data}}, {"inputs": data})
    return [json.dumps(document, indent=index % 2 or None).encode() for index, document in enumerate(documents)]


def outcome(given: ModelConfig, body: bytes) -> Any:
    try:
        found = v1_predict_request.decode(given, body)
    except ModserveError as error:
        return error.code, error.message
    return found.rows, {name: (tensor.shape, bytes(tensor.raw)) for name, tensor in found.inputs.items()}


@pytest.mark.parametrize("case", MANY)
def test_many_numbers_are_read_in_pieces_to_the_same_end(
    case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, data = MANY[case]
    expected = [outcome(given, body) for body in bodies(data)]
    request.getfixturevalue("few")
    sizes: list[int] = []
    parse = json_text.parse_any

    def measured(text: bytes, *more: Any) -> object:
        sizes.append(len(text))
        return parse(text, *more)

    for module in (cut_json, long_array, json_text):
        monkeypatch.setattr(module, "parse_any", measured)
    assert [outcome(given, body) for body in bodies(data)] == expected
    assert max(sizes) < 1000


@pytest.mark.parametrize("case", UNEVEN)
@pytest.mark.usefixtures("few")
def test_many_numbers_that_are_no_tensor(case: str) -> None:
    for body, name in zip(bodies(UNEVEN[case]), ("instances", "inputs", "inputs['x']", "inputs"), strict=True):
        code, message = outcome(FLOATS, body)
        assert code is Code.INVALID_ARG
        assert message.startswith(f"the lists in {name} are not nested evenly, see element ")


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances":[%b]}' % b",".join([b'{"x":[1,2]}'] * 20),
        b'{"instances":[%b]}' % b",".join([b'"text"'] * 40),
        b'{"inputs":{"y":[%b]}}' % b",".join([b"1"] * 40),
        b'{"x":[%b]}' % b",".join([b"1"] * 40),
        b"[%b]" % b",".join([b"{}"] * 40),
        b'{"inputs":{%b}}' % b",".join([b'"y":1'] * 40),
    ],
    ids=["objects", "texts", "of no input", "nowhere", "no object", "members"],
)
@pytest.mark.usefixtures("few")
def test_other_json_is_limited(body: bytes) -> None:
    _, message = outcome(FLOATS, body)
    assert "values, keys, lists and objects beside whole tensors of numbers, at most 30 are possible" in message


@pytest.mark.parametrize("datatype", [row for row in dtypes.ALL if row.json_kind == "int"], ids=repr)
def test_the_ends_of_integers(datatype: Datatype) -> None:
    bounds = np.iinfo(datatype.numpy)
    given = model(spec("x", datatype))
    values = [int(bounds.min), int(bounds.max)]
    assert (
        v1_predict_request.decode(given, json.dumps({"inputs": values}).encode()).inputs["x"].array.tolist() == values
    )
    if bounds.bits < 64:
        with pytest.raises(ModserveError, match=rf"inputs\[1\] is the number {bounds.max + 1}, .* {bounds.max}$"):
            v1_predict_request.decode(given, json.dumps({"inputs": [0, int(bounds.max) + 1]}).encode())


# Parts


@pytest.mark.parametrize(
    ("given", "sizes", "expected"),
    [
        (model(spec("a"), spec("b")), (4, 4), [4]),
        (model(spec("a"), spec("b")), (9, 9), [4, 4, 1]),
        (model(spec("a"), spec("b")), (8, 8), [4, 4]),
        (model(spec("a"), spec("b")), (9, 1), [9]),
        (model(spec("a"), spec("b")), (0, 0), [0]),
        (model(spec("a"), spec("b"), max_batch_size=0), (9, 9), [9]),
        (model(spec("a"), spec("b"), max_batch_size=1), (3, 3), [1, 1, 1]),
    ],
    ids=["it fits", "a rest", "no rest", "different sizes", "empty", "no batches", "one at a time"],
)
def test_parts(given: ModelConfig, sizes: tuple[int, int], expected: list[int]) -> None:
    arrays = {name: np.arange(2 * size).reshape(size, 2) for name, size in zip("ab", sizes, strict=True)}
    tensors = {name: Tensor.from_array(array) for name, array in arrays.items()}
    parts = list(v1_predict_request.batches(given, tensors))
    assert [part["a"].shape for part in parts] == [(size, 2) for size in expected]
    for name, array in arrays.items():
        assert np.array_equal(np.concatenate([part[name].array for part in parts]), array)


def test_a_scalar_is_one_part() -> None:
    tensors = {"x": Tensor.from_array(np.array(7))}
    assert list(v1_predict_request.batches(ONE, tensors)) == [tensors]


# Answers


def outputs(**arrays: Any) -> Mapping[str, Tensor]:
    return {name: Tensor.from_array(np.asarray(array)) for name, array in arrays.items()}


def texts(*elements: bytes, shape: Shape = (-1,)) -> Tensor:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return Tensor.from_array(array.reshape(shape))


F32 = np.array([[0.1], [2]], np.float32)


@pytest.mark.parametrize(
    ("parts", "rows", "expected"),
    [
        ([outputs(y=[[1, 2], [3, 4]])], True, '{"predictions":[[1,2],[3,4]]}'),
        ([outputs(y=[[1, 2], [3, 4]])], False, '{"outputs":[[1,2],[3,4]]}'),
        ([outputs(y=[1, 2], z=[True, False])], True, '{"predictions":[{"y":1,"z":true},{"y":2,"z":false}]}'),
        ([outputs(y=[1, 2], z=[[True], [False]])], False, '{"outputs":{"y":[1,2],"z":[[true],[false]]}}'),
        ([outputs(y=F32)], True, '{"predictions":[[0.1],[2.0]]}'),
        ([outputs(y=F32, z=F32)], True, '{"predictions":[{"y":[0.1],"z":[0.1]},{"y":[2.0],"z":[2.0]}]}'),
        ([outputs(y=[1.5, np.nan, np.inf, -np.inf])], True, '{"predictions":[1.5,NaN,Infinity,-Infinity]}'),
        ([outputs(y=[np.nan], z=[3])], True, '{"predictions":[{"y":NaN,"z":3}]}'),
        ([{**outputs(y=[np.nan]), "z": texts("é".encode())}], True, '{"predictions":[{"y":NaN,"z":"é"}]}'),
        ([outputs(y=np.nan, z=3)], False, '{"outputs":{"y":NaN,"z":3}}'),
        ([outputs(y=2.5)], False, '{"outputs":2.5}'),
        ([outputs(y=np.zeros((0, 2)))], False, '{"outputs":[]}'),
        ([outputs(y=np.zeros((2, 0)))], True, '{"predictions":[[],[]]}'),
        ([outputs(y=np.arange(4).reshape(2, 2).T)], True, '{"predictions":[[0,2],[1,3]]}'),
        ([{"y": texts(b"a", b"b")}], True, '{"predictions":["a","b"]}'),
        ([{"y": texts(b"a", b"b", shape=(2, 1))}], False, '{"outputs":[["a"],["b"]]}'),
        ([{"y_bytes": texts(b"\xff\0", b"")}], True, '{"predictions":[{"b64":"/wA="},{"b64":""}]}'),
        ([{"y_bytes": texts(b"a"), "z": texts(b"b")}], False, '{"outputs":{"y_bytes":[{"b64":"YQ=="}],"z":["b"]}}'),
        ([outputs(y_bytes=[1])], True, '{"predictions":[1]}'),
        ([outputs(y=[[1], [2]]), outputs(y=[[3]])], True, '{"predictions":[[1],[2],[3]]}'),
        ([outputs(y=[[1], [2]]), outputs(y=[[3]])], False, '{"outputs":[[1],[2],[3]]}'),
        ([outputs(y=[[1]]), outputs(y=[[2, 3]])], True, '{"predictions":[[1],[2,3]]}'),
        ([outputs(y=[[1.0]]), outputs(y=[[np.nan, 3]])], True, '{"predictions":[[1.0],[NaN,3.0]]}'),
        ([{"y": texts(b"a")}, {"y": texts(b"b")}], True, '{"predictions":["a","b"]}'),
        ([{"y": texts(b"a", shape=(1, 1))}, {"y": texts(b"b", b"c", shape=(1, 2))}], True,
            '{"predictions":[["a"],["b","c"]]}'),
    ],
)  # fmt: skip
def test_answers(parts: list[Mapping[str, Tensor]], rows: bool, expected: str) -> None:
    assert v1_predict_response.encode(parts, rows).decode() == expected


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (24, 1), (4, 6), (2, 3, 4), (1, 1, 24), (3, 0)], ids=repr)
def test_long_answers_are_written_in_pieces(shape: Shape, rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    some = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) / 3
    for first in (0.1, np.nan):
        some.reshape(-1)[:1] = first
        for parts in ([outputs(y=some)], [outputs(y=some, z=some)], [outputs(y=some), outputs(y=some)]):
            monkeypatch.setattr(v1_predict_response, "_AT_A_TIME", 2**30)
            whole = v1_predict_response.encode(parts, rows)
            for size in (1, 5, 7):
                monkeypatch.setattr(v1_predict_response, "_AT_A_TIME", size)
                assert v1_predict_response.encode(parts, rows) == whole


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
def test_every_datatype_there_and_back(sample: Sample, rows: bool) -> None:
    tensor = sample.tensor
    name = "x_bytes"
    answer = json.loads(v1_predict_response.encode([{name: tensor}], rows))
    body = {"instances": answer["predictions"]} if rows else {"inputs": answer["outputs"]}
    found = v1_predict_request.decode(model(spec(name, sample.datatype)), json.dumps(body).encode())
    assert bytes(found.inputs[name].raw) == bytes(tensor.raw)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            outputs(y=[1, 2], z=[1]),
            "the outputs do not have the same first dimension ('y' 2, 'z' 1), so they cannot be given as "
            "'predictions': ask with 'inputs' (column format)",
        ),
        (
            outputs(y=1),
            "the outputs do not have the same first dimension ('y' none), so they cannot be given as "
            "'predictions': ask with 'inputs' (column format)",
        ),
        (
            {"y": texts(b"\xff")},
            "output 'y' holds bytes that are not UTF-8: only outputs whose names end in '_bytes' are sent as base64 "
            "here, /v2/models/.../infer sends any as binary data",
        ),
    ],
    ids=["different sizes", "a scalar", "not UTF-8"],
)
def test_answers_that_can_not_be_written(part: Mapping[str, Tensor], message: str) -> None:
    with pytest.raises(ModserveError) as caught:
        v1_predict_response.encode([part], True)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)

"""Large JSON requests are read in another way, and to the same end."""

import json
import re
from typing import Any

import numpy as np
import orjson
import pytest

from modserve.core.errors import ModserveError
from modserve.protocol.http import infer_request
from modserve.protocol.json import cut_json, large_json, long_array

ROWS = 4096
NUMBERS = np.random.default_rng(1).normal(size=(ROWS, 4)).round(6)


def body(data: Any, datatype: Any = "FP32", shape: Any = (ROWS, 4), **more: Any) -> bytes:
    given = {"name": "IN", "datatype": datatype, "shape": shape, "parameters": {"a": [1]}, "data": data, **more}
    small = {"name": "S", "datatype": "BYTES", "shape": [2], "data": ["x", "é"]}
    return orjson.dumps({"id": "7", "parameters": {"p": 1.5}, "inputs": [given, small], "outputs": [{"name": "O"}]})


GOOD = {
    "flat": body(NUMBERS.ravel().tolist()),
    "nested": body(NUMBERS.tolist()),
    "FP16": body(NUMBERS.tolist(), "FP16"),
    "BF16": body(NUMBERS.tolist(), "BF16"),
    "whole numbers for floats": body([[1, 2, 3, 4]] * ROWS, "FP64"),
    "INT64": body([[2**62, -1, 0, 9007199254740993]] * ROWS, "INT64"),
    "UINT64": body([[2**64 - 1, 1, 0, 3]] * ROWS, "UINT64"),
    "INT8": body([[127, -128, 0, 1]] * ROWS, "INT8"),
    "BOOL": body([[True, False, True, True]] * ROWS, "BOOL"),
    "beyond FP32": body([[1e300, -1e300, 0, 1]] * ROWS),
}
BAD = {
    "too few": body(NUMBERS.ravel().tolist()[1:]),
    "too many": body([*NUMBERS.ravel().tolist(), 1.0]),
    "a text": body([*NUMBERS.ravel().tolist()[1:], "1"]),
    "a boolean": body([*NUMBERS.ravel().tolist()[1:], True]),
    "null": body([*NUMBERS.ravel().tolist()[1:], None]),
    "a fraction for an integer": body([[1, 2, 3, 4.0]] * ROWS, "INT32"),
    "out of range": body([*[[1, 2, 3, 4]] * (ROWS - 1), [1, 2, 3, 128]], "INT8"),
    "negative": body([[1, 2, 3, -4]] * ROWS, "UINT8"),
    "a number for a text": body([[1, 2, 3, 4]] * ROWS, "BYTES"),
    "unknown datatype": body(NUMBERS.tolist(), "FP99"),
    "datatype of another type": body(NUMBERS.tolist(), 5),
    "no list": body({"a": NUMBERS.tolist()}),
    "too deep": b"".join(
        [b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":', b"[" * 100, b"1", b"]" * 100]
    )
    + b" " * 40_000
    + b"}]}",
    "cut": body(NUMBERS.tolist())[:-1],
    "no object": orjson.dumps(NUMBERS.ravel().tolist()),
    "inputs are none": orjson.dumps({"inputs": 5, "x": NUMBERS.tolist()}),
    "an input is none": orjson.dumps({"inputs": [5], "x": NUMBERS.tolist()}),
}
FLAT = NUMBERS.ravel().tolist()
NAN, INFINITE = float("nan"), float("inf")


def literal(data: list[Any], **more: Any) -> bytes:
    whole: dict[str, Any] = orjson.loads(body([], "FP64"))
    whole["inputs"][0].update(data=data, **more)
    return json.dumps(whole, ensure_ascii=False).encode()


SPECIAL = {
    "NaN": literal([NAN, *FLAT[1:]]),
    "Infinity": literal([*FLAT[1:], INFINITE]),
    "-Infinity": literal([-INFINITE, *FLAT[1:]]),
    "all of them": literal([NAN, INFINITE, -INFINITE, 0.0] * ROWS),
    "nested": literal([[NAN, INFINITE, -INFINITE, 0.0]] * ROWS),
    "beside texts like them": literal([NAN, *FLAT[1:]], NaN="Infinity", Infinity="-NaN"),
}
"""Literals where the short cut takes them."""
ELSEWHERE = {
    "in a parameter": literal(FLAT).replace(b'"p": 1.5', b'"p": NaN'),
    "in a parameter and the data": literal([NAN, *FLAT[1:]]).replace(b'"p": 1.5', b'"p": Infinity'),
    "in what nobody reads": literal([NAN, *FLAT[1:]], unknown=NAN),
    "behind escaped quotes": literal([NAN, *FLAT[1:]], **{'"NaN': '"'}),
}
WRONG = {
    "with a sign": literal([NAN, *FLAT[1:]]).replace(b"NaN", b"-NaN"),
    "behind a digit": literal([NAN, *FLAT[1:]]).replace(b"NaN", b"1NaN"),
    "before a digit": literal([NAN, *FLAT[1:]]).replace(b"NaN", b"NaN1"),
    "before an exponent": literal([INFINITE, *FLAT[1:]]).replace(b"Infinity", b"Infinitye1"),
    "twice": literal([NAN, *FLAT[1:]]).replace(b"NaN", b"NaNNaN"),
    "for a whole number": literal([NAN] * ROWS * 4, datatype="INT32"),
    "for a size": literal([NAN, *FLAT[1:]], shape=[NAN]),
    "for a key": literal([NAN, *FLAT[1:]]).replace(b'"name"', b"NaN"),
}
LITERALS = json.dumps(orjson.loads(body(NUMBERS.tolist()))).replace("0.345584", "NaN").encode()


def read(text: bytes) -> Any:
    try:
        request, _ = infer_request.decode_request("model", None, text, None, 0)
    except ModserveError as error:
        return error.code, error.message
    tensors = {name: (tensor.datatype, tensor.shape, bytes(tensor.raw)) for name, tensor in request.inputs.items()}
    return request.id, request.parameters, request.outputs, tensors


PRETTY = json.dumps(orjson.loads(body(NUMBERS.tolist())), indent=1).encode()
STRINGS = [["a,b", 'c"]', "d\\", "]é["], ["", '\\"', "{}", "\u2028\n"]] * (ROWS // 2)
SHAPED = {
    "with white space": PRETTY,
    "texts": body(STRINGS, "BYTES"),
    "texts, pretty": json.dumps(orjson.loads(body(STRINGS, "BYTES")), indent=1).encode(),
    "texts in ASCII": json.dumps(orjson.loads(body(STRINGS, "BYTES"))).encode(),
    "a very long text": body([["x" * 300_000, "y,]\\", "z" * 70_000, '"' * 70_000]], "BYTES", (1, 4)),
    "unevenly nested": body([[[1], [2, 3]], 4, [[[5, 6, 7, 8]]]] * 8 * ROWS, "INT16", (16 * ROWS, 4)),
    "nested in itself": body([[[[]], [[]], []], [], *NUMBERS.tolist(), [[]]]),
    "nested as deep as can be": body(json.loads("[" * 98 + json.dumps(FLAT) + "]" * 98)),
    "data everywhere": body(NUMBERS.tolist(), unknown={"data": FLAT[:5000], "x": [{"data": [1] * 5000}]}),
    "data twice": body(FLAT).replace(b'"data":', b'"data":[%b],"data":' % b",".join([b"1"] * 5000)),
    "a text like a key": body([[r'"data":[1]', '"data": [', "x", "data"]] * ROWS, "BYTES"),
    "a key with a quote": body(NUMBERS.tolist(), **{'x"data': FLAT[:3000]}),
}
BROKEN = {
    name: body(NUMBERS.tolist()).replace(before, after, 1)
    for name, before, after in (
        ("no first element", b'"data":[[', b'"data":[[,'),
        ("no first row", b'"data":[', b'"data":[,'),
        ("no last element", b"]]", b",]]"),
        ("two commas", b",", b",,"),
        ("no comma", b"],[", b"][ "),
        ("a closing bracket too many", b"]]", b"]]]"),
        ("an opening one too many", b'"data":[[', b'"data":[[['),
        ("closed early", b"],[", b"]],["),
        ("a space in a number", b"0.3", b"0. 3"),
        ("a leading zero", b"0.3", b"00.3"),
        ("a comma behind", b"]]", b"]],"),
        ("something behind", b"]]", b"]]1"),
        ("objects", b"],[", b"],{},["),
        ("control characters", b"],[", b"],\x00["),
        ("no UTF-8", b'"x"', b'"\xff"'),
        ("half a surrogate", b'"x"', rb'"\ud800"'),
    )
}


CASES = {**GOOD, **BAD, **SPECIAL, **ELSEWHERE, **WRONG, **SHAPED, **BROKEN, "literals": LITERALS}


@pytest.mark.parametrize("case", CASES)
def test_both_ways_end_alike(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = CASES[case]
    assert len(text) > 32 * 1024
    pieced = read(text)
    assert isinstance(pieced[0], str) == (case not in BAD and case not in WRONG and case not in BROKEN)
    monkeypatch.setattr(large_json, "LARGE", 2**60)
    assert pieced == read(text)


@pytest.mark.parametrize("case", [*BAD, *WRONG, *BROKEN])
def test_mistakes_are_found_in_pieces(case: str) -> None:
    """Documents that are longer are not read again in the plain way, to which the text of the message may be left."""
    with pytest.raises(ModserveError):
        pieces(CASES[case])


def pieces(text: bytes) -> Any:
    """As `read`, in the way of long documents alone. Raises what that does."""
    request_id, parameters, _, description = infer_request._document(large_json.parse(text), 2**63, nulls=False)
    tensors = {
        each.name: (each.tensor.datatype, each.tensor.shape, bytes(each.tensor.raw))
        for each in description.inputs
        if each.tensor is not None
    }
    return request_id, parameters, description.outputs, tensors


SMALL = [
    [[1, 22, 333], [4444, 5]],
    [[[]], [[], []], 1, [2, [3]], []],
    [1, [2, [3, [4, [5]]]], [[[[6]]]]],
    [[float("nan"), 1.5], [-float("inf"), 2]],
    ["a,b", 'c"]', "d\\", "]é[", "", '\\"', "{}", "\u2028\n"],
    [["x" * 20, "y,]\\"], ["z", '"' * 9]],
    [],
]


@pytest.mark.parametrize("data", SMALL, ids=range(len(SMALL)))
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_piece_may_end_anywhere(
    data: list[Any], indent: int | None, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only).encode()
    expected = leaves(data)
    for size in range(1, len(text) + 2):
        monkeypatch.setattr(long_array, "_PIECE", size)
        array = long_array.find_end(b'{"x":1,"data": ' + text + b', "y": "]"}', 15)
        assert array is not None
        assert len(array) == len(text)
        assert str([element for some in array.lists() for element in leaves(some)]) == str(expected)


def leaves(data: Any) -> list[Any]:
    return [element for each in data for element in leaves(each)] if isinstance(data, list) else [data]


@pytest.mark.parametrize("case", [*GOOD, *SPECIAL, *SHAPED])
def test_long_arrays_are_read_in_pieces(case: str) -> None:
    document: Any = large_json.parse({**GOOD, **SPECIAL, **SHAPED}[case])
    assert isinstance(document["inputs"][0]["data"], long_array.LongArray)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b'{"inputs":[{"name":"IN","data":[%b]}],x' % b",".join([b"1.25"] * 300_000), -1),
        (b'{"id":x,"inputs":[{"name":"IN","data":[%b]}]' % b",".join([b"1.25"] * 300_000), 6),
    ],
    ids=["behind an array", "before it"],
)
def test_mistakes_in_long_documents_have_their_place(text: bytes, place: int) -> None:
    with pytest.raises(ModserveError) as caught:
        infer_request.decode_request("model", None, text, None, 0)
    expected = "Expecting value" if place > 0 else "Expecting property name enclosed in double quotes"
    place = place if place > 0 else len(text) - 1
    assert caught.value.message == f"failed to parse the request JSON buffer: {expected} at {place}"


def test_mistakes_in_long_arrays_have_their_place() -> None:
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[300001],"data":[%b,x]}]}' % b",".join(
        [b"1.25"] * 300_000
    )
    with pytest.raises(ModserveError) as caught:
        infer_request.decode_request("model", None, text, None, 0)
    assert caught.value.message == f"failed to parse the request JSON buffer: Expecting value at {text.index(b'x]')}"


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("INT8", [1] * 299_999 + [128], "element 299999 of input 'IN' is 128, INT8 takes -128 to 127"),
        ("UINT8", [1] * 299_999 + [-1], "element 299999 of input 'IN' is -1, UINT8 takes 0 to 255"),
        ("INT64", [10] * 300_000 + [7], "input 'IN' has 300001 elements, its shape 300000"),
        ("INT64", [10] * 299_999, "input 'IN' has 299999 elements, its shape 300000"),
        ("BYTES", ["abc"] * 300_001, "input 'IN' has 300001 elements, its shape 300000"),
        ("BOOL", [True] * 299_999 + [1], "attempt to access JSON non-boolean as boolean"),
        ("FP32", [0.25] * 299_999 + [True], "attempt to access JSON non-number as double"),
    ],
)
def test_mistakes_in_the_elements_of_long_arrays(datatype: str, data: list[Any], message: str) -> None:
    given = {"name": "IN", "datatype": datatype, "shape": [300_000], "data": data}
    text = json.dumps({"inputs": [given]}, indent=2).encode()
    assert len(text) > 2**20
    with pytest.raises(ModserveError, match=re.escape(message)):
        infer_request.decode_request("model", None, text, None, 0)


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[],"parameters":{"x":[%b]}}' % b",".join([b"{}"] * 400_000),
        b'{"inputs":[],"parameters":{"data":[%b]}}' % b",".join([b"0"] * 600_000),
        b'{"inputs":[],"outputs":[%b]}' % b",".join([b"0"] * 600_000),
        b'{"inputs":[{"name":"IN","datatype":"FP32","data":[1],"shape":[%b]}]}' % b",".join([b"1"] * 600_000),
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[%b]}]}' % b",".join([b"{}"] * 400_000),
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":%b' % (b"[" * 1_100_000),
        b'{"inputs":[%b' % (b'{"data":[' * 200_000),
        b'{"id":"%b","inputs":[]}' % (b"x" * 1_100_000),
    ],
    ids=["a parameter", "data elsewhere", "outputs", "a shape", "objects", "depth", "unfinished", "a text"],
)
def test_there_is_little_json_beside_the_data(text: bytes) -> None:
    with pytest.raises(ModserveError, match="bytes of JSON that are not the 'data' of an input, at most 1048576"):
        infer_request.decode_request("model", None, text, None, 0)


def test_a_key_may_be_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"a" : 1,"inputs":[{"x":"\\"data\\":[1]","data"\n:\t[1,2]},{"data":[3]},{"data" : "data"},{"data":[4]}]}'
    monkeypatch.setattr(cut_json, "WORTHWHILE", 0)
    for look in range(1, len(text)):
        monkeypatch.setattr(cut_json, "_SEARCH_CHUNK", look)
        document: Any = large_json.parse(text)
        data = [each["data"] for each in document["inputs"]]
        assert [list(each.lists()) if isinstance(each, long_array.LongArray) else each for each in data] == [
            [[1, 2]],
            [[3]],
            "data",
            [[4]],
        ]


@pytest.mark.parametrize(
    ("element", "datatype"), [("0", "FP32"), ("[]", "FP32"), ("[]", "BYTES"), ('"a,"', "BYTES"), ("0", "BYTES")]
)
def test_data_that_can_not_fit_its_shape_is_not_read(
    element: str, datatype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As little of it as there is of elements that are right: seventeen million empty lists are none."""
    monkeypatch.setattr(long_array.LongArray, "lists", None)
    data = ",".join([element] * 600_000).encode()
    text = b'{"inputs":[{"name":"IN","datatype":"%b","shape":[1,1],"data":[%b]}]}' % (datatype.encode(), data)
    with pytest.raises(ModserveError) as caught:
        infer_request.decode_request("model", None, text, None, 0)
    assert caught.value.message == (
        "Unable to parse 'data': Shape does not match true shape of 'data' field: input 'IN' has 600000 elements and "
        "empty lists, its shape 1"
    )


@pytest.mark.parametrize("member", [b'"data":1,', b'"data":[1],', b'"data"'], ids=["numbers", "arrays", "quotes"])
def test_few_keys_are_looked_at(member: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    original = cut_json._after_blanks

    def after_blanks(text: bytes, position: int) -> int:
        looks.append(position)
        return original(text, position)

    monkeypatch.setattr(cut_json, "_after_blanks", after_blanks)
    with pytest.raises(ModserveError, match="bytes of JSON that are not the 'data' of an input"):
        large_json.parse(b'{"parameters":{%b"a":1}}' % (member * 200_000))
    assert len(looks) <= 2 * 4 * 4096

"""Large JSON requests are read in another way, and to the same end."""

import json
from typing import Any

import numpy as np
import orjson
import pytest

from modserve.core.errors import ModserveError
from modserve.protocol import http_infer, large_json

ROWS = 4096
NUMBERS = np.random.default_rng(1).normal(size=(ROWS, 4)).round(6)


def body(data: Any, datatype: str = "FP32", shape: tuple[int, ...] = (ROWS, 4), **more: Any) -> bytes:
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
    "datatype of another type": body(NUMBERS.tolist(), 5),  # type: ignore[arg-type]
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
        request, _ = http_infer.decode_request("model", None, text, None, 0)
    except ModserveError as error:
        return error.code, error.message
    tensors = {name: (tensor.datatype, tensor.shape, bytes(tensor.raw)) for name, tensor in request.inputs.items()}
    return request.id, request.parameters, request.outputs, tensors


@pytest.mark.parametrize("case", [*GOOD, *BAD, *SPECIAL, *ELSEWHERE, *WRONG, "literals"])
def test_both_ways_end_alike(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = {**GOOD, **BAD, **SPECIAL, **ELSEWHERE, **WRONG, "literals": LITERALS}[case]
    assert len(text) > 32 * 1024
    short_cut = read(text)
    monkeypatch.setattr(large_json, "simdjson", None)
    assert short_cut == read(text)
    assert isinstance(short_cut[0], str) == (case not in BAD and case not in WRONG)


@pytest.mark.parametrize("case", SPECIAL)
def test_the_short_cut_takes_literals(case: str) -> None:
    pytest.importorskip("simdjson", reason="there is no wheel for this platform")
    document = large_json.parse(SPECIAL[case])
    assert document is not None
    assert isinstance(document["inputs"][0]["data"], np.ndarray)


@pytest.mark.parametrize("case", [*ELSEWHERE, *WRONG])
def test_no_other_literals(case: str) -> None:
    assert large_json.parse({**ELSEWHERE, **WRONG}[case]) is None


@pytest.mark.parametrize("case", GOOD)
def test_the_short_cut_is_taken(case: str) -> None:
    pytest.importorskip("simdjson", reason="there is no wheel for this platform")
    document = large_json.parse(GOOD[case])
    assert document is not None
    assert isinstance(document["inputs"][0]["data"], list if case == "BOOL" else np.ndarray)


def test_small_bodies_take_the_plain_way() -> None:
    assert large_json.parse(b'{"inputs":[]}') is None

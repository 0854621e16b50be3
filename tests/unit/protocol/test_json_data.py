"""Tensor data as JSON."""

import json
from typing import Any

import numpy as np
import pytest
from datatype_samples import IDS, SAMPLES, Sample
from numpy.typing import NDArray

from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor
from modserve.protocol.json import json_data
from modserve.protocol.json.json_text import describe

WRONG = {
    "bool": "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    "signed": "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    "unsigned": "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
    "float": "Unable to parse 'data': attempt to access JSON non-number as double",
    "string": "Unable to parse 'data': attempt to access JSON non-string as string",
}


def error(datatype: Datatype, data: object, shape: tuple[int, ...] = (1,)) -> str:
    with pytest.raises(ModserveError) as caught:
        json_data.to_tensor("IN", datatype, shape, data)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        [1, 2, 3, 4, 5, 6],
        [[1, 2, 3], [4, 5, 6]],
        [[[1], [2, 3]], [4, [5, 6]]],
        [1, [2, [3, [4, [5, [6]]]]]],
        [[], [1, 2, 3, 4, 5, 6]],
    ],
    ids=["flat", "as the shape", "ragged", "ever deeper", "an empty list"],
)
def test_data_may_be_nested_in_any_way(data: list[Any]) -> None:
    tensor = json_data.to_tensor("IN", dtypes.INT32, (2, 3), data)
    assert tensor.array.tolist() == [[1, 2, 3], [4, 5, 6]]


def nested(arrays: int, *beside: int, innermost: tuple[int, ...] = (1,)) -> list[Any]:
    data: list[Any] = list(innermost)
    for _ in range(arrays - 1):
        data = [data, *beside]
    return data


@pytest.mark.parametrize(
    ("data", "count"),
    [(nested(99), 1), (nested(99, 1), 99), (nested(100, innermost=()), 0)],
    ids=["arrays", "arrays and numbers", "nothing inside"],
)
def test_the_deepest_nesting(data: list[Any], count: int) -> None:
    assert json_data.to_tensor("IN", dtypes.INT8, (count,), data).array.sum() == count


@pytest.mark.parametrize(
    "data",
    [nested(100), nested(100, 1), nested(101, innermost=()), nested(5_000), nested(5_000, 1)],
    ids=["arrays", "arrays and numbers", "nothing inside", "thousands", "thousands and numbers"],
)
def test_deeper_nesting(data: list[Any]) -> None:
    with pytest.raises(ModserveError) as caught:
        json_data.to_tensor("IN", dtypes.INT8, (1,), data)
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "JSON nesting depth exceeds maximum allowed limit (100)",
    )


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "max_bytes", "text"),
    [
        (
            dtypes.INT8,
            (2**40, 2**40),
            [1],
            2**63,
            "invalid shape for input 'IN': shape [1099511627776,1099511627776] causes total element count to exceed "
            "maximum size of 9223372036854775807",
        ),
        (
            dtypes.FP64,
            (2**61,),
            [1],
            2**63,
            "byte size overflow for input 'IN': element count (2305843009213693952) * data type size (8) exceeds "
            "maximum allowed size (9223372036854775807)",
        ),
        (
            dtypes.FP64,
            (3,),
            [1, 2, 3],
            23,
            "JSON input 'IN' has a byte_size (24 bytes) that exceeds the maximum allowed value of 23 bytes. Use "
            "--http-max-input-size to increase the limit.",
        ),
        (
            dtypes.BYTES,
            (2,),
            ["a", ""],
            8,
            "JSON input 'IN' has a byte_size (9 bytes) that exceeds the maximum allowed value of 8 bytes. Use "
            "--http-max-input-size to increase the limit.",
        ),
    ],
    ids=["elements", "bytes", "limit", "limit of BYTES"],
)
def test_tensors_that_are_too_large(
    datatype: dtypes.Datatype, shape: tuple[int, ...], data: list[Any], max_bytes: int, text: str
) -> None:
    with pytest.raises(ModserveError) as caught:
        json_data.to_tensor("IN", datatype, shape, data, max_bytes)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, text)
    if max_bytes < 2**63:
        assert json_data.to_tensor("IN", datatype, shape, data, max_bytes + 1).shape == shape


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_an_empty_tensor(sample: Sample) -> None:
    tensor = json_data.to_tensor("IN", sample.datatype, (1, 0), [])
    assert (tensor.shape, bytes(tensor.raw)) == ((1, 0), b"")
    assert json_data.from_tensor("OUT", tensor) == b"[]"


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_a_scalar(sample: Sample) -> None:
    element = sample.elements[0]
    given = element.decode() if isinstance(element, bytes) else element
    tensor = json_data.to_tensor("IN", sample.datatype, (), [given])
    assert tensor.shape == ()
    assert bytes(tensor.raw) == sample.raw[: len(tensor.raw)]


@pytest.mark.parametrize(
    ("data", "described"),
    [(None, "null"), (1, "the number 1"), ("ab", "a string"), ({"0": 1}, "an object"), (True, "true")],
)
def test_data_that_is_no_list(data: object, described: str) -> None:
    prefix = "Unable to parse 'data': attempt to access JSON non-array as array"
    assert error(dtypes.INT32, data) == f"{prefix}: 'data' of input 'IN' is {described}"


@pytest.mark.parametrize(
    ("datatype", "wrong", "elements"),
    [
        (dtypes.BOOL, "bool", [0, 1, 1.0, "true", None, {}]),
        (dtypes.UINT8, "unsigned", [1.0, "1", True, None, {}]),
        (dtypes.UINT64, "unsigned", [1.0, float("nan")]),
        (dtypes.INT8, "signed", [1.0, "1", False, None, {}]),
        (dtypes.INT64, "signed", [1e2, "x"]),
        (dtypes.FP16, "float", ["1", True, None]),
        (dtypes.FP32, "float", ["1", True, None, {}]),
        (dtypes.FP64, "float", ["NaN", False]),
        (dtypes.BYTES, "string", [1, 1.5, True, None, {}]),
    ],
    ids=lambda value: value.name if isinstance(value, Datatype) else "",
)
def test_elements_of_the_wrong_type(datatype: Datatype, wrong: str, elements: list[object]) -> None:
    for element in elements:
        place = f"{WRONG[wrong]}: element 0 of input 'IN' is {describe(element)}"
        assert error(datatype, [element]) == f"{place}, but {datatype.name} takes {json_data.TAKES[datatype.json_kind]}"


def test_null_is_nan_only_where_it_is_a_missing_value() -> None:
    tensor = json_data.to_tensor("IN", dtypes.FP32, (2, 2), [[1, None], [None, 2]], nulls=True)
    np.testing.assert_array_equal(tensor.array, np.array([[1, np.nan], [np.nan, 2]], np.float32))
    with pytest.raises(ModserveError, match="element 1 of input 'IN' is null, but INT8 takes integers"):
        json_data.to_tensor("IN", dtypes.INT8, (2,), [1, None], nulls=True)


def test_one_wrong_element_among_right_ones() -> None:
    assert error(dtypes.INT32, [[1], ["x"]], (2,)) == (
        f"{WRONG['signed']}: element 1 of input 'IN' is a string, but INT32 takes integers"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            [1],
            "Failed to parse 'data' field: shape does not match true shape: input 'IN' has 1 elements, its shape 2",
        ),
        (
            [1, 2, 3],
            "Unable to parse 'data': Shape does not match true shape of 'data' field: "
            "input 'IN' has 3 elements, its shape 2",
        ),
    ],
    ids=["too few", "too many"],
)
def test_the_wrong_number_of_elements(data: list[int], message: str) -> None:
    assert error(dtypes.INT32, data, (2,)) == message


@pytest.mark.parametrize(
    ("datatype", "value", "bounds"),
    [
        (dtypes.UINT8, 256, "0 to 255"),
        (dtypes.UINT8, -1, "0 to 255"),
        (dtypes.INT8, 128, "-128 to 127"),
        (dtypes.UINT32, 2**32, "0 to 4294967295"),
        (dtypes.INT64, 2**63, "-9223372036854775808 to 9223372036854775807"),
        (dtypes.UINT64, -1, "0 to 18446744073709551615"),
        (dtypes.INT32, 10**400, "-2147483648 to 2147483647"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_integers_out_of_range_are_refused_and_do_not_wrap(datatype: Datatype, value: int, bounds: str) -> None:
    assert error(datatype, [0, value], (2,)) == (
        f"Unable to parse 'data': element 1 of input 'IN' is {value}, {datatype} takes {bounds}"
    )


@pytest.mark.parametrize("datatype", [dtypes.FP16, dtypes.BF16, dtypes.FP32], ids=str)
def test_floats_out_of_range_become_infinite(datatype: Datatype) -> None:
    tensor = json_data.to_tensor("IN", datatype, (3,), [1e300, -1e300, float("nan")])
    assert tensor.array.astype(np.float64).tolist() == pytest.approx([np.inf, -np.inf, np.nan], nan_ok=True)


def test_integers_beyond_every_float_are_refused() -> None:
    number = f"the number 1{'0' * 31}..."
    assert error(dtypes.FP64, [1, 10**400], (2,)) == (
        f"{WRONG['float']}: element 1 of input 'IN' is {number}, but FP64 takes numbers up to 1.8e308"
    )


def test_strings_become_utf_8() -> None:
    tensor = json_data.to_tensor("IN", dtypes.BYTES, (2,), ["é", ""])
    assert tensor.array.tolist() == ["é".encode(), b""]


def test_a_lone_surrogate_in_a_string() -> None:
    assert (
        error(dtypes.BYTES, ["\ud800"])
        == "Unable to parse 'data': input 'IN' has a string with a lone surrogate escape"
    )


def test_bytes_that_are_no_text_can_not_be_json() -> None:
    tensor = Tensor.from_array(np.array([b"\xff"], object), dtypes.BYTES)
    with pytest.raises(ModserveError) as caught:
        json_data.from_tensor("OUT", tensor)
    assert caught.value.message == (
        "output 'OUT' holds bytes that are not UTF-8, which JSON cannot carry; "
        "ask for it with the output parameter 'binary_data': true"
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            [0.1, 1, -0.0, 16777216, 1 / 3],
            b"[0.10000000149011612,1.0,-0.0,16777216.0,0.3333333432674408]",
        ),
        ([np.nan, np.inf, -np.inf, 2], b"[NaN,Infinity,-Infinity,2.0]"),
    ],
    ids=["finite", "not finite"],
)
def test_floats_are_printed_as_widened_doubles(values: list[float], text: bytes) -> None:
    assert json_data.from_tensor("OUT", Tensor.from_array(np.array(values, np.float32))) == text


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [(dtypes.FP16, b"\x01\x7c"), (dtypes.BF16, b"\x81\x7f"), (dtypes.FP32, b"\x01\x00\x80\x7f")],
    ids=str,
)
def test_a_signalling_nan_is_one_like_others(datatype: Datatype, raw: bytes) -> None:
    assert json_data.from_tensor("OUT", Tensor.from_raw(datatype, (1,), raw)) == b"[NaN]"


def test_any_array_layout_comes_out_in_row_major_order() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    assert json_data.from_tensor("OUT", Tensor.from_array(array)) == b"[0,4,8,2,6,10]"


SPECIAL = [np.nan, np.inf, -np.inf, 1.1e300, -1.2e300, 1.3e300, 0.0, -0.0, 1e300, 1.5, 11.1e299]


def written(values: NDArray[Any]) -> str:
    return json_data.from_tensor("OUT", Tensor.from_array(values)).decode()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_long_data_are_written_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_data, "_AT_A_TIME", 64)
    for values in (np.arange(count), np.resize(SPECIAL, count)):
        assert written(values) == json.dumps(values.tolist(), separators=(",", ":"))
    texts = [str(each) for each in range(count)]
    assert written(np.array(texts, object)) == json.dumps(texts, separators=(",", ":"))


@pytest.mark.parametrize("seed", range(20))
def test_no_number_passes_for_a_literal(seed: int) -> None:
    values = np.random.default_rng(seed).choice(SPECIAL, 200)
    assert written(values) == json.dumps(values.tolist(), separators=(",", ":"))

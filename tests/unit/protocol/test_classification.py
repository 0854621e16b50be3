"""The best classes of an output as text. Expected texts marked so are what Triton answered to the same values."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor
from modserve.protocol.classification import classify, top_classes
from modserve.testing import config, tensor

INF, NAN = np.inf, np.nan
FLOATS = (dtypes.FP32, dtypes.FP64)
INTEGERS = tuple(row for row in dtypes.ALL if row.json_kind == "int")


def of(datatype: Datatype, values: Any) -> Tensor:
    return Tensor.from_array(np.array(values, dtype=datatype.numpy), datatype)


def top(tensor: Tensor, count: int, *labels: str, batching: bool = True) -> Any:
    """The classes as nested lists of text; of the shape that the answer says."""
    found = top_classes(tensor, count, labels, batching)
    assert found.datatype is dtypes.BYTES
    assert found.shape == found.array.shape
    return np.array([text.decode() for text in found.array.flat], dtype=object).reshape(found.shape).tolist()


ROWS: dict[str, tuple[Datatype, list[Any], int, list[Any]]] = {
    "batch of two, as Triton": (
        dtypes.FP32,
        [[0.1, 3.3, 2], [5, 4, 3]],
        2,
        [["3.300000:1", "2.000000:2"], ["5.000000:0", "4.000000:1"]],
    ),
    "more than there are, as Triton": (
        dtypes.FP32,
        [[0.1, 3.3, 2]],
        9,
        [["3.300000:1", "2.000000:2", "0.100000:0"]],
    ),
    "ties, as Triton": (dtypes.INT32, [[1, 2, 2, 2]], 3, [["2:1", "2:2", "2:3"]]),
    "ties across the last place": (dtypes.INT32, [[2, 1, 2, 3, 2]], 3, [["3:3", "2:0", "2:2"]]),
    "all equal": (dtypes.FP32, [[1.0] * 40], 2, [["1.000000:0", "1.000000:1"]]),
    "zeros of both signs are equal": (dtypes.FP32, [[-0.0, 0.0]], 2, [["-0.000000:0", "0.000000:1"]]),
    "NaN ranks as -Infinity": (
        dtypes.FP64,
        [[NAN, -INF, 1, NAN, INF]],
        5,
        [["inf:4", "1.000000:2", "nan:0", "-inf:1", "nan:3"]],
    ),
    "NaN is not among the best": (dtypes.FP32, [[NAN, 0.5, NAN, 1.5]], 2, [["1.500000:3", "0.500000:1"]]),
    "large and tiny": (dtypes.FP64, [[1e22, 1e-9]], 2, [["10000000000000000000000.000000:0", "0.000000:1"]]),
    "a float as wide as it is": (dtypes.FP32, [[123456789]], 1, [["123456792.000000:0"]]),
    "signed": (dtypes.INT8, [[-128, 127, -1]], 3, [["127:1", "-1:2", "-128:0"]]),
    "unsigned beyond signed": (dtypes.UINT64, [[1, 2**64 - 1]], 1, [["18446744073709551615:1"]]),
    "near, beyond a double": (dtypes.INT64, [[2**62, 2**62 + 1]], 1, [["4611686018427387905:1"]]),
    "matrices are flat": (dtypes.INT32, [[[1, 2], [3, 4]]], 2, [["4:3", "3:2"]]),
    "one value a row": (dtypes.INT32, [5, 6], 3, [["5:0"], ["6:0"]]),
    "rows of nothing": (dtypes.INT32, [[], []], 3, [[], []]),
    "no rows": (dtypes.INT32, [], 3, []),
}


@pytest.mark.parametrize(("datatype", "values", "count", "expected"), ROWS.values(), ids=ROWS)
def test_rows(datatype: Datatype, values: list[Any], count: int, expected: list[Any]) -> None:
    assert top(of(datatype, values), count) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0, 3, 2], ["3:1", "2:2"]), ([[0, 3], [4, 2]], ["4:2", "3:1"]), ([], []), (7, ["7:0"])],
    ids=["vector", "matrix", "empty", "scalar"],
)
def test_without_a_batch_dimension_all_elements_are_one_row(values: Any, expected: list[str]) -> None:
    assert top(of(dtypes.INT32, values), 2, batching=False) == expected


@pytest.mark.parametrize("datatype", FLOATS + INTEGERS, ids=repr)
def test_datatypes_that_are_ranked(datatype: Datatype) -> None:
    value = "3.000000" if datatype in FLOATS else "3"
    assert top(of(datatype, [[1, 3]]), 1) == [[f"{value}:1"]]


@pytest.mark.parametrize("datatype", sorted(set(dtypes.ALL) - {*FLOATS, *INTEGERS}, key=repr), ids=repr)
@pytest.mark.parametrize("shape", [(1, 2), (1, 0)], ids=["elements", "empty"])
def test_datatypes_that_are_not(datatype: Datatype, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModserveError) as caught:
        top_classes(tensor(datatype, shape, b"a" if datatype is dtypes.BYTES else 1), 1, (), True)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (f"class result not available for output due to unsupported type '{datatype.name}'")


def test_at_most_a_million_elements_a_row() -> None:
    assert top(tensor(dtypes.INT8, (2, 1_000_000)), 1) == [["1:0"], ["1:0"]]
    with pytest.raises(ModserveError, match=r"^classification output tensor too large$") as caught:
        top_classes(tensor(dtypes.INT8, (1, 1_000_001)), 1, (), True)
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("cat", "dog", "owl"), ["9:2:owl", "8:1:dog", "7:0:cat"]),
        (("cat", "dog"), ["9:2", "8:1:dog", "7:0:cat"]),
        (("cat", "", "owl", "bat"), ["9:2:owl", "8:1", "7:0:cat"]),
        (("a:b", "hé llo", "\r"), ["9:2:\r", "8:1:hé llo", "7:0:a:b"]),
    ],
    ids=["each", "too few", "an empty one", "as they are written"],
)
def test_labels(labels: tuple[str, ...], expected: list[str]) -> None:
    assert top(of(dtypes.INT32, [[7, 8, 9]]), 3, *labels) == [expected]


def test_labels_that_are_not_utf_8_keep_their_bytes() -> None:
    label = b"\xff\xe9".decode(errors="surrogateescape")
    found = top_classes(of(dtypes.INT32, [[7]]), 1, (label,), True)
    assert found.array.tolist() == [[b"7:0:\xff\xe9"]]


@settings(deadline=None)
@given(arrays.arrays(np.int16, st.integers(0, 40), elements=st.integers(-3, 3)), st.integers(1, 50))
def test_any_count_is_the_head_of_the_whole_order(values: Any, count: int) -> None:
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert top(of(dtypes.INT16, values), count, batching=False) == [
        f"{values[index]}:{index}" for index in order[:count]
    ]


# Responses


def servable(model: ModelConfig, **labels: tuple[str, ...]) -> Servable:
    return cast(Servable, SimpleNamespace(config=model, labels=labels))


RESPONSE = InferenceResponse(
    "m", 2, {"A": of(dtypes.INT32, [[1, 2]]), "B": of(dtypes.INT32, [[3, 4]])}, "7", {"some": "thing"}
)


def test_only_the_outputs_asked_for() -> None:
    found = classify(RESPONSE, {"B": 1, "absent": 3}, servable(config(), A=("x", "y"), B=("v", "w")))
    assert found.outputs["A"] is RESPONSE.outputs["A"]
    assert found.outputs["B"].array.tolist() == [[b"4:1:w"]]
    assert list(found.outputs) == ["A", "B"]
    assert (found.id, found.model_version, found.parameters) == ("7", 2, {"some": "thing"})


def test_nothing_asked_for() -> None:
    assert classify(RESPONSE, {}, servable(config())) is RESPONSE


@pytest.mark.parametrize(("max_batch_size", "shape"), [(8, (2, 1)), (0, (1,))], ids=["batching", "not"])
def test_rows_are_those_of_the_model_s_batch_dimension(max_batch_size: int, shape: tuple[int, ...]) -> None:
    response = InferenceResponse("m", 1, {"A": of(dtypes.INT32, [[1, 2], [3, 4]])})
    found = classify(response, {"A": 1}, servable(config(max_batch_size=max_batch_size)))
    assert found.outputs["A"].shape == shape

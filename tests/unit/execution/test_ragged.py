"""Ragged batches: what the engine gets, and what the requests get back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.configuration.merging import BatchInput, BatchInputKind
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Shape, Tensor
from modserve.execution.job import layout_of
from modserve.execution.ragged import RaggedLayout, batch_input
from modserve.testing import RecordingSink, config, request

X = TensorSpec("x", dtypes.FP32, (-1,), ragged=True)


def model(inputs: tuple[TensorSpec, ...] = (X,), **more: Any) -> ModelConfig:
    return config(inputs=inputs, **{"outputs": (TensorSpec("y", dtypes.FP32, (-1,)),), **more})


def member(served: ModelConfig, *arrays: Array) -> Inflight:
    tensors = {
        spec.name: Tensor.from_array(array, spec.datatype) for spec, array in zip(served.inputs, arrays, strict=True)
    }
    return Signature(served).accept(request(tensors), RecordingSink(), 0)


def counted(shape: Shape) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def kind(name: str) -> BatchInputKind:
    return BatchInputKind(f"BATCH_{name}")


# The shapes of three requests, the second with two items.
SHAPES: list[Shape] = [(1, 3), (2, 4), (1, 5)]


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("ELEMENT_COUNT", SHAPES, [3, 8, 5]),
        ("ACCUMULATED_ELEMENT_COUNT", SHAPES, [3, 11, 16]),
        ("ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", SHAPES, [0, 3, 11, 16]),
        ("MAX_ELEMENT_COUNT_AS_SHAPE", SHAPES, [0] * 8),
        ("ITEM_SHAPE", SHAPES, [[3], [4], [4], [5]]),
        ("ITEM_SHAPE_FLATTEN", SHAPES, [3, 4, 4, 5]),
        ("ITEM_SHAPE", [(2, 2, 3), (1, 1, 7)], [[2, 3], [2, 3], [1, 7]]),
        ("ITEM_SHAPE_FLATTEN", [(2, 2, 3), (1, 1, 7)], [2, 3, 2, 3, 1, 7]),
        ("ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [(1, 0)], [0, 0]),
        ("MAX_ELEMENT_COUNT_AS_SHAPE", [(1, 0)], []),
    ],
)
@pytest.mark.parametrize("datatype", [dtypes.INT32, dtypes.FP32], ids=repr)
def test_batch_inputs(name: str, shapes: list[Shape], expected: list[Any], datatype: dtypes.Datatype) -> None:
    array = batch_input(BatchInput(kind(name), ("t",), datatype, "x"), shapes)
    assert array.dtype == datatype.numpy
    assert array.tolist() == expected


def test_the_example_of_the_documentation() -> None:
    """Requests of 3, 4 and 5 elements: 12 elements, and where each request ends."""
    index = BatchInput(kind("ACCUMULATED_ELEMENT_COUNT"), ("INDEX", "SAME"), dtypes.FP32, "x")
    served = model(batch_inputs=(index,))
    members = [member(served, counted((1, length))) for length in (3, 4, 5)]
    assert len({each.shape_key for each in members}) == 1
    assert [each.length for each in members] == [3, 4, 5]
    inputs = RaggedLayout(served).merge(members, ExecutionTiming())
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "x": [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4],
        "INDEX": [3, 7, 12],
        "SAME": [3, 7, 12],
    }


def test_one_request_is_flat_too() -> None:
    served = model()
    inputs = RaggedLayout(served).merge([member(served, counted((2, 3)))], ExecutionTiming())
    assert inputs["x"].shape == (6,)


def test_other_inputs_keep_their_rows_and_must_be_equal() -> None:
    served = model((X, TensorSpec("z", dtypes.INT32, (-1,))))
    one, same, other = (
        member(served, counted((1, length)), np.ones((1, width), np.int32))
        for length, width in ((3, 2), (5, 2), (3, 4))
    )
    assert one.shape_key == same.shape_key != other.shape_key
    inputs = RaggedLayout(served).merge([one, same], ExecutionTiming())
    assert (inputs["x"].shape, inputs["z"].shape) == ((8,), (2, 2))


def test_strings() -> None:
    served = model((TensorSpec("s", dtypes.BYTES, (-1,), ragged=True),))
    members = [member(served, np.array([words], object)) for words in ([b"a", b"b"], [b"c"])]
    assert RaggedLayout(served).merge(members, ExecutionTiming())["s"].tolist() == [b"a", b"b", b"c"]


def test_who_is_ragged() -> None:
    assert isinstance(layout_of(model()), RaggedLayout)
    assert isinstance(layout_of(config(batch_outputs={"OUTPUT0": "INPUT0"})), RaggedLayout)


SCATTERED = {"y": "x"}


@pytest.mark.parametrize(
    ("output", "shapes", "expected"),
    [
        (TensorSpec("y", dtypes.FP32, (-1,)), SHAPES, SHAPES),
        (TensorSpec("y", dtypes.FP32, (2, -1)), [(1, 9, 3), (2, 9, 1)], [(1, 2, 3), (2, 2, 1)]),
        (TensorSpec("y", dtypes.FP32, (-1, 1), reshape=(-1,)), SHAPES, [(1, 3, 1), (2, 4, 1), (1, 5, 1)]),
    ],
    ids=["as the input", "one dimension of it", "reshape"],
)
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "rows of one"])
def test_scatter(output: TensorSpec, shapes: list[Shape], expected: list[Shape], flat: bool) -> None:
    dims = (-1,) * (len(shapes[0]) - 1)
    served = model((TensorSpec("x", dtypes.FP32, dims, ragged=True),), outputs=(output,), batch_outputs=SCATTERED)
    members = [member(served, counted(shape)) for shape in shapes]
    array = np.arange(sum(int(np.prod(shape)) for shape in expected), dtype=np.float32)
    responses = RaggedLayout(served).split({"y": array if flat else array.reshape(-1, 1)}, members, 1)
    parts = [each.outputs["y"] for each in responses]
    assert [part.shape for part in parts] == expected
    assert [value for part in parts for value in part.array.reshape(-1).tolist()] == array.tolist()


def test_other_outputs_are_rows() -> None:
    served = model(outputs=(TensorSpec("y", dtypes.FP32, (1,)),))
    members = [member(served, counted((rows, 3))) for rows in (1, 2)]
    responses = RaggedLayout(served).split({"y": counted((3, 1))}, members, 1)
    assert [each.outputs["y"].array.tolist() for each in responses] == [[[0.0]], [[1.0], [2.0]]]


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ({}, "model 'model' did not return output 'y'"),
        ({"y": np.zeros(4, np.int32)}, "is of type int32, but the model configuration says TYPE_FP32"),
        (
            {"y": np.zeros(4, np.float32)},
            "has 4 elements, but by the shapes of input 'x' the requests need 5: [1,3], [1,2]",
        ),
    ],
    ids=["none", "type", "size"],
)
def test_bad_outputs(outputs: dict[str, Array], problem: str) -> None:
    served = model(batch_outputs=SCATTERED)
    members = [member(served, counted((1, length))) for length in (3, 2)]
    with pytest.raises(ModserveError) as error:
        RaggedLayout(served).split(outputs, members, 1)
    assert error.value.code is Code.INTERNAL
    assert problem in error.value.message


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_what_goes_in_comes_back(shapes: list[Shape]) -> None:
    served = model(batch_outputs=SCATTERED)
    members = [member(served, counted(shape)) for shape in shapes]
    layout = RaggedLayout(served)
    responses = layout.split({"y": layout.merge(members, ExecutionTiming())["x"]}, members, 1)
    assert [each.outputs["y"].array.tolist() for each in responses] == [counted(shape).tolist() for shape in shapes]

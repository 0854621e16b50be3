"""Requests of different lengths in one array, and rows added to it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.configuration.merging import Padding, rows_of
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor
from modserve.execution.job import layout_of
from modserve.execution.padding import PaddedLayout, fill_value
from modserve.testing import RecordingSink, config, request

IDS = TensorSpec("ids", dtypes.INT64, (-1,))
MASK = TensorSpec("mask", dtypes.INT32, (-1,), optional=True)
MEAN = TensorSpec("mean", dtypes.FP32, (1,))
EACH = TensorSpec("each", dtypes.INT64, (-1,))


def model(sizes: tuple[int, ...] = (), **padding: Any) -> ModelConfig:
    fields: dict[str, Any] = {"axes": {"ids": 0, "mask": 0}, "mask": "mask", "unpad": {"each": 0}, **padding}
    return config(
        inputs=(IDS, MASK),
        outputs=(MEAN, EACH),
        dynamic_batching=DynamicBatching(batch_sizes=sizes),
        padding=Padding(**fields),
    )


def member(served: ModelConfig, *arrays: Array, outputs: tuple[str, ...] = ()) -> Inflight:
    """A request with the first inputs of the model."""
    tensors = {
        spec.name: Tensor.from_array(array, spec.datatype) for spec, array in zip(served.inputs, arrays, strict=False)
    }
    return Signature(served).accept(request(tensors, outputs=outputs), RecordingSink(), 0)


def ids(*rows: list[int]) -> Array:
    return np.array(rows, np.int64)


def merged(served: ModelConfig, *members: Inflight) -> tuple[dict[str, Any], tuple[int, int]]:
    """The inputs as lists, and the elements and the padding counted."""
    timing = ExecutionTiming()
    inputs = PaddedLayout(served).merge(members, timing)
    for name, array in inputs.items():
        assert array.dtype == served.inputs_by_name[name].datatype.numpy
    return {name: array.tolist() for name, array in inputs.items()}, (timing.elements, timing.padding)


def engine(inputs: dict[str, Array]) -> dict[str, Array]:
    """A masked mean, and each id doubled."""
    tokens, mask = inputs["ids"], inputs["mask"]
    mean = (tokens * mask).sum(axis=1, keepdims=True) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return {"mean": mean.astype(np.float32), "each": tokens * 2}


def answers(served: ModelConfig, *members: Inflight) -> list[dict[str, Any]]:
    layout = PaddedLayout(served)
    responses = layout.split(engine(layout.merge(members, ExecutionTiming())), members, 1)
    return [{name: tensor.array.tolist() for name, tensor in each.outputs.items()} for each in responses]


def test_who_is_padded() -> None:
    assert layout_of(config()) is None
    assert isinstance(layout_of(model()), PaddedLayout)
    assert isinstance(layout_of(config(dynamic_batching=DynamicBatching(batch_sizes=(1, 8)))), PaddedLayout)


def test_padding_and_a_mask() -> None:
    served = model(values={"ids": "9"})
    short, long = member(served, ids([1], [2])), member(served, ids([3, 4, 5]))
    assert merged(served, short, long) == (
        {"ids": [[1, 9, 9], [2, 9, 9], [3, 4, 5]], "mask": [[1, 0, 0], [1, 0, 0], [1, 1, 1]]},
        (5, 4),
    )


def test_a_mask_that_is_given_is_filled_up() -> None:
    served = model()
    holes = member(served, ids([1, 2]), np.array([[0, 1]], np.int32))
    none, long = member(served, ids([3])), member(served, ids([4, 5, 6]))
    assert holes.shape_key == none.shape_key == long.shape_key
    inputs, _ = merged(served, holes, none, long)
    assert inputs["mask"] == [[0, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_what_needs_no_padding_is_not_copied() -> None:
    served = model()
    given, mask = ids([1, 2]), np.array([[1, 0]], np.int32)
    inputs = PaddedLayout(served).merge([member(served, given, mask)], ExecutionTiming())
    assert inputs["ids"] is given
    assert inputs["mask"] is mask


def test_equal_lengths_are_joined() -> None:
    served = model()
    assert merged(served, member(served, ids([1, 2])), member(served, ids([3, 4]))) == (
        {"ids": [[1, 2], [3, 4]], "mask": [[1, 1], [1, 1]]},
        (4, 0),
    )


def test_lengths_and_rows_that_the_engine_likes() -> None:
    served = model((1, 2, 4, 8), multiple_of=4)
    members = [member(served, ids([1])), member(served, ids([2, 3])), member(served, ids([4]))]
    inputs, counted = merged(served, *members)
    assert inputs["ids"] == [[1, 0, 0, 0], [2, 3, 0, 0], [4, 0, 0, 0], [4, 0, 0, 0]]
    assert inputs["mask"] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert counted == (4, 12)
    assert answers(served, *members) == [
        {"mean": [[1.0]], "each": [[2]]},
        {"mean": [[2.5]], "each": [[4, 6]]},
        {"mean": [[4.0]], "each": [[8]]},
    ]


def test_rows_alone() -> None:
    served = config(dynamic_batching=DynamicBatching(batch_sizes=(4, 8)))
    layout, timing = PaddedLayout(served), ExecutionTiming()
    members = [Signature(served).accept(request(batch_size=size), RecordingSink(), 0) for size in (1, 2)]
    inputs = layout.merge(members, timing)
    assert inputs["INPUT0"].shape == (4, 4)
    assert (timing.elements, timing.padding) == (3, 1)
    parts = layout.split({"OUTPUT0": inputs["INPUT0"]}, members, 1)
    assert [each.outputs["OUTPUT0"].shape for each in parts] == [(1, 4), (2, 4)]


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 9)], ids=["1", "2", "up", "all", "more than all"]
)
def test_rows_of(size: int, expected: int) -> None:
    assert rows_of(size, (1, 2, 4, 8)) == expected
    assert rows_of(size, ()) == size


def test_inner_dimensions_and_strings() -> None:
    words = TensorSpec("words", dtypes.BYTES, (2, -1))
    sound = TensorSpec("sound", dtypes.FP16, (-1, 3))
    fixed = TensorSpec("fixed", dtypes.BOOL, (1,))
    served = config(
        inputs=(words, sound, fixed),
        outputs=(),
        padding=Padding({"words": 1, "sound": 0}, values={"words": "-", "sound": "-inf"}),
    )
    parts = [
        member(
            served,
            np.full((1, 2, length), b"w", object),
            np.zeros((1, length, 3), np.float16),
            np.array([[length == 2]]),
        )
        for length in (2, 1)
    ]
    inputs, _ = merged(served, *parts)
    assert inputs["words"] == [[[b"w", b"w"], [b"w", b"w"]], [[b"w", b"-"], [b"w", b"-"]]]
    assert inputs["sound"][1] == [[0.0] * 3, [-np.inf] * 3]
    assert inputs["fixed"] == [[True], [False]]


@pytest.mark.parametrize(
    ("text", "datatype", "expected"),
    [
        ("", dtypes.INT8, 0),
        ("-1", dtypes.INT64, -1),
        ("", dtypes.FP32, 0.0),
        ("1e3", dtypes.BF16, 1000.0),
        ("true", dtypes.BOOL, True),
        ("", dtypes.BOOL, False),
        ("", dtypes.BYTES, b""),
        ("é", dtypes.BYTES, b"\xc3\xa9"),
    ],
    ids=["int", "negative", "float", "bfloat", "true", "false", "empty", "text"],
)
def test_fill_value(text: str, datatype: dtypes.Datatype, expected: object) -> None:
    assert fill_value(text, datatype) == expected


def test_different_outputs_are_asked_for() -> None:
    served = model()
    one, other = member(served, ids([1]), outputs=("mean",)), member(served, ids([2, 3]), outputs=("each",))
    assert answers(served, one, other) == [{"mean": [[1.0]]}, {"each": [[4, 6]]}]


def test_an_output_of_another_length() -> None:
    served = model()
    members = [member(served, ids([1])), member(served, ids([1, 2]))]
    outputs: dict[str, Array] = {"mean": np.zeros((2, 1), np.float32), "each": np.zeros((2, 5), np.int64)}
    with pytest.raises(
        ModserveError, match=r"output 'each' of model 'model' has shape \[1,5\], expected 2 in"
    ) as error:
        PaddedLayout(served).split(outputs, members, 1)
    assert error.value.code is Code.INTERNAL


def test_inputs_of_unequal_length() -> None:
    served = model()
    with pytest.raises(ModserveError, match="input 'mask' has 3 in dimension 1 but input 'ids' has 2 in") as error:
        member(served, ids([1, 2]), np.ones((1, 3), np.int32))
    assert error.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [((1, 4, 3), (1, 9, 3), True), ((1, 4, 3), (1, 4, 5), False), ((2, 4, 3), (1, 5, 3), True)],
    ids=["length", "another dimension", "rows"],
)
def test_who_shares_a_batch(one: tuple[int, ...], other: tuple[int, ...], same: bool) -> None:
    served = config(inputs=(TensorSpec("x", dtypes.FP32, (-1, -1)),), outputs=(), padding=Padding({"x": 0}))
    keys = [member(served, np.zeros(shape, np.float32)) for shape in (one, other)]
    assert (keys[0].shape_key == keys[1].shape_key) is same
    assert [each.length for each in keys] == [one[1], other[1]]


REQUESTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 9), st.booleans()), min_size=1, max_size=6
)  # rows, length, whether it gives a mask


@given(REQUESTS, st.integers(1, 5), st.sampled_from([(), (1, 2, 4, 8, 24)]), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_alone_and_together_are_the_same(
    requests: list[tuple[int, int, bool]], multiple_of: int, sizes: tuple[int, ...], random: Any
) -> None:
    served = model(sizes, multiple_of=multiple_of, values={"ids": "77"})
    generator = np.random.default_rng(random.getrandbits(32))
    members = []
    for rows, length, masked in requests:
        mask = [generator.integers(0, 2, (rows, length), np.int32)] if masked else []
        members.append(member(served, generator.integers(-99, 99, (rows, length)), *mask))
    plain = model()
    assert answers(served, *members) == [answers(plain, alone)[0] for alone in members]

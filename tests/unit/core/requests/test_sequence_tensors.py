"""What models are given beside the client's tensors, and the states that sequences keep."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from modserve.core.configuration.sequence_config import Control, ControlKind, InitialState, SequenceState
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.sequence import ControlTensors, Membership, StateTable, file_state, zeros_like
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape, Tensor

NUMBERS = SequenceState("IN", "OUT", dtypes.INT32, (2,))
TEXTS = SequenceState("IN", "OUT", dtypes.BYTES, (-1,))


def test_what_models_share_is_read_only() -> None:
    """An engine that writes to its inputs must not change those of others."""
    controls = ControlTensors((Control("C", ControlKind.START, dtypes.INT32),), batching=True)
    states = StateTable((NUMBERS, SequenceState("S", "T", dtypes.BYTES, (1,))), True, {})
    shared = [
        controls.of(Membership(1))["C"],
        *states.fresh().inputs.values(),
        *zeros_like({"a": controls.absent()["C"]}).values(),
    ]
    assert len(shared) == 4
    for tensor in shared:
        with pytest.raises(ValueError, match="read-only"):
            tensor.array[...] = 0


@pytest.mark.parametrize(
    ("state", "content", "expected"),
    [
        (NUMBERS, b"\x01\0\0\0\x02\0\0\0more", [1, 2]),
        (TEXTS, b"\x01\0\0\0a\0\0\0\0", [b"a", b""]),
    ],
    ids=["numbers", "texts"],
)
def test_a_state_from_a_file(state: SequenceState, content: bytes, expected: list[Any]) -> None:
    assert file_state(state, InitialState("i", (2,), "f"), content).array.tolist() == expected


@pytest.mark.parametrize(
    ("state", "content", "expected"),
    [
        (NUMBERS, b"1234567", "initial_state setting expects 8 bytes, but the data provided from f only has 7 bytes."),
        (
            TEXTS,
            b"\x01\0\0\0a\x09\0\0\0b",
            "initial_state setting expects 2 strings, each preceded by its length in 4 bytes, but the data provided "
            "from f "
            "has 1",
        ),
    ],
    ids=["numbers", "texts"],
)
def test_a_file_that_is_no_state(state: SequenceState, content: bytes, expected: str) -> None:
    with pytest.raises(ModserveError) as caught:
        file_state(state, InitialState("i", (2,), "f"), content)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, expected)


def test_each_sequence_has_its_row() -> None:
    table = StateTable((NUMBERS,), True, {"IN": Tensor.from_array(np.array([7, 8], np.int32))})
    first, second = table.fresh(), table.fresh()
    array = np.array([[1, 2], [3, 4]], np.int32)
    for row, states in enumerate((first, second)):
        states.keep("m", {"OUT": array}, row, 2)
    array[:] = 0  # the engine's own memory
    assert [states.inputs["IN"].array.tolist() for states in (first, second)] == [[[1, 2]], [[3, 4]]]
    assert table.fresh().inputs["IN"].array.tolist() == [[7, 8]]


def test_texts_may_grow() -> None:
    states = StateTable((TEXTS,), False, {}).fresh()
    assert states.inputs["IN"].array.tolist() == [b""]
    states.keep("m", {"OUT": np.array(["a", "bc"], object)})
    assert states.inputs["IN"].array.tolist() == [b"a", b"bc"]
    assert states.shapes == ((2,),)


ROWS = np.zeros((2, 2), np.int32)
NOT_AS_SAID = "but the model configuration says [1,2]; a dimension whose size may change is -1"


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({}, "model 'm' returned no state 'OUT'"),
        ({"OUT": ROWS[:1]}, "state 'OUT' of model 'm' has shape [1,2], expected 2 rows"),
        ({"OUT": np.float32(1)}, "state 'OUT' of model 'm' has shape [], expected 2 rows"),
        ({"OUT": ROWS.astype(np.int64)}, "state 'OUT' of model 'm' is of type int64, expected TYPE_INT32"),
        ({"OUT": ROWS[:, :1]}, f"state 'OUT' of model 'm' has shape [1,1], {NOT_AS_SAID}"),
        ({"OUT": ROWS[:, :, None]}, f"state 'OUT' of model 'm' has shape [1,2,1], {NOT_AS_SAID}"),
    ],
    ids=["missing", "rows", "scalar", "type", "size", "rank"],
)
def test_a_model_that_does_not_keep_its_word_changes_no_state(outputs: Mapping[str, Any], expected: str) -> None:
    states = StateTable((NUMBERS,), True, {}).fresh()
    states.keep("m", {"OUT": ROWS + 5}, 0, 2)
    with pytest.raises(ModserveError) as caught:
        states.keep("m", outputs, 1, 2)
    assert (caught.value.code, caught.value.message) == (Code.INTERNAL, expected)
    assert states.inputs["IN"].array.tolist() == [[5, 5]]


def test_states_that_are_not_given_may_stay() -> None:
    states = StateTable((NUMBERS, SequenceState("S", "T", dtypes.INT32, (1,))), True, {}).fresh()
    states.keep("m", {"T": np.array([[9]], np.int32)}, some=True)
    assert [tensor.array.tolist() for tensor in states.inputs.values()] == [[[0, 0]], [[9]]]


def some(*shape: int) -> Mapping[str, Any]:
    return {"OUT": np.ones(shape, np.int32)}


@pytest.mark.parametrize(
    ("state", "batching", "fits", "fails"),
    [
        (SequenceState("IN", "OUT", dtypes.INT32, (2, -1)), True, (1, 2, 7), (1, 3, 7)),
        (SequenceState("IN", "OUT", dtypes.INT32, (-1,)), False, (7,), (7, 7)),
        (SequenceState("IN", "OUT", dtypes.INT32, (2,), growable=True), True, (1, 7), (2, 2)),
        (SequenceState("IN", "OUT", dtypes.INT32, (2,), growable=True), False, (7,), (7, 7)),
    ],
    ids=["variable", "variable, no batching", "growable", "growable, no batching"],
)
def test_what_sizes_may_change(state: SequenceState, batching: bool, fits: Shape, fails: Shape) -> None:
    states = StateTable((state,), batching, {}).fresh()
    states.keep("m", some(*fits))
    with pytest.raises(ModserveError, match="but the model configuration says"):
        states.keep("m", some(*fails), some=True)
    assert states.shapes == (fits,)

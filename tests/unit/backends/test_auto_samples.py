"""The data that engines are measured with: of the configuration, or made up so that most models take it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.backends.auto.samples import Samples, samples, shapes_of
from modserve.backends.runner import UnmeasurableError
from modserve.core.configuration.merging import BatchInput, BatchInputKind
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import Control, ControlKind, SequenceBatching, SequenceState
from modserve.core.configuration.warm_up_config import DataKind, WarmUp, WarmUpInput
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.sample_data import Sizes
from modserve.core.tensors.tensor import Array, Shape


def spec(name: str, dims: Shape, datatype: dtypes.Datatype = dtypes.FP32, **more: Any) -> TensorSpec:
    return TensorSpec(name, datatype, dims, **more)


def made(
    *inputs: TensorSpec,
    batch: int = 0,
    directory: Path = Path("."),
    sample_shape: str = "",
    large: bool = True,
    **config: Any,
) -> Samples:
    settings = ModelConfig("m", "auto", max_batch_size=batch, inputs=inputs, **config)
    return samples(settings, directory, sample_shape, large=large)


def values(name: str, dims: Shape, datatype: dtypes.Datatype, *others: TensorSpec) -> Array:
    array = made(spec(name, dims, datatype), *others).timed[0][name]
    assert array.dtype == datatype.numpy
    return array


def test_a_model_that_batches_is_checked_with_one_row_and_with_all() -> None:
    both = made(spec("IN", (3, 8)), batch=16)
    assert shapes_of(both.checked) == [{"IN": [1, 3, 8]}, {"IN": [16, 3, 8]}]
    assert (shapes_of(both.timed), both.batch_size, both.source) == ([{"IN": [16, 3, 8]}], 16, "generated data")
    one = made(spec("IN", (3, 8)), batch=16, large=False)
    assert (shapes_of(one.timed), one.batch_size) == ([{"IN": [1, 3, 8]}], 1)


def test_a_model_without_a_batch_dimension_or_with_one_row() -> None:
    assert shapes_of(made(spec("IN", (3, 8))).checked) == [{"IN": [3, 8]}]
    assert shapes_of(made(spec("IN", (3,)), batch=1).checked) == [{"IN": [1, 3]}]


def test_the_model_sees_the_reshape() -> None:
    made_up = made(spec("IN", (1,), reshape=()), spec("OTHER", (-1, 4), reshape=(2, -1)), batch=2)
    assert shapes_of(made_up.timed) == [{"IN": [2], "OTHER": [2, 2, 64]}]


def test_a_file_of_a_warm_up_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup" / "data").mkdir(parents=True)
    with pytest.raises(ModserveError, match="is not a file"):
        warmed(from_file("data", (2,)), tmp_path)


def test_the_same_data_each_time() -> None:
    first, second = (made(spec("IN", (5,))).timed[0]["IN"] for _ in range(2))
    assert first.tolist() == second.tolist()


def test_values_by_name_and_datatype() -> None:
    ids = values("input_ids", (1000,), dtypes.INT64)
    assert (ids.min(), ids.max()) == (0, 99)
    assert set(values("attention_mask", (9,), dtypes.INT64).tolist()) == {1}
    assert set(values("token_type_ids", (9,), dtypes.INT32).tolist()) == {0}
    assert set(values("flag", (9,), dtypes.BOOL).tolist()) == {True}
    assert values("pixels", (1000,), dtypes.UINT8).max() == 255
    assert abs(values("x", (1000,), dtypes.FP16).astype(float)).max() < 10
    assert abs(values("x", (1000,), dtypes.BF16).astype(float)).max() < 10
    assert values("text", (2, 1), dtypes.BYTES).tolist() == [[b"a short text"], [b"a short text"]]
    assert values("lengths", (1,), dtypes.INT64, spec("audio", (1, 40)), spec("n", (7,))).tolist() == [1]


@pytest.mark.parametrize(
    ("text", "name", "dims", "expected"),
    [
        ("", "IN", (-1,), (64,)),
        ("", "IN", (3, -1, -1), (3, 224, 224)),
        ("", "IN", (-1, -1, 3), (224, 224, 3)),
        ("", "IN", (-1, 40), (64, 40)),
        ("", "IN", (2, 3), (2, 3)),
        ("128", "IN", (-1,), (128,)),
        ("128", "IN", (-1, 2, -1), (128, 2, 128)),
        ("3x480x640", "IN", (3, -1, -1), (3, 480, 640)),
        ("3x480x640", "ids", (-1,), (64,)),
        ("ids:32; 3 x 4 x 5", "ids", (-1,), (32,)),
        ("ids:32; 3 x 4 x 5", "IN", (-1, -1, -1), (3, 4, 5)),
        ("in:0:7", "in:0", (-1,), (7,)),
    ],
)
def test_sizes_of_variable_dimensions(text: str, name: str, dims: Shape, expected: Shape) -> None:
    assert Sizes(text, "m").resolve(name, dims) == expected


@pytest.mark.parametrize("text", ["large", "3x", "0", "-1", "IN=3", "ids:", "3,4"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ModserveError, match="model 'm': sample_shape is"):
        Sizes(text, "m")


def test_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ModserveError, match="sample_shape is 3x4 for 'IN', whose dims are"):
        Sizes("IN:3x4", "m").resolve("IN", (-1, 5))


def test_sequences_have_controls_and_states() -> None:
    sequences = SequenceBatching(
        controls=(Control("START", ControlKind.START, dtypes.INT32),),
        states=(
            SequenceState("STATE", "STATE_OUT", dtypes.FP32, (-1, 2)),
            SequenceState("TEXT", "TEXT_OUT", dtypes.BYTES, (1,)),
        ),
    )
    inputs = made(spec("IN", (2,)), batch=2, sequence_batching=sequences).timed[0]
    assert {name: array.shape for name, array in inputs.items()} == {
        "IN": (2, 2),
        "START": (2, 1),
        "STATE": (2, 1, 2),
        "TEXT": (2, 1),
    }
    assert inputs["TEXT"].tolist() == [[b""], [b""]]


@pytest.mark.parametrize(
    ("inputs", "config"),
    [
        ((), {}),
        ((spec("IN", (-1,), ragged=True),), {}),
        (
            (spec("IN", (-1,)),),
            {"batch_inputs": (BatchInput(BatchInputKind.ELEMENT_COUNT, ("N",), dtypes.INT32, "IN"),)},
        ),
    ],
    ids=["no inputs", "ragged", "batch inputs"],
)
def test_what_cannot_be_measured(inputs: tuple[TensorSpec, ...], config: dict[str, Any]) -> None:
    with pytest.raises(UnmeasurableError):
        made(*inputs, **config)


# model_warmup


def zeros_of(dims: Shape, datatype: dtypes.Datatype = dtypes.FP32) -> WarmUpInput:
    return WarmUpInput(datatype, dims, DataKind.ZERO)


def from_file(name: str, dims: Shape, datatype: dtypes.Datatype = dtypes.FP32) -> WarmUpInput:
    return WarmUpInput(datatype, dims, DataKind.FILE, name)


def warmed(value: WarmUpInput, directory: Path = Path(".")) -> Array:
    sample = WarmUp("w", 2, 1, {"IN": value})
    samples = made(spec("IN", (-1,)), batch=4, warm_ups=(sample,), directory=directory)
    assert (samples.source, samples.batch_size, samples.checked) == ("model_warmup", 2, samples.timed)
    return samples.timed[0]["IN"]


def test_warm_up_of_zeros_and_of_random_data() -> None:
    assert warmed(zeros_of((3,))).tolist() == [[0, 0, 0], [0, 0, 0]]
    random = warmed(WarmUpInput(dtypes.FP32, (3,), DataKind.RANDOM))
    assert random.shape == (2, 3)
    assert random.any()
    assert warmed(zeros_of((2,), dtypes.BYTES)).tolist() == [[b"", b""], [b"", b""]]


def test_warm_up_from_a_file_has_the_same_data_in_each_row(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "row").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "warmup" / "text").write_bytes(b"\2\0\0\0ab")
    assert warmed(from_file("row", (2,)), tmp_path).tolist() == [[1, 2], [1, 2]]
    assert warmed(from_file("text", (1,), dtypes.BYTES), tmp_path).tolist() == [[b"ab"], [b"ab"]]


def test_several_samples_and_what_they_leave_out() -> None:
    samples = made(
        spec("IN", (2,)),
        spec("MORE", (1,)),
        batch=4,
        warm_ups=(WarmUp("a", 3, 1, {"IN": zeros_of((2,))}), WarmUp("b", 1, 1, {})),
    )
    assert shapes_of(samples.timed) == [{"IN": [3, 2], "MORE": [3, 1]}, {"IN": [1, 2], "MORE": [1, 1]}]
    assert samples.batch_size == 4


def test_a_reshape_in_a_warm_up() -> None:
    sample = WarmUp("w", 1, 1, {"IN": zeros_of((4,))})
    samples = made(spec("IN", (4,), reshape=(2, -1)), batch=2, warm_ups=(sample,))
    assert shapes_of(samples.timed) == [{"IN": [1, 2, 2]}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (from_file("nosuch", (2,)), "there is no file"),
        (from_file("row", (3,)), "has 8 bytes, but dims \\[3\\] of TYPE_FP32 take 12"),
    ],
)
def test_files_that_are_no_good(tmp_path: Path, value: WarmUpInput, message: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "row").write_bytes(bytes(8))
    with pytest.raises(ModserveError, match=message):
        warmed(value, tmp_path)

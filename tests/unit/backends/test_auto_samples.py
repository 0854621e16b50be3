"""The data that engines are measured with: of the configuration, or made up so that most models take it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.backends.auto.samples import Samples, UnmeasurableError, samples, shapes_of, warmup_of
from modserve.core.configuration.merging import BatchInput, BatchInputKind
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import Control, ControlKind, SequenceBatching, State
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.sample_data import Sizes
from modserve.core.tensors.tensor import Array, Shape


def spec(name: str, dims: Shape, datatype: dtypes.Datatype = dtypes.FP32, **more: Any) -> TensorSpec:
    return TensorSpec(name, datatype, dims, **more)


def made(
    *inputs: TensorSpec,
    batch: int = 0,
    warmup: object = None,
    directory: Path = Path("."),
    sample_shape: str = "",
    large: bool = True,
    **config: Any,
) -> Samples:
    settings = ModelConfig("m", "auto", max_batch_size=batch, inputs=inputs, **config)
    return samples(settings, warmup, directory, sample_shape, large=large)


def values(name: str, dims: Shape, datatype: dtypes.Datatype, *others: TensorSpec) -> Array:
    array = made(spec(name, dims, datatype), *others).timed[0][name]
    assert array.dtype == datatype.numpy
    return array


def test_a_model_that_batches_is_checked_with_one_row_and_with_all() -> None:
    both = made(spec("IN", (3, 8)), batch=16)
    assert shapes_of(both.checked) == [{"IN": [1, 3, 8]}, {"IN": [16, 3, 8]}]
    assert (shapes_of(both.timed), both.batch_size, both.source) == ([{"IN": [16, 3, 8]}], 16, "made-up data")
    one = made(spec("IN", (3, 8)), batch=16, large=False)
    assert (shapes_of(one.timed), one.batch_size) == ([{"IN": [1, 3, 8]}], 1)


def test_a_model_without_a_batch_dimension_or_with_one_row() -> None:
    assert shapes_of(made(spec("IN", (3, 8))).checked) == [{"IN": [3, 8]}]
    assert shapes_of(made(spec("IN", (3,)), batch=1).checked) == [{"IN": [1, 3]}]


def test_the_model_sees_the_reshape() -> None:
    made_up = made(spec("IN", (1,), reshape=()), spec("OTHER", (-1, 4), reshape=(2, -1)), batch=2)
    assert shapes_of(made_up.timed) == [{"IN": [2], "OTHER": [2, 2, 64]}]


@pytest.mark.parametrize("file", ["../../secret", "/etc/hostname", "a/../../b"])
def test_a_file_of_a_warm_up_is_in_its_folder(tmp_path: Path, file: str) -> None:
    sample = {"inputs": {"IN": {"data_type": "TYPE_FP32", "dims": ["2"], "input_data_file": file}}}
    with pytest.raises(ModserveError, match=f"input_data_file '{file}' is outside the model's folder 'warmup'"):
        made(spec("IN", (2,)), warmup=[sample], directory=tmp_path)


def test_a_file_of_a_warm_up_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup" / "data").mkdir(parents=True)
    sample = {"inputs": {"IN": {"data_type": "TYPE_FP32", "dims": ["2"], "input_data_file": "data"}}}
    with pytest.raises(ModserveError, match="is no file"):
        made(spec("IN", (2,)), warmup=[sample], directory=tmp_path)


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
        states=(State("STATE", "STATE_OUT", dtypes.FP32, (-1, 2)), State("TEXT", "TEXT_OUT", dtypes.BYTES, (1,))),
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


def block(dims: list[object], kind: str = "TYPE_FP32", **data: object) -> dict[str, object]:
    return {"data_type": kind, "dims": dims, **data}


def warmed(block: dict[str, object], directory: Path = Path("."), **settings: Any) -> Array:
    sample = {"name": "w", "batch_size": 2, "inputs": {"IN": block}}
    found = made(spec("IN", (-1,)), batch=4, warmup=[sample], directory=directory, **settings)
    assert (found.source, found.batch_size, found.checked) == ("model_warmup", 2, found.timed)
    return found.timed[0]["IN"]


def test_warmup_of_zeros_and_of_random_data() -> None:
    assert warmed(block(["3"], zero_data=True)).tolist() == [[0, 0, 0], [0, 0, 0]]
    random = warmed(block([3], random_data=True))
    assert random.shape == (2, 3)
    assert random.any()
    assert warmed(block([2], "TYPE_STRING", zero_data=True)).tolist() == [[b"", b""], [b"", b""]]


def test_warmup_from_a_file_of_one_row_or_of_all(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "row").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "warmup" / "all").write_bytes(np.array([1, 2, 3, 4], "<f4").tobytes())
    (tmp_path / "warmup" / "text").write_bytes(b"\2\0\0\0ab")
    assert warmed(block([2], input_data_file="row"), tmp_path).tolist() == [[1, 2], [1, 2]]
    assert warmed(block([2], input_data_file="all"), tmp_path).tolist() == [[1, 2], [3, 4]]
    assert warmed(block([1], "TYPE_STRING", input_data_file="text"), tmp_path).tolist() == [[b"ab"], [b"ab"]]


def test_several_samples_and_what_they_leave_out() -> None:
    found = made(
        spec("IN", (2,)),
        spec("MORE", (1,)),
        batch=4,
        warmup=[{"batch_size": 3, "inputs": {"IN": block([2])}}, {"inputs": {}}],
    )
    assert shapes_of(found.timed) == [{"IN": [3, 2], "MORE": [3, 1]}, {"IN": [1, 2], "MORE": [1, 1]}]
    assert found.batch_size == 4


def test_a_reshape_in_a_warmup() -> None:
    sample = {"batch_size": 1, "inputs": {"IN": block([4])}}
    found = made(spec("IN", (4,), reshape=(2, -1)), batch=2, warmup=[sample])
    assert shapes_of(found.timed) == [{"IN": [1, 2, 2]}]


@pytest.mark.parametrize(
    ("name", "described", "message"),
    [
        ("NO", block([1]), "has input 'NO', but the model has IN"),
        ("IN", block([1], "TYPE_X"), "has no data_type"),
        ("IN", block([-1]), "expected sizes of 1 or more"),
        ("IN", block([2], input_data_file="nosuch"), "cannot read"),
        ("IN", block([3], input_data_file="row"), "has 8 bytes, which are not those of a FP32"),
    ],
)
def test_warmups_that_are_wrong(tmp_path: Path, name: str, described: dict[str, object], message: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "row").write_bytes(bytes(8))
    with pytest.raises(ModserveError, match="model 'm'") as caught:
        made(spec("IN", (2,)), warmup=[{"inputs": {name: described}}], directory=tmp_path)
    assert message in caught.value.message


def test_a_sample_that_is_none() -> None:
    with pytest.raises(ModserveError, match="has a str for a sample"):
        made(spec("IN", (2,)), warmup=["IN"])


def test_the_warmup_of_a_configuration() -> None:
    assert warmup_of('{"model_warmup": [1]}') == [1]
    assert [warmup_of(text) for text in ("", "{", "[]", "{}")] == [None] * 4

"""Data in place of requests: every datatype, zeros and random values, and files."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.sample_data import file_tensor, generator, likely, random_values, zeros
from modserve.core.tensors.tensor import Shape, Tensor

# Datatype → what every random value is.
RANGES: dict[Datatype, tuple[float, float]] = {
    dtypes.BOOL: (0, 1),
    dtypes.UINT8: (0, 255),
    **dict.fromkeys((dtypes.UINT16, dtypes.UINT32, dtypes.UINT64), (0, 99)),
    **dict.fromkeys((dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64), (0, 99)),
    **dict.fromkeys((dtypes.FP16, dtypes.BF16, dtypes.FP32, dtypes.FP64), (-6, 6)),
}
ALL = pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)


def test_the_table_has_all_numbers() -> None:
    assert {*RANGES, dtypes.BYTES} == {*dtypes.ALL}


@ALL
def test_zeros(datatype: Datatype) -> None:
    array = zeros(datatype, (2, 3))
    assert (array.shape, array.dtype) == ((2, 3), datatype.numpy)
    empty = b"" if datatype is dtypes.BYTES else 0
    assert all(value == empty for value in array.flat)


@pytest.mark.parametrize(("datatype", "limits"), RANGES.items(), ids=repr)
def test_random_numbers(datatype: Datatype, limits: tuple[float, float]) -> None:
    array = random_values(datatype, (40, 3), generator())
    assert (array.shape, array.dtype) == ((40, 3), datatype.numpy)
    values = array.astype(np.float64)
    assert limits[0] <= values.min() < values.max() <= limits[1]  # and no NaN
    assert np.array_equal(array, random_values(datatype, (40, 3), generator()))


def test_random_texts() -> None:
    texts = random_values(dtypes.BYTES, (5, 4), generator()).reshape(-1).tolist()
    assert all(isinstance(text, bytes) and text.isalpha() and 1 <= len(text) <= 16 for text in texts)
    assert len(set(texts)) > 10


@ALL
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_any_shape(datatype: Datatype, shape: Shape) -> None:
    for array in (
        zeros(datatype, shape),
        random_values(datatype, shape, generator()),
        likely("IN", datatype, shape, generator(), 1),
    ):
        assert Tensor.from_array(array, datatype).shape == shape


def texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


@ALL
def test_a_file(tmp_path: Path, datatype: Datatype) -> None:
    path = tmp_path / "data"
    array = random_values(datatype, (2, 2), generator())
    path.write_bytes(bytes(Tensor.from_array(array, datatype).raw))
    tensor = file_tensor(path, datatype, (2, 2))
    assert (tensor.datatype, tensor.array.tolist()) == (datatype, array.tolist())


def test_what_comes_after_the_first_row_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.arange(6, dtype=np.int32).tobytes())
    assert file_tensor(path, dtypes.INT32, (2,)).array.tolist() == [0, 1]


WRONG: dict[str, tuple[bytes | None, Datatype, str]] = {
    "missing": (None, dtypes.FP32, "there is no file '{}'"),
    "short": (b"1234567", dtypes.FP32, "'{}' has 7 bytes, but dims [2] of TYPE_FP32 take 8: 2 elements of 4 bytes"),
    "few texts": (
        texts(b"one"),
        dtypes.BYTES,
        "'{}' has 1 strings, but dims [2] take 2, each preceded by its length in 4 bytes, little-endian",
    ),
    "many texts": (
        texts(b"one", b"two", b""),
        dtypes.BYTES,
        "'{}' has 3 strings, but dims [2] take 2, each preceded by its length in 4 bytes, little-endian",
    ),
    "plain text": (
        b"just a text",
        dtypes.BYTES,
        "'{}' ends within a string, after 0 of them; expected 2, each preceded by its length in 4 bytes, little-endian",
    ),
}


@pytest.mark.parametrize(("content", "datatype", "message"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_good(tmp_path: Path, content: bytes | None, datatype: Datatype, message: str) -> None:
    path = tmp_path / "data"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModserveError) as refused:
        file_tensor(path, datatype, (2,))
    assert refused.value.message == message.format(path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_file(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "data")
    with pytest.raises(ModserveError, match="is not a file"):
        file_tensor(tmp_path / "data", dtypes.FP32, (2,))


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(ModserveError, match="at most 1073741824 are read"):
        file_tensor(path, dtypes.UINT8, (2,))

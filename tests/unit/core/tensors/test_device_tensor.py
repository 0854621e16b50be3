"""Tensors over arrays of other libraries, on the host and on a device that is none."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dlpack, dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, DeviceTensor, Tensor
from modserve.testing import FakeDevice, FakeDeviceArray

NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_array_on_the_host_is_not_copied() -> None:
    tensor = Tensor.from_dlpack(NUMBERS.copy())
    assert type(tensor) is Tensor
    assert tensor.device is None
    owner = NUMBERS.copy()
    assert np.shares_memory(Tensor.from_dlpack(owner).array, owner)


def test_a_tensor_on_a_device_is_not_copied_by_what_is_said_of_it() -> None:
    device = FakeDevice(number=3)
    tensor = device.tensor(NUMBERS)
    assert (tensor.datatype, tensor.shape, tensor.size) == (dtypes.FP32, (2, 3), 24)
    assert tensor.device == (12, 3)
    assert (tensor.received, tensor.on_host, repr(tensor)) == (None, False, "Tensor(FP32, [2, 3])")
    assert tensor.reshaped((2, 3)) is tensor
    assert isinstance(tensor.source, FakeDeviceArray)
    assert np.shares_memory(tensor.source.there, NUMBERS)
    assert device.downloads == 0


def test_it_is_copied_once_for_whoever_reads_it() -> None:
    device = FakeDevice()
    tensor = device.tensor(NUMBERS)
    np.testing.assert_array_equal(tensor.array, NUMBERS)
    assert tensor.array is tensor.array
    assert bytes(tensor.raw) == NUMBERS.tobytes()
    assert tensor.digest() == Tensor.from_array(NUMBERS).digest()
    assert (device.downloads, tensor.on_host) == (1, True)


def test_readers_at_the_same_time_share_the_copy() -> None:
    device, start = FakeDevice(), threading.Barrier(8)
    tensor = device.tensor(NUMBERS)

    def read(_: int) -> Array:
        start.wait()
        return tensor.array

    with ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(read, range(8)))
    assert all(array is arrays[0] for array in arrays)
    assert device.downloads == 1


def test_another_shape_is_on_the_host_once_somebody_reads_it() -> None:
    device = FakeDevice()
    tensor = device.tensor(NUMBERS)
    flat = tensor.reshaped((6,))
    assert (flat.device, flat.size, flat.shape, flat.received, device.downloads) == (None, 24, (6,), None, 0)
    assert flat.reshaped((2, 3)) is tensor
    assert flat.reshaped((3, 2)).array.tolist() == NUMBERS.reshape(3, 2).tolist()
    assert flat.array.tolist() == list(range(6))
    assert bytes(flat.raw) == NUMBERS.tobytes()
    assert device.downloads == 1


class Plain:
    """An array on a device whose library copies it to the host by itself, as the standard says."""

    def __init__(self) -> None:
        self.there = FakeDevice().upload(NUMBERS)

    def __dlpack__(self, dl_device: tuple[int, int] | None = None, **_: Any) -> object:
        return self.there.__dlpack__() if dl_device is None else NUMBERS.copy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.there.__dlpack_device__()


def test_without_a_function_the_library_copies_to_the_host() -> None:
    tensor = Tensor.from_dlpack(Plain())
    assert isinstance(tensor, DeviceTensor)
    assert tensor.array.tolist() == NUMBERS.tolist()


@pytest.mark.parametrize(
    "array", [NUMBERS.reshape(3, 2), NUMBERS.astype(np.float64)], ids=["of another shape", "of another type"]
)
def test_what_comes_to_the_host_must_be_the_tensor(array: Array) -> None:
    tensor = Tensor.from_dlpack(FakeDevice().upload(NUMBERS), lambda: array)
    with pytest.raises(ModserveError, match=r"on device \(12, 0\) is FP32 \[2,3\], but its copy") as caught:
        _ = tensor.array
    assert caught.value.code is Code.INTERNAL


def test_a_copy_that_fails_may_be_tried_again() -> None:
    results: list[Array | Exception] = [RuntimeError("the device is busy"), NUMBERS]

    def to_host() -> Array:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    tensor = Tensor.from_dlpack(FakeDevice().upload(NUMBERS), to_host)
    with pytest.raises(RuntimeError, match="busy"):
        _ = tensor.array
    assert tensor.array is NUMBERS


@pytest.mark.parametrize("datatype", [row for row in dtypes.ALL if row not in (dtypes.BYTES, dtypes.BF16)], ids=str)
def test_every_datatype(datatype: Datatype) -> None:
    """But BF16, which numpy does not export; its code is in the table all the same."""
    array = np.ones((2, 0, 1), datatype.numpy)
    tensor = FakeDevice().tensor(array)
    assert (tensor.datatype, tensor.shape) == (datatype, (2, 0, 1))
    layout = dlpack.layout_of(array)
    assert (layout.datatype, layout.device, layout.shape) == (datatype, (dlpack.CPU, 0), (2, 0, 1))


def test_a_type_that_the_protocol_lacks() -> None:
    with pytest.raises(ModserveError, match="DLPack type 5 of 64 bits in 1 lanes have no v2 datatype") as caught:
        Tensor.from_dlpack(FakeDevice().upload(np.zeros(2, np.complex64)))
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("array", "in_rows"),
    [
        (NUMBERS, True),
        (NUMBERS.T, False),
        (NUMBERS[:, :2], False),
        (NUMBERS[:1, :2], True),
        (NUMBERS[:, :1], False),
        (NUMBERS[:0].T, True),
        (np.array(1, np.int8), True),
    ],
)
def test_gaps_are_seen(array: Array, in_rows: bool) -> None:
    layout = dlpack.layout_of(array)
    assert layout.in_rows is in_rows is (array.flags.c_contiguous or not array.size)
    assert layout.address == array.ctypes.data or not array.size


def test_a_view_that_is_no_whole_array_comes_to_the_host_in_rows() -> None:
    assert bytes(FakeDevice().tensor(NUMBERS.T).raw) == np.ascontiguousarray(NUMBERS.T).tobytes()

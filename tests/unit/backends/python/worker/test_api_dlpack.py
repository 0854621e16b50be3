"""DLPack in both directions, with numpy on the other side."""

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.backends.python.worker import dlpack, dtypes
from modserve.backends.python.worker.errors import TritonModelException
from modserve.backends.python.worker.tensor import Tensor

DATATYPES = [*dtypes.DTYPES.items(), ("BF16", np.dtype(ml_dtypes.bfloat16))]


class Foreign:
    """A tensor of another library: numpy's memory, and a device that it says."""

    def __init__(self, array: Any, device: int = dlpack.CPU) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, stream: object = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> "tuple[int, int]":
        return self.device, 0


class OnGpu(Foreign):
    def __init__(self, array: Any) -> None:
        super().__init__(array, dlpack.CUDA)

    def cpu(self) -> Foreign:
        return Foreign(self.array)


@pytest.mark.parametrize(("datatype", "dtype"), DATATYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (1,), (0, 2)])
def test_each_datatype_there_and_back(datatype: str, dtype: "np.dtype[Any]", shape: "tuple[int, ...]") -> None:
    values = np.ones(shape, np.int8).astype(dtype)
    again = Tensor.from_dlpack("y", Tensor("x", values).to_dlpack())
    assert (again.name(), again.datatype, again.dims) == ("y", datatype, shape)
    assert bytes(again.raw_form()) == values.tobytes()
    np.testing.assert_array_equal(again.as_numpy(), values)


def test_no_memory_is_copied() -> None:
    values = np.zeros(3, np.float32)
    again = Tensor.from_dlpack("y", Tensor("x", values))
    again.as_numpy()[1] = 5
    assert values.tolist() == [0, 5, 0]


def test_numpy_reads_tensors() -> None:
    received: Any = Tensor.make_unchecked("x", "INT16", (2,), bytearray(b"\1\0\2\0"))
    assert np.from_dlpack(received).tolist() == [1, 2]
    assert received.__dlpack_device__() == (1, 0)


def test_memory_that_may_not_be_written_is_copied() -> None:
    received = Tensor.make_unchecked("x", "INT16", (2,), b"\1\0\2\0")
    again = Tensor.from_dlpack("y", received.to_dlpack())
    again.as_numpy()[0] = 9
    assert received.as_numpy().tolist() == [1, 2]
    values = np.zeros(2)
    values.flags.writeable = False
    assert Tensor.from_dlpack("y", values).as_numpy().tolist() == [0, 0]


def test_a_copy_on_demand() -> None:
    values = np.zeros(2)
    made = Tensor("x", values)
    capsule = made.__dlpack__(copy=True)
    Tensor.from_dlpack("y", capsule).as_numpy()[0] = 9
    assert values.tolist() == [0, 0]


class Watched(np.ndarray[Any, Any]):
    """An array that can be watched."""


def test_memory_is_given_back_with_the_last_array() -> None:
    source = np.zeros(4).view(Watched)
    gone = weakref.ref(source)
    array = Tensor.from_dlpack("y", Foreign(source)).as_numpy()[1:]
    del source
    gc.collect()
    assert gone() is not None
    assert array.tolist() == [0, 0, 0]
    del array
    gc.collect()
    assert gone() is None


def test_a_capsule_that_nobody_takes_gives_the_memory_back() -> None:
    source = np.zeros(4)
    gone = weakref.ref(source)
    capsule = Tensor("x", source).to_dlpack()
    del source
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_memory_that_is_not_contiguous_is_copied() -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    again = Tensor.from_dlpack("y", values.T)
    assert again.dims == (3, 2)
    assert bytes(again.raw_form()) == values.T.tobytes()


def test_a_tensor_on_a_gpu_is_moved() -> None:
    assert Tensor.from_dlpack("y", OnGpu(np.ones(1))).as_numpy().tolist() == [1]


def test_a_capsule_works_once() -> None:
    capsule = Tensor("x", np.zeros(1)).to_dlpack()
    Tensor.from_dlpack("y", capsule)
    with pytest.raises(TritonModelException, match="is not an unused DLPack capsule"):
        Tensor.from_dlpack("y", capsule)


@pytest.mark.parametrize(
    ("name", "source", "text"),
    [
        ("", np.zeros(1), "Tensor name cannot be an empty string"),
        ("y", None, "Provided tensor is not supported.*NoneType"),
        ("y", [1], "Provided tensor is not supported.*list"),
        ("y", np.zeros(1, np.complex64), "no v2 datatype.*code 5, 64 bits"),
        ("y", Foreign(np.zeros(1), dlpack.CUDA), "DLDevice type 2 is not supported"),
        ("y", Foreign(np.zeros(1), 10), "DLDevice type 10 is not supported"),
    ],
)
def test_what_cannot_be_a_tensor(name: str, source: Any, text: str) -> None:
    with pytest.raises(TritonModelException, match=text):
        Tensor.from_dlpack(name, source)


def test_there_are_no_strings() -> None:
    for source in (Tensor("x", np.array([b"a"], np.object_)), Tensor.make_unchecked("x", "BYTES", (0,), b"")):
        with pytest.raises(TritonModelException, match="DLPack does not have support for string tensors"):
            source.to_dlpack()

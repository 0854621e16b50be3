"""Tensors of Python models: what models see, what the server gets, and who owns the memory."""

import gc
import struct
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.backends.python.worker import dtypes, tensor
from modserve.backends.python.worker.byte_tensors import deserialize_bytes_tensor, serialize_byte_tensor
from modserve.backends.python.worker.errors import TritonModelException
from modserve.backends.python.worker.tensor import Tensor


@pytest.fixture
def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor, "bfloat16", lambda: None)


def raw_strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize(("datatype", "dtype"), dtypes.DTYPES.items())
def test_each_datatype_there_and_back(datatype: str, dtype: "np.dtype[Any]") -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    made = Tensor("x", values)
    assert (made.name(), made.datatype, made.shape(), made.dims) == ("x", datatype, [2, 3], (2, 3))
    received = Tensor.make_unchecked("x", datatype, (2, 3), made.raw_form())
    assert received.as_numpy().dtype == dtype
    np.testing.assert_array_equal(received.as_numpy(), values)
    assert bytes(made.raw_form()) == values.tobytes()
    assert received.triton_dtype() == list(dtypes.DTYPES).index(datatype) + 1
    assert made.is_cpu()


def test_a_made_tensor_shares_the_memory_of_its_array() -> None:
    values = np.zeros(3, np.float32)
    made = Tensor("x", values)
    assert made.as_numpy() is values
    values[1] = 5
    assert np.frombuffer(made.raw_form(), np.float32).tolist() == [0, 5, 0]


def test_an_array_that_is_not_contiguous_is_copied() -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3).T
    made = Tensor("x", values)
    assert made.shape() == [3, 2]
    assert bytes(made.raw_form()) == np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_scalars_and_empty_arrays(shape: "tuple[int, ...]") -> None:
    values = np.ones(shape, np.float64)
    made = Tensor("x", values)
    raw = made.raw_form()
    assert bytes(raw) == values.tobytes()
    assert Tensor.make_unchecked("x", "FP64", shape, raw).as_numpy().shape == shape


def test_received_arrays_are_writable_where_the_memory_is() -> None:
    memory = bytearray(8)
    received = Tensor.make_unchecked("x", "INT32", (2,), memoryview(memory))
    received.as_numpy()[0] = 7
    assert memory[0] == 7
    assert received.as_numpy() is received.as_numpy()
    assert bytes(received.raw_form()) == bytes(memory)
    assert not Tensor.make_unchecked("x", "INT32", (2,), bytes(8)).as_numpy().flags.writeable


class Memory(bytearray):
    """One that can be watched."""


def test_an_array_keeps_the_received_memory_alive() -> None:
    memory = Memory(b"\x01\x00\x00\x00")
    gone = weakref.ref(memory)
    array = Tensor.make_unchecked("x", "INT32", (1,), memoryview(memory)).as_numpy()[:1]
    del memory
    gc.collect()
    assert gone() is not None
    assert array.tolist() == [1]
    del array
    gc.collect()
    assert gone() is None


def test_an_array_of_the_server_needs_no_raw_form() -> None:
    values = np.array([b"a", b"bc"], np.object_)
    received = Tensor.make_unchecked("x", "BYTES", (2,), None, values)
    assert received.as_numpy() is values
    assert received.raw_form() == raw_strings(b"a", b"bc")
    turned = Tensor.make_unchecked("x", "INT8", (2, 2), None, np.array([[1, 2], [3, 4]], np.int8).T)
    assert bytes(turned.raw_form()) == b"\1\3\2\4"


@pytest.mark.parametrize(
    ("values", "elements"),
    [
        (np.array([b"a", "ü", 3, None], np.object_), [b"a", "ü".encode(), b"3", b"None"]),
        (np.array([b"a", b"bcd"]), [b"a", b"bcd"]),
        (np.array([[b"a"], [b""]], np.object_).T, [b"a", b""]),
        (np.array(b"a", np.object_), [b"a"]),
        (np.array([], np.object_), []),
    ],
)
def test_bytes(values: Any, elements: "list[bytes]") -> None:
    made = Tensor("x", values)
    assert made.datatype == "BYTES"
    assert made.raw_form() == raw_strings(*elements)
    received = Tensor.make_unchecked("x", "BYTES", values.shape, memoryview(bytes(made.raw_form())))
    assert received.as_numpy().ravel().tolist() == elements
    assert received.as_numpy().shape == values.shape
    assert received.triton_dtype() == 13


def test_bytes_are_taken_when_the_tensor_is_made() -> None:
    values = np.array([b"a"], np.object_)
    made = Tensor("x", values)
    values[0] = b"b"
    assert made.raw_form() == raw_strings(b"a")


def test_serialized_bytes() -> None:
    values = np.array([b"a", b""], np.object_)
    assert serialize_byte_tensor(values) == raw_strings(b"a", b"")
    assert serialize_byte_tensor(values[:0]) == ()
    assert serialize_byte_tensor(np.zeros(1, np.int32)) is None
    assert deserialize_bytes_tensor(raw_strings(b"a", b"")).tolist() == [b"a", b""]
    assert deserialize_bytes_tensor(b"").tolist() == []
    assert deserialize_bytes_tensor(np.frombuffer(raw_strings(b"xy"), np.uint8).data).tolist() == [b"xy"]


@pytest.mark.parametrize("raw", [b"\1", b"\1\0\0\0", raw_strings(b"a") + b"\0\0", b"\xff\xff\xff\xffabc"])
def test_bytes_that_end_too_early(raw: bytes) -> None:
    with pytest.raises(ValueError, match="ends inside"):
        deserialize_bytes_tensor(raw)


def test_bfloat16_with_ml_dtypes() -> None:
    values = np.array([1.5, -2], ml_dtypes.bfloat16)
    made = Tensor("x", values)
    assert (made.datatype, made.triton_dtype()) == ("BF16", 14)
    received = Tensor.make_unchecked("x", "BF16", (2,), made.raw_form())
    assert received.as_numpy().dtype == ml_dtypes.bfloat16
    assert received.as_numpy().tolist() == [1.5, -2]
    assert bytes(received.raw_form()) == values.tobytes()


@pytest.mark.usefixtures("without_bfloat16")
def test_bfloat16_without_ml_dtypes() -> None:
    received = Tensor.make_unchecked("x", "BF16", (1,), b"\x80\x3f")
    with pytest.raises(TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        received.as_numpy()
    again = Tensor.from_dlpack("y", received)
    assert (again.name(), again.datatype, again.dims, bytes(again.raw_form())) == ("y", "BF16", (1,), b"\x80\x3f")
    assert bytes(Tensor.from_dlpack("z", again.to_dlpack()).raw_form()) == b"\x80\x3f"


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("", np.zeros(1), "Tensor name cannot be an empty string"),
        ("x", np.array(["a"]), r"NumPy dtype is not supported.*'x'.*<U1.*astype\(numpy.object_\)"),
        ("x", np.zeros(1, np.complex64), "NumPy dtype is not supported.*complex64"),
        ("x", np.zeros(1, "M8[s]"), "NumPy dtype is not supported"),
        ("x", np.zeros(1, ">f4"), "NumPy dtype is not supported.*order of its bytes"),
        ("x", np.zeros(1, [("a", "f4")]), "NumPy dtype is not supported"),
        ("x", np.zeros(1, np.longdouble), "NumPy dtype is not supported"),
    ],
)
def test_what_cannot_be_a_tensor(name: str, values: Any, text: str) -> None:
    with pytest.raises(TritonModelException, match=text):
        Tensor(name, values)


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        (None, np.zeros(1), "name of a Tensor must be a str, not NoneType"),
        (3, np.zeros(1), "name of a Tensor must be a str, not int"),
        ("x", [1, 2], "'x' needs a numpy array .* not list"),
        ("x", np.float32(1), "not numpy.float32"),
        ("x", None, "not NoneType"),
    ],
)
def test_arguments_of_another_type(name: Any, values: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Tensor(name, values)


def test_a_name_may_be_bytes() -> None:
    assert Tensor(b"x", np.zeros(1)).name() == "x"
    assert repr(Tensor("x", np.zeros(1))) == "Tensor('x', FP64, [1])"


def test_other_names_of_a_numpy_type() -> None:
    assert Tensor("x", np.zeros(1, np.longlong)).datatype == "INT64"
    assert Tensor("x", np.zeros(1, "<f4")).datatype == "FP32"

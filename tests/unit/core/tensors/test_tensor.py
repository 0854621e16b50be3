"""Tensors: from bytes to arrays and back, bit for bit."""

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import (
    Array,
    Tensor,
    TruncatedError,
    count_ahead,
    count_elements,
    decode_elements,
    encode_elements,
    format_shape,
    long_texts,
)
from modserve.core.wire import byte_strings

NUMERIC = [datatype for datatype in dtypes.ALL if datatype.size]
elements = st.lists(st.binary(max_size=12), max_size=8)


def raw_of(datatype: Datatype, count: int) -> bytes:
    """`count` elements of arbitrary bits (NaNs, negative zeros and subnormals among them); of 0 and 1 for BOOL."""
    if datatype is dtypes.BOOL:
        return bytes(index % 2 for index in range(count))
    if datatype is dtypes.BYTES:
        return encode_elements([bytes(range(index)) for index in range(count)])
    return bytes((97 * index + 255) % 256 for index in range(count * datatype.size))


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 6, 1), (0,), (2, 0, 3)], ids=format_shape)
def test_bytes_to_array_to_bytes(datatype: Datatype, shape: tuple[int, ...]) -> None:
    raw = raw_of(datatype, math.prod(shape))
    array = Tensor.from_raw(datatype, shape, raw).array
    assert (array.dtype, array.shape) == (datatype.numpy, shape)
    again = Tensor.from_array(array)
    assert (again.datatype, again.shape, bytes(again.raw)) == (datatype, shape, raw)


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_scalar(datatype: Datatype) -> None:
    raw = raw_of(datatype, 1)
    array = Tensor.from_raw(datatype, (), raw).array
    assert array.shape == ()
    assert bytes(Tensor.from_array(array, datatype).raw) == raw


@pytest.mark.parametrize("datatype", NUMERIC, ids=repr)
def test_reading_the_array_copies_nothing(datatype: Datatype) -> None:
    received = bytearray(raw_of(datatype, 4))
    tensor = Tensor.from_raw(datatype, (4,), memoryview(received))
    assert np.shares_memory(tensor.array.view(np.uint8), np.frombuffer(received, np.uint8))
    assert tensor.array is tensor.array


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_arrays_that_are_no_plain_buffers(datatype: Datatype) -> None:
    square = Tensor.from_raw(datatype, (2, 2), raw_of(datatype, 4)).array
    for view in (square.T, square[:, ::-1], square[:, :1]):
        tensor = Tensor.from_array(view)
        copied = Tensor.from_raw(datatype, view.shape, bytes(tensor.raw)).array
        assert copied.tolist() == view.tolist() or np.array_equal(copied.view("u1"), view.copy().view("u1"))


def test_big_endian_arrays_are_converted() -> None:
    tensor = Tensor.from_array(np.array([1, 2], dtype=">i4"))
    assert (tensor.datatype, bytes(tensor.raw)) == (dtypes.INT32, struct.pack("<2i", 1, 2))


def test_from_array_converts_to_the_datatype_asked_for() -> None:
    tensor = Tensor.from_array(np.array([1.5, -2.0]), dtypes.BF16)
    assert (tensor.datatype, bytes(tensor.raw)) == (dtypes.BF16, b"\xc0\x3f\x00\xc0")


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "ü"]),
        np.array([b"a", "ü".encode()]),
        np.array(["a", "ü"], dtype=object),
        np.array([b"a", "ü"], dtype=object),
    ],
    ids=["str", "bytes", "str objects", "mixed objects"],
)
def test_texts_are_bytes_in_utf8(array: Array) -> None:
    tensor = Tensor.from_array(array)
    assert tensor.datatype is dtypes.BYTES
    assert tensor.array.tolist() == [b"a", b"\xc3\xbc"]
    assert bytes(tensor.raw) == b"\x01\0\0\0a\x02\0\0\0\xc3\xbc"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([b"a", 1], dtype=object), "element 1 of a BYTES tensor is of type 'int', expected bytes or str"),
        (
            np.array([1j]),
            "arrays of numpy type 'complex128' have no v2 datatype; one of [BOOL, UINT8, UINT16, UINT32, UINT64, INT8, "
            "INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES] is needed",
        ),
    ],
    ids=["no bytes", "complex"],
)
def test_arrays_that_are_no_tensors(array: Array, message: str) -> None:
    with pytest.raises(ModserveError) as caught:
        Tensor.from_array(array)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


def test_received_is_what_came_and_nothing_made_here() -> None:
    raw = memoryview(b"\1\0\0\0")
    assert Tensor.from_raw(dtypes.INT32, (1,), raw).received is raw
    made = Tensor.from_array(np.array([1], dtype="<i4"))
    assert made.received is None
    assert bytes(made.raw) == raw
    assert made.received is None


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_reshaped_keeps_the_elements(datatype: Datatype) -> None:
    raw = raw_of(datatype, 6)
    received = Tensor.from_raw(datatype, (2, 3), raw)
    made = Tensor.from_array(received.array)
    for tensor in (received.reshaped((3, 2)), made.reshaped((3, 2))):
        assert (tensor.shape, tensor.array.shape, bytes(tensor.raw)) == ((3, 2), (3, 2), raw)


def test_repr_and_format_shape() -> None:
    assert repr(Tensor.from_raw(dtypes.FP16, (2, 0), b"")) == "Tensor(FP16, [2, 0])"
    assert [format_shape(shape) for shape in [(), (1,), (-1, 16)]] == ["[]", "[1]", "[-1,16]"]


@settings(deadline=None)
@given(elements)
def test_elements_survive(values: list[bytes]) -> None:
    raw = encode_elements(values)
    assert decode_elements(raw) == values
    assert decode_elements(memoryview(raw)) == values
    assert count_elements(raw) == len(values)


runs = st.lists(st.tuples(st.binary(max_size=3), st.integers(min_value=1, max_value=30)), max_size=5)


@settings(deadline=None)
@given(runs, st.integers(min_value=0, max_value=3))
def test_runs_of_equal_lengths_survive(values: list[tuple[bytes, int]], more: int) -> None:
    """Millions of them are not looked at one by one."""
    listed = [value for value, times in values for _ in range(times)]
    raw = encode_elements(listed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_strings, "_LONG", 0)
        patch.setattr(byte_strings, "_AT_A_TIME", 8)
        patch.setattr(byte_strings, "_ALIKE", 2)
        assert count_elements(raw) == len(listed)
        assert count_elements(raw, len(listed) + more) == len(listed)
        if listed:
            assert count_elements(raw, len(listed) - 1) == len(listed)
            assert count_elements(raw, 0) == 1
        texts = Tensor.from_raw(dtypes.BYTES, (len(listed),), raw).array
        assert texts.tolist() == listed
        again = Tensor.from_array(texts)
        assert again.array is texts
        assert again.raw == raw


def test_runs_are_looked_at_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    alike = byte_strings._alike

    def counted_look(raw: Any, position: int, length: int) -> int:
        looks.append(position)
        return alike(raw, position, length)

    monkeypatch.setattr(byte_strings, "_alike", counted_look)
    texts = Tensor.from_raw(dtypes.BYTES, (200_000,), b"\2\0\0\0ab" * 200_000)
    assert texts.count_elements() == 200_000
    assert len(looks) < 20
    assert Tensor.from_raw(dtypes.BYTES, (1,), texts.raw).count_elements() == 2


def test_received_texts_are_not_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Tensor.from_raw(dtypes.BYTES, (1,), encode_elements([b"a"])).array[0] = b"b"


@pytest.mark.parametrize("raw", [b"\0" * 12, b"\0" * 4, b"\0\0\0\0\2\0\0\0a", b"\0" * 7], ids=repr)
def test_long_texts_that_are_no_tensor_of_their_shape(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_strings, "_LONG", 0)
    with pytest.raises(ValueError, match=r"element|broadcast"):
        Tensor.from_raw(dtypes.BYTES, (2,), raw).array  # noqa: B018


TRUNCATED: list[tuple[bytes, tuple[int, int, bool]]] = [
    (b"\1", (0, 1, True)),
    (b"\1\0\0", (0, 3, True)),
    (b"\1\0\0\0", (0, 0, False)),
    (b"\2\0\0\0a", (0, 1, False)),
    (b"\1\0\0\0a\0\0", (1, 2, True)),
    (b"\0\0\0\0\1\0\0\0a\5\0\0\0abc", (2, 3, False)),
    (b"\xff\xff\xff\xffabc", (0, 3, False)),
]


def counted(raw: bytes) -> int:
    (texts,) = long_texts([Tensor.from_raw(dtypes.BYTES, (99,), raw)], 0)
    count_ahead([texts])
    return texts.count_elements()


@pytest.mark.parametrize("read", [decode_elements, count_elements, counted])
@pytest.mark.parametrize(("raw", "expected"), TRUNCATED, ids=[repr(raw) for raw, _ in TRUNCATED])
def test_truncated_elements(
    read: Any, raw: bytes, expected: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_strings, "_LONG", 0)
    with pytest.raises(TruncatedError) as caught:
        read(raw)
    assert (caught.value.complete, caught.value.left, caught.value.in_length) == expected


@settings(deadline=None)
@given(elements, st.integers(min_value=1, max_value=40))
def test_both_readers_find_the_same_truncation(values: list[bytes], cut: int) -> None:
    raw = encode_elements(values)
    raw = raw[: max(0, len(raw) - cut)]
    found: list[Any] = []
    readers: list[Callable[[bytes], int]] = [lambda raw: len(decode_elements(raw)), count_elements]
    for read in readers:
        try:
            found.append(read(raw))
        except TruncatedError as error:
            found.append((error.complete, error.left, error.in_length))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("texts", "size"),
    [
        (Tensor.from_raw(dtypes.FP32, (2,), bytes(8)), 8),
        (Tensor.from_array(np.zeros((2, 3), np.int16)), 12),
        (Tensor.from_raw(dtypes.BYTES, (2,), encode_elements([b"a", b"bc"])), 11),
        (Tensor.from_array(np.array(["a", b"bc"], object)), 19),
    ],
    ids=["received", "array", "received texts", "texts"],
)
def test_the_bytes_that_elements_hold(texts: Tensor, size: int) -> None:
    assert texts.size == size


def test_a_masked_array_is_a_tensor_only_without_masked_elements() -> None:
    values = np.ma.array([1.0, 2.0], mask=[False, False])
    tensor = Tensor.from_array(values)
    assert type(tensor.array) is np.ndarray
    assert tensor.array.tolist() == [1, 2]
    values[1] = np.ma.masked
    with pytest.raises(ModserveError, match=r"masked elements; array\.filled"):
        Tensor.from_array(values)

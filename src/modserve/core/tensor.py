"""Tensors: a datatype, a shape, and either the received bytes, an array, or both.

Buffers stay views of what was received until somebody needs an array; BYTES tensors stay in their raw form until
somebody reads elements.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from . import dtypes
from .dtypes import Datatype
from .errors import invalid

Buffer: TypeAlias = bytes | bytearray | memoryview
Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = np.ndarray[Any, Any]

_LENGTH = struct.Struct("<I")

_LONG = 256 * 1024
"""Bytes of raw BYTES that are counted and decoded in parts, between which other threads run."""
_AT_A_TIME = 32 * 1024
"""Elements of which something is made in one go, in which no other thread runs."""
_ALIKE = 64
"""Elements of one length in a row after which the next are likely to have it, too."""
_MOST = 2**63 - 1
_BYTES = {bytes}


class Tensor:
    """An immutable n-dimensional array of one datatype, in row-major order.

    Make one with `from_raw` (bytes in the protocol's raw form) or `from_array`. The other view is made when it is
    first read and then kept. Reading `array` of a numeric tensor made from bytes copies nothing.
    """

    __slots__ = ("_array", "_counted", "_digest", "_raw", "datatype", "shape")

    def __init__(self, datatype: Datatype, shape: Shape, raw: Buffer | None, array: Array | None) -> None:
        self.datatype = datatype
        self.shape = shape
        self._raw = raw
        self._array = array
        self._counted: int | TruncatedError | None = None

    @classmethod
    def from_raw(cls, datatype: Datatype, shape: Shape, raw: Buffer) -> "Tensor":
        """A tensor over `raw`, which nobody may change afterwards. Sizes are checked by `core.normalize`."""
        return cls(datatype, shape, raw, None)

    @classmethod
    def from_array(cls, array: Array, datatype: Datatype | None = None) -> "Tensor":
        """A tensor over `array`, or of it as `datatype`. Raises INVALID_ARG for a type which the protocol lacks."""
        datatype = datatype or dtypes.from_numpy(array.dtype)
        if datatype is None:
            raise invalid(
                f"arrays of numpy type '{array.dtype}' have no v2 datatype; one of {list(dtypes.ALL)} is needed"
            )
        if datatype is dtypes.BYTES:
            array = _bytes_array(array)
        elif array.dtype != datatype.numpy:
            array = array.astype(datatype.numpy)
        return cls(datatype, array.shape, None, array)

    @property
    def array(self) -> Array:
        """The elements, of shape `shape`; BYTES tensors give an object array of ``bytes``. Read-only over raw bytes.

        Raises INVALID_ARG when the raw bytes are no such tensor.
        """
        array = self._array
        if array is None:
            raw = self._raw
            assert raw is not None, "a tensor has bytes or an array: this is a bug"
            if self.datatype.size:
                array = np.frombuffer(raw, dtype=self.datatype.numpy).reshape(self.shape)
                if type(raw) is not bytes and array.flags.writeable:
                    array.flags.writeable = False
            else:
                array = _decoded(raw, math.prod(self.shape)).reshape(self.shape)
                array.flags.writeable = False  # as for numbers
            self._array = array
        return array

    @property
    def raw(self) -> Buffer:
        """The protocol's raw form: little-endian, row-major; BYTES elements each behind a 4-byte length."""
        raw = self._raw
        if raw is None:
            array = self._array
            assert array is not None, "a tensor has bytes or an array: this is a bug"
            if self.datatype.size:
                # An array that is no plain buffer of memory (bfloat16, a transposed view) is copied out.
                contiguous = np.ascontiguousarray(array)
                raw = contiguous.reshape(-1).view(np.uint8).data if array.size else b""
            else:
                raw = _encoded(array.reshape(-1))
            self._raw = raw
        return raw

    @property
    def received(self) -> Buffer | None:
        """The bytes this tensor was made from, unchecked; None if it was made from an array."""
        return self._raw if self._array is None else None

    def count_elements(self) -> int:
        """How many elements the raw form of BYTES has, one too many standing for more. Raises `TruncatedError`."""
        counted = self._counted
        if counted is None:
            try:
                counted = count_elements(self.raw, math.prod(self.shape))
            except TruncatedError as error:
                counted = error.with_traceback(None)
            self._counted = counted
        if isinstance(counted, TruncatedError):
            raise TruncatedError(counted.complete, counted.left, counted.in_length)
        return counted

    def digest(self) -> bytes:
        """256 bits of a cryptographic hash of the raw form, reckoned once: 85 ms for 100 MiB."""
        digest: bytes | None = getattr(self, "_digest", None)
        if digest is None:
            digest = self._digest = hashlib.blake2b(self.raw, digest_size=32).digest()
        return digest

    @property
    def size(self) -> int:
        """Bytes that the elements hold, about."""
        array = self._array
        if array is None:
            return 0 if self._raw is None else len(self._raw)
        if self.datatype.size:
            return array.nbytes
        return array.nbytes + sum(map(len, array.reshape(-1).tolist()))

    def reshaped(self, shape: Shape) -> "Tensor":
        """The same elements under another shape of equal element count."""
        array = self._array
        return Tensor(self.datatype, shape, self._raw, None if array is None else array.reshape(shape))

    def __repr__(self) -> str:
        return f"Tensor({self.datatype.name}, {list(self.shape)})"


def _bytes_array(array: Array) -> Array:
    """An object array whose elements are all ``bytes``; str elements are encoded as UTF-8."""
    flat = array.reshape(-1)
    if array.dtype.char == "O" and all(set(map(type, some)) <= _BYTES for some in _lists(flat)):
        return array
    out = np.empty(len(flat), dtype=object)
    for index, element in enumerate(flat.tolist()):
        if isinstance(element, str):
            element = element.encode()
        elif not isinstance(element, bytes):
            raise invalid(
                f"element {index} of a BYTES tensor is of type '{type(element).__name__}', expected bytes or str"
            )
        out[index] = element
    return out.reshape(array.shape)


def _encoded(flat: Array) -> bytes:
    """The raw form of BYTES elements, made of some at a time."""
    return b"".join([encode_elements(some) for some in _lists(flat)])


def _lists(flat: Array) -> Iterator[list[bytes]]:
    """The elements, some at a time."""
    for start in range(0, len(flat), _AT_A_TIME):
        yield flat[start : start + _AT_A_TIME].tolist()


def _decoded(raw: Buffer, count: int) -> Array:
    """The `count` elements of a raw BYTES tensor."""
    array = np.empty(count, dtype=object)
    if len(raw) <= _LONG:
        array[:] = decode_elements(raw)
        return array
    decoded = 0
    for some in _decode_some(bytes(raw)):
        array[decoded : decoded + len(some)] = some
        decoded += len(some)
    if decoded != count:
        raise ValueError(f"{decoded} elements for a tensor of {count}")
    return array


def encode_elements(elements: Iterable[bytes]) -> bytes:
    """The raw form of BYTES elements: each behind its length, a 4-byte little-endian unsigned integer."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


class TruncatedError(ValueError):
    """Raw BYTES that end inside an element. `complete` elements came before; `left` bytes were left over."""

    def __init__(self, complete: int, left: int, in_length: bool) -> None:
        super().__init__(f"{left} bytes left after {complete} elements")
        self.complete = complete
        self.left = left
        self.in_length = in_length


def decode_elements(raw: Buffer) -> list[bytes]:
    """The elements of a raw BYTES tensor. Raises `TruncatedError`."""
    data = bytes(raw)
    out: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        start = position + 4
        if start > end:
            raise TruncatedError(len(out), end - position, in_length=True)
        position = start + int.from_bytes(data[position:start], "little")
        if position > end:
            raise TruncatedError(len(out), end - start, in_length=False)
        out.append(data[start:position])
    return out


def _decode_some(data: bytes) -> Iterator[list[bytes]]:
    """As `decode_elements`, of a long tensor: about `_AT_A_TIME` elements at a time."""
    alike = 0
    some: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        some.append(data[start:position])
        if position > start:
            alike = 0
        else:
            alike += 1
            if alike >= _ALIKE:
                times = _alike(data, position, 0)
                alike = _ALIKE if times >= _AT_A_TIME else 0
                some += [b""] * times
                position += 4 * times
        if len(some) >= _AT_A_TIME:
            yield some
            some = []
    if position > end:
        raise ValueError("the last element is cut")
    yield some


def count_elements(raw: Buffer, most: int = _MOST) -> int:
    """How many elements a raw BYTES tensor has; of a long one at most `most` + 1. Raises `TruncatedError`."""
    view = memoryview(raw)
    unpack = _LENGTH.unpack_from
    count = 0
    position, end = 0, len(view)
    if end > _LONG:
        return _count_many(view, most)
    while position < end:
        if position + 4 > end:
            raise TruncatedError(count, end - position, in_length=True)
        following = position + 4 + unpack(view, position)[0]
        if following > end:
            raise TruncatedError(count, end - position - 4, in_length=False)
        count += 1
        position = following
    return count


def _count_many(view: memoryview, most: int) -> int:
    """Elements of equal lengths are not counted one by one."""
    unpack = _LENGTH.unpack_from
    count = alike = 0
    before = -1
    position, end = 0, len(view)
    while position < end and count <= most:
        if position + 4 > end:
            raise TruncatedError(count, end - position, in_length=True)
        length = unpack(view, position)[0]
        following = position + 4 + length
        if following > end:
            raise TruncatedError(count, end - position - 4, in_length=False)
        count += 1
        position = following
        if length != before:
            before, alike = length, 0
        else:
            alike += 1
            if alike >= _ALIKE:
                times = _alike(view, position, length)
                alike = _ALIKE if times >= _AT_A_TIME else 0
                count += times
                position += times * (4 + length)
    return min(count, most + 1)


def _alike(raw: Buffer, position: int, length: int) -> int:
    """How many elements from `position` on have this length, up to `_AT_A_TIME`: much sooner known than one by one."""
    step = 4 + length
    room = (len(raw) - position) // step
    count, look = 0, _ALIKE
    while count < min(room, _AT_A_TIME):
        look = min(look, room - count)
        lengths = np.ndarray((look,), "<u4", raw, position + count * step, (step,))
        others = np.flatnonzero(lengths != length)
        if len(others):
            return count + int(others[0])
        count += look
        look *= 2
    return count


def long_texts(tensors: Iterable[Tensor], limit: int) -> list[Tensor]:
    """The BYTES among received tensors that have more than `limit` bytes."""
    texts = [tensor for tensor in tensors if tensor.datatype is dtypes.BYTES]
    return [text for text in texts if (raw := text.received) is not None and len(raw) > limit]


def count_ahead(tensors: Iterable[Tensor]) -> None:
    """Count the elements of BYTES tensors now. What is wrong with them is raised when the count is needed."""
    for tensor in tensors:
        with suppress(TruncatedError):
            tensor.count_elements()


def digest_ahead(tensors: Iterable[Tensor], limit: int) -> None:
    """Compute the digests of tensors of more than `limit` bytes now, for a model whose responses are cached."""
    for tensor in tensors:
        if len(tensor.raw) > limit:
            tensor.digest()


def matches(dims: Shape, shape: Shape) -> bool:
    """Whether two shapes are the same where neither is variable (-1)."""
    return len(dims) == len(shape) and all(a == b or -1 in (a, b) for a, b in zip(dims, shape, strict=True))


def as_reshape(reshape: Shape, dims: Shape, shape: Shape) -> Shape:
    """What a tensor of `shape`, which `dims` describe, is reshaped to: variable dimensions keep their order."""
    variable = iter([size for size, dim in zip(shape, dims, strict=True) if dim == -1])
    return tuple([next(variable) if size == -1 else size for size in reshape])


def format_shape(shape: Sequence[int]) -> str:
    """A shape as messages print it: ``[1,16]``, no spaces."""
    return "[" + ",".join(map(str, shape)) + "]"

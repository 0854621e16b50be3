"""Tensors: a datatype, a shape, and the received bytes, an array, or an array in the memory of a device.

Buffers stay views of the received data until an array is needed; BYTES tensors stay in their raw form until elements
are read; device tensors stay on the device until they are read on the host.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

import numpy as np

from modserve.core.runtime.event_loop import yield_now

from ..errors import internal, invalid
from ..wire.byte_strings import Array as Array
from ..wire.byte_strings import Buffer as Buffer
from ..wire.byte_strings import TruncatedError as TruncatedError
from ..wire.byte_strings import count_elements as count_elements
from ..wire.byte_strings import decode_array, encode_array, in_lists
from ..wire.byte_strings import decode_elements as decode_elements
from ..wire.byte_strings import encode_elements as encode_elements
from . import dlpack, dtypes
from .dtypes import Datatype

Shape: TypeAlias = tuple[int, ...]

_BYTES = {bytes}


class Tensor:
    """An immutable n-dimensional array of one datatype, in row-major order.

    Created by `from_raw` (bytes in the protocol's raw form), `from_array` or `from_dlpack`. The other views are made on
    first use and kept. Reading `array` of a numeric tensor made from bytes copies nothing.
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
        """Make a tensor over `raw`, which must not change afterwards. `core.requests.normalize` checks sizes."""
        return cls(datatype, shape, raw, None)

    @classmethod
    def from_array(cls, array: Array, datatype: Datatype | None = None) -> "Tensor":
        """Make a tensor over `array`, or of it as `datatype`.

        Raises INVALID_ARG for a type that the protocol lacks, and for masked elements.
        """
        if type(array) is not np.ndarray:
            if np.ma.is_masked(array):
                raise invalid("an array has masked elements; array.filled(value) gives them a value")
            array = np.asarray(array)
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

    @staticmethod
    def from_dlpack(source: dlpack.Exporter, to_host: Callable[[], Array] | None = None) -> "Tensor":
        """Make a tensor over another library's array: in host memory an ordinary one, otherwise a `DeviceTensor`.

        `source` must not change afterwards. `to_host` copies it to the host. Without it, `source` must support the
        ``dl_device`` argument of ``__dlpack__``, and numpy its type. Raises INVALID_ARG like `from_array`.
        """
        if dlpack.device_of(source).type in dlpack.HOST_TYPES:
            return Tensor.from_array(_on_host(source) if to_host is None else to_host())
        return DeviceTensor(source, to_host)

    @property
    def device(self) -> dlpack.Device | None:
        """The device of the elements, if they are not in host memory."""
        return None

    @property
    def array(self) -> Array:
        """The elements, of shape `shape`. BYTES tensors give an object array of ``bytes``. Read-only over raw bytes.

        Raises INVALID_ARG if the raw bytes do not match.
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
                array = decode_array(raw, math.prod(self.shape)).reshape(self.shape)
                array.flags.writeable = False  # as for numbers
            self._array = array
        return array

    @property
    def raw(self) -> Buffer:
        """The protocol's raw form: little-endian, row-major; BYTES elements are preceded by a 4-byte length."""
        raw = self._raw
        if raw is None:
            array = self._array
            assert array is not None, "a tensor has bytes or an array: this is a bug"
            if self.datatype.size:
                # An array that is no plain buffer of memory (bfloat16, a transposed view) is copied out.
                contiguous = np.ascontiguousarray(array)
                raw = contiguous.reshape(-1).view(np.uint8).data if array.size else b""
            else:
                raw = encode_array(array.reshape(-1))
            self._raw = raw
        return raw

    @property
    def received(self) -> Buffer | None:
        """The bytes of this tensor, unchecked; None if it was made from an array."""
        return self._raw if self._array is None else None

    def count_elements(self) -> int:
        """Count the elements in the raw form of BYTES; one too many stands for more. Raises `TruncatedError`."""
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
        """Return 256 bits of a cryptographic hash of the raw form, computed once: 85 ms for 100 MiB."""
        digest: bytes | None = getattr(self, "_digest", None)
        if digest is None:
            digest = self._digest = hashlib.blake2b(self.raw, digest_size=32).digest()
        return digest

    @property
    def size(self) -> int:
        """Approximate bytes of the elements."""
        array = self._array
        if array is None:
            return 0 if self._raw is None else len(self._raw)
        if self.datatype.size:
            return array.nbytes
        return array.nbytes + sum(map(len, array.reshape(-1).tolist()))

    def reshaped(self, shape: Shape) -> "Tensor":
        """Return the same elements under another shape of equal element count."""
        array = self._array
        return Tensor(self.datatype, shape, self._raw, None if array is None else array.reshape(shape))

    def __repr__(self) -> str:
        return f"Tensor({self.datatype.name}, {list(self.shape)})"


class DeviceTensor(Tensor):
    """Tensor in the memory of a device, held by `source`: the third form, besides raw bytes and arrays.

    Made where the array was, see `dlpack.layout_of`. Reading `array` or `raw` copies it to the host, once, on the
    reader's thread. Usable from any thread.
    """

    __slots__ = ("_lock", "_to_host", "layout", "source")

    def __init__(self, source: dlpack.Exporter, to_host: Callable[[], Array] | None = None) -> None:
        layout = dlpack.layout_of(source)
        super().__init__(layout.datatype, layout.shape, None, None)
        self.layout = layout
        self.source = source
        self._to_host = to_host
        self._lock = threading.Lock()

    @property
    def device(self) -> dlpack.Device:
        return self.layout.device

    @property
    def on_host(self) -> bool:
        """True if it has been read on the host, so that both memories hold it."""
        return self._array is not None

    @property
    def array(self) -> Array:
        """The elements, copied to the host on first use. Raises INTERNAL if the copy is another array."""
        with self._lock:
            array = self._array
            if array is None:
                array = _on_host(self.source) if self._to_host is None else self._to_host()
                if array.shape != self.shape or array.dtype != self.datatype.numpy:
                    expected = f"{self.datatype} {format_shape(self.shape)}"
                    raise internal(
                        f"a tensor on device {tuple(self.layout.device)} is {expected}, but its copy on the host is "
                        f"{array.dtype} {format_shape(array.shape)}"
                    )
                self._array = array
            return array

    @property
    def raw(self) -> Buffer:
        return Tensor.from_array(self.array, self.datatype).raw

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.datatype.size

    def reshaped(self, shape: Shape) -> Tensor:
        """Reshape like `Tensor.reshaped`. Reading the result copies it to the host."""
        return self if shape == self.shape else _Reshaped(self, shape)


class _Reshaped(Tensor):
    """A tensor of a device under another shape than its `source` has."""

    __slots__ = ("_whole",)

    def __init__(self, whole: DeviceTensor, shape: Shape) -> None:
        super().__init__(whole.datatype, shape, None, None)
        self._whole = whole

    @property
    def array(self) -> Array:
        return self._whole.array.reshape(self.shape)

    @property
    def raw(self) -> Buffer:
        return self._whole.raw

    @property
    def size(self) -> int:
        return self._whole.size

    def reshaped(self, shape: Shape) -> Tensor:
        return self._whole.reshaped(shape)


def _on_host(source: dlpack.Exporter) -> Array:
    """Convert another library's array to numpy: over its memory if that is the host's, else a copy."""
    array: Array = np.from_dlpack(cast(Any, source), device="cpu")
    return array


def _bytes_array(array: Array) -> Array:
    """Return an object array of ``bytes`` elements only; str elements are encoded as UTF-8."""
    flat = array.reshape(-1)
    if array.dtype.char == "O" and all(set(map(type, some)) <= _BYTES for some in in_lists(flat)):
        return array
    out = np.empty(len(flat), dtype=object)
    for index, element in enumerate(flat.tolist()):
        if not index & 0x7FFF:
            yield_now()
        if isinstance(element, str):
            element = element.encode()
        elif not isinstance(element, bytes):
            raise invalid(
                f"element {index} of a BYTES tensor is of type '{type(element).__name__}', expected bytes or str"
            )
        out[index] = element
    return out.reshape(array.shape)


def long_texts(tensors: Iterable[Tensor], limit: int) -> list[Tensor]:
    """Return the received BYTES tensors of more than `limit` bytes."""
    texts = [tensor for tensor in tensors if tensor.datatype is dtypes.BYTES]
    return [text for text in texts if (raw := text.received) is not None and len(raw) > limit]


def count_ahead(tensors: Iterable[Tensor]) -> None:
    """Count the elements of BYTES tensors now. Their faults are raised when the count is needed."""
    for tensor in tensors:
        with suppress(TruncatedError):
            tensor.count_elements()


def digest_ahead(tensors: Iterable[Tensor], limit: int) -> None:
    """Compute the digests of tensors of more than `limit` bytes now, for a model with cached responses."""
    for tensor in tensors:
        if len(tensor.raw) > limit:
            tensor.digest()


def matches(dims: Shape, shape: Shape) -> bool:
    """Return True if two shapes are equal wherever neither is variable (-1)."""
    return len(dims) == len(shape) and all(a == b or -1 in (a, b) for a, b in zip(dims, shape, strict=True))


def as_reshape(reshape: Shape, dims: Shape, shape: Shape) -> Shape:
    """Return the reshaped `shape` of a tensor with these `dims`: variable dimensions keep their order."""
    variable = iter([size for size, dim in zip(shape, dims, strict=True) if dim == -1])
    return tuple([next(variable) if size == -1 else size for size in reshape])


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape for messages: ``[1,16]``, no spaces."""
    return "[" + ",".join(map(str, shape)) + "]"

"""Inspection of arrays through DLPack, the protocol for exchanging arrays between libraries on any device.

An exporter creates a capsule with a ``DLManagedTensor`` (dlpack.h up to version 0.8, still supported by every
exporter). This module only inspects the capsule, which frees its contents when it is deleted unconsumed.
"""

import ctypes
import math
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from ..errors import invalid
from . import dtypes
from .dtypes import Datatype


class Device(NamedTuple):
    """Device of an array, as ``__dlpack_device__`` returns it."""

    type: int
    """A ``DLDeviceType``."""
    number: int


CPU: Final = 1
CUDA: Final = 2
EXTENSION: Final = 12
"""Device type that DLPack reserves for tests of unknown devices."""
HOST_TYPES: Final = frozenset({CPU, 3, 11})
"""Device types of host memory: plain, and pinned for CUDA and ROCm."""


@runtime_checkable
class Exporter(Protocol):
    """An array of any library, as in the array API standard."""

    def __dlpack__(self, *, stream: Any = None) -> object:
        """Create a capsule ``dltensor``. Work on `stream` (None: CUDA's default) waits until the array is computed."""

    def __dlpack_device__(self) -> tuple[int, int]: ...


class ArrayLayout(NamedTuple):
    """An array in memory. `address` is valid while the exporter and `capsule` exist."""

    device: Device
    datatype: Datatype
    shape: tuple[int, ...]
    address: int
    in_rows: bool
    """True if row-major without gaps, like all tensors of the protocol."""
    capsule: object


class RawTensor(ctypes.Structure):
    """``DLTensor``, the first field of ``DLManagedTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


TYPE_CODES: Final[dict[str, int]] = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""numpy ``kind`` → ``DLDataTypeCode``."""
_BFLOAT = 4
_DATATYPES = {
    **{(TYPE_CODES["i"], 8 * row.size): row for row in (dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64)},
    **{(TYPE_CODES["u"], 8 * row.size): row for row in (dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64)},
    **{(TYPE_CODES["f"], 8 * row.size): row for row in (dtypes.FP16, dtypes.FP32, dtypes.FP64)},
    (_BFLOAT, 16): dtypes.BF16,
    (TYPE_CODES["b"], 8): dtypes.BOOL,
}
"""Code and bits of a ``DLDataType`` → datatype."""

CAPSULE_NAME: Final = b"dltensor"
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def device_of(source: Exporter) -> Device:
    type, number = source.__dlpack_device__()
    return Device(int(type), int(number))


def layout_of(source: Exporter) -> ArrayLayout:
    """Return the location and layout of an array. Raises INVALID_ARG for element types that the protocol lacks.

    On a GPU, later work on CUDA's (legacy) default stream waits until the array is computed. Must be called on the
    thread that created the array, as PyTorch assumes the thread's current device and stream.
    """
    capsule = source.__dlpack__(stream=None)  # without `stream`, PyTorch does not synchronise
    tensor = RawTensor.from_address(_pointer_of(capsule, CAPSULE_NAME))
    datatype = _DATATYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        what = f"DLPack type {tensor.code} of {tensor.bits} bits in {tensor.lanes} lanes"
        raise invalid(f"arrays of {what} have no v2 datatype; one of {list(dtypes.ALL)} is needed")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    return ArrayLayout(
        Device(tensor.device_type, tensor.device_id),
        datatype,
        shape,
        (tensor.data or 0) + tensor.byte_offset,
        strides is None or _in_rows(shape, strides),
        capsule,
    )


def _in_rows(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if 0 in shape:
        return True
    following = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return all(
        size == 1 or stride == expected for size, stride, expected in zip(shape, strides, following, strict=True)
    )

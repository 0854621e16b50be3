"""A fake device: arrays in host memory that claim to be elsewhere, and count their copies."""

import ctypes
from typing import Any

import numpy as np

from modserve.core.tensors import dlpack
from modserve.core.tensors.tensor import Array, DeviceTensor, Tensor

_capsule_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = (("tensor", dlpack.RawTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class FakeDevice:
    """Counts the arrays that are copied to it (`uploads`) and from it (`downloads`)."""

    def __init__(self, type: int = dlpack.EXTENSION, number: int = 0) -> None:
        self.type = type
        self.number = number
        self.uploads = 0
        self.downloads = 0

    def upload(self, array: Array) -> "FakeDeviceArray":
        self.uploads += 1
        return FakeDeviceArray(self, array.copy())

    def tensor(self, array: Array) -> DeviceTensor:
        """Return the output of an engine that has computed `array` on the device."""
        source = FakeDeviceArray(self, array)
        tensor = Tensor.from_dlpack(source, source.download)
        assert isinstance(tensor, DeviceTensor), f"device type {self.type} is host memory"
        return tensor


class FakeDeviceArray:
    """An array on a `FakeDevice`; `there` gives engines on the device access to it."""

    def __init__(self, device: FakeDevice, there: Array) -> None:
        self.device = device
        self.there = there
        self._shape = (ctypes.c_int64 * there.ndim)(*there.shape)
        self._strides = (ctypes.c_int64 * there.ndim)(*(stride // there.itemsize for stride in there.strides))
        self._managed = _Managed(
            dlpack.RawTensor(
                data=there.ctypes.data,
                device_type=device.type,
                device_id=device.number,
                ndim=there.ndim,
                code=dlpack.TYPE_CODES[there.dtype.kind],
                bits=8 * there.itemsize,
                lanes=1,
                shape=self._shape,
                strides=self._strides,
            )
        )

    def download(self) -> Array:
        """Return the array on the host."""
        self.device.downloads += 1
        return np.array(self.there)

    def __dlpack__(self, **_: Any) -> object:
        return _capsule_of(ctypes.addressof(self._managed), dlpack.CAPSULE_NAME, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.type, self.device.number

"""DLPack, both ways, without any other library than numpy.

A capsule named "dltensor" owns a DLManagedTensor. Who takes it renames it "used_dltensor", and calls the deleter of
the structure when the memory is no longer needed. numpy makes capsules, but neither of bfloat16 nor, in older
releases, of booleans: these go out as unsigned integers, and then the type in the structure is changed.
"""

import ctypes
import sys
from typing import Any, Dict, Optional, Tuple

import numpy as np

from .dtypes import DATATYPES, DTYPES
from .errors import TritonModelException, type_name

CPU = 1
CUDA = 2
CUDA_HOST = 3

_BFLOAT = 4
_BOOL = 6
_KINDS = {0: "i", 1: "u", 2: "f", _BOOL: "b"}
_PATCHED = {"BF16": (np.uint16, _BFLOAT), "BOOL": (np.uint8, _BOOL)}


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


_NAME = b"dltensor"
_USED = b"used_dltensor"  # the capsule refers to these very bytes


def _of_cpython(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of CPython's C API. PyPy has none of it, and models that use no DLPack run there."""
    api = getattr(ctypes, "pythonapi", None)
    if api is None:
        return _raise_unsupported
    function = getattr(api, name)
    function.restype, function.argtypes = result, arguments
    return function


def _raise_unsupported(*arguments: Any) -> Any:
    raise TritonModelException(f"DLPack needs CPython; this is {sys.implementation.name}")


_pointer = _of_cpython("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_is_valid = _of_cpython("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_rename = _of_cpython("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class _Owner:
    """The base of an array over the memory of a capsule: gives the memory back when the last such array is gone."""

    __slots__ = ("__array_interface__", "_managed")

    def __init__(self, managed: _Managed, interface: Dict[str, Any]) -> None:
        self._managed = managed
        self.__array_interface__ = interface

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.addressof(self._managed))


def capsule(array: "np.ndarray[Any, Any]", datatype: str) -> object:
    """Make a capsule over the memory of an array (BF16 as uint16), or over a copy if that is read-only."""
    if not array.flags.writeable:
        array = array.copy()
    if not hasattr(array, "__dlpack__"):
        raise TritonModelException("DLPack needs numpy 1.22 or later in the environment of this model")
    patch = _PATCHED.get(datatype)
    if patch is None:
        return array.__dlpack__()
    numpy_type, code = patch
    made = array.view(numpy_type).__dlpack__()
    _Managed.from_address(_pointer(made, _NAME)).tensor.dtype.code = code
    return made


def array(source: Any) -> "Tuple[np.ndarray[Any, Any], str]":
    """Return a contiguous array (BF16 as uint16) over the memory of a capsule or `__dlpack__` object; its datatype.

    Raises TritonModelException.
    """
    owned, datatype = _adopt(_capsule_of(source))
    return (owned if owned.flags.c_contiguous else np.ascontiguousarray(owned)), datatype


def _capsule_of(source: Any) -> Any:
    if type(source).__name__ == "PyCapsule":
        if not _is_valid(source, _NAME):
            raise TritonModelException(f"{source!r} is not an unused DLPack capsule")
        return source
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            f"`__dlpack_device__` attributes; this is of type {type_name(source)}."
        )
    kind = source.__dlpack_device__()[0]
    if kind == CUDA:
        move = getattr(source, "cpu", None) or getattr(source, "get", None)
        if move is None:
            raise TritonModelException(_no_device(kind))
        return _capsule_of(move())
    if kind not in (CPU, CUDA_HOST):
        raise TritonModelException(_no_device(kind))
    if isinstance(source, np.ndarray) and not source.flags.writeable:
        source = source.copy()  # numpy does not hand out memory that may not be written
    return source.__dlpack__(stream=None)


def _adopt(owned: Any) -> "Tuple[np.ndarray[Any, Any], str]":
    managed = _Managed.from_address(_pointer(owned, _NAME))
    tensor = managed.tensor
    if tensor.device_type == CUDA and "torch" in sys.modules:
        return _adopt(_capsule_of(sys.modules["torch"].from_dlpack(owned).cpu()))
    if tensor.device_type not in (CPU, CUDA_HOST):
        raise TritonModelException(_no_device(tensor.device_type))
    datatype, dtype = _datatype(tensor.dtype)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides: Optional[Tuple[int, ...]] = None
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype), datatype  # nothing to own; the capsule frees itself
    _rename(owned, _USED)
    interface = {
        "version": 3,
        "typestr": dtype.str,
        "shape": shape,
        "strides": strides,
        "data": (tensor.data + tensor.byte_offset, False),
    }
    return np.asarray(_Owner(managed, interface)), datatype


def _datatype(kind: _DataType) -> "Tuple[str, np.dtype[Any]]":
    if kind.lanes == 1 and kind.code == _BFLOAT and kind.bits == 16:
        return "BF16", np.dtype(np.uint16)
    letter = _KINDS.get(kind.code)
    if kind.lanes == 1 and letter is not None and kind.bits in (8, 16, 32, 64):
        dtype = np.dtype(f"{letter}{kind.bits // 8}") if (letter, kind.bits) != ("f", 8) else None
        if dtype in DATATYPES:
            return DATATYPES[dtype], DTYPES[DATATYPES[dtype]]
    raise TritonModelException(
        f"this DLPack tensor has no v2 datatype: code {kind.code}, {kind.bits} bits, {kind.lanes} lanes"
    )


def _no_device(kind: int) -> str:
    return f"DLDevice type {kind} is not supported: move the tensor to the CPU first"

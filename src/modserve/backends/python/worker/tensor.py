"""`Tensor`: a name, a datatype, a shape, and its values as raw memory, as an array, or both.

Received tensors begin as raw memory; the array is a view of it, made on demand. It is writable if the memory is, and
keeps the memory alive. Tensors of a model begin as arrays. The two share memory except for BYTES: their raw form is
made at once, as in Triton: later changes to the array have no effect.
"""

from typing import Any, List, Optional, Tuple, Union

import numpy as np

from . import dlpack
from .byte_tensors import Buffer, deserialize_bytes_tensor, raw_of_elements
from .dtypes import DTYPES, DataType, base_array, bfloat16, datatype_of
from .errors import TritonModelException, type_name

Array = "np.ndarray[Any, Any]"


class Tensor:
    """An input or output. `datatype` is the protocol's name (``FP32``), `dims` the shape as a tuple."""

    __slots__ = ("_array", "_name", "_raw", "datatype", "dims")

    _name: str
    _raw: Optional[Buffer]
    _array: "Optional[np.ndarray[Any, Any]]"
    datatype: str
    dims: Tuple[int, ...]

    def __init__(self, name: Union[str, bytes], numpy_array: "np.ndarray[Any, Any]") -> None:
        """Make a tensor. Raises TypeError for an argument of a wrong type, TritonModelException if it is no tensor."""
        self._name = name if type(name) is str and name else check_name(name)
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(
                f"Tensor(): '{self._name}' needs a numpy array (numpy.ndarray), not {type_name(numpy_array)}"
            )
        if type(numpy_array) is not np.ndarray:
            numpy_array = base_array(numpy_array, f"Tensor '{self._name}'")
        datatype = datatype_of(numpy_array.dtype)
        if datatype is None:
            raise TritonModelException(explain_unsupported(self._name, numpy_array.dtype))
        if not numpy_array.flags.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array)
        self.datatype = datatype
        self.dims = numpy_array.shape
        self._array = numpy_array
        self._raw = raw_of_elements(numpy_array) if datatype == "BYTES" else None

    @classmethod
    def make_unchecked(
        cls,
        name: str,
        datatype: str,
        dims: Tuple[int, ...],
        raw: Optional[Buffer],
        array: "Optional[np.ndarray[Any, Any]]" = None,
    ) -> "Tensor":
        """Make a tensor that the server sent, without checks. Either of `raw` and `array` may be missing."""
        self = cls.__new__(cls)
        self._name = name
        self.datatype = datatype
        self.dims = dims
        self._raw = raw
        self._array = array
        return self

    def seal(self) -> "Tensor":
        """Return this tensor if its class is no other, else a new one over the same memory.

        Raises any exception of a class of the model's own.
        """
        if type(self) is Tensor:
            return self
        tensor = Tensor(self.name(), self.as_numpy() if self._array is None else self._array)
        tensor._raw = self._raw
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> List[int]:
        return list(self.dims)

    def triton_dtype(self) -> DataType:
        """Return the datatype as the number that `triton_to_numpy_type` takes."""
        return DataType[self.datatype]

    def is_cpu(self) -> bool:
        """Return True: models get tensors in host memory."""
        return True

    def as_numpy(self) -> "np.ndarray[Any, Any]":
        """Return the values; the same array each time. BYTES are bytes objects.

        BF16 needs ml_dtypes to be imported in this process; otherwise this raises TritonModelException, as Triton
        always does.
        """
        array = self._array
        if array is None:
            array = self._array = self._view()
        return array

    def _view(self) -> "np.ndarray[Any, Any]":
        raw: Any = self._raw
        dtype = DTYPES.get(self.datatype)
        if dtype is None:
            if self.datatype == "BYTES":
                return deserialize_bytes_tensor(raw).reshape(self.dims)
            dtype = bfloat16()
            if dtype is None:
                raise TritonModelException(
                    "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead, "
                    "or import ml_dtypes, which has a bfloat16 for NumPy."
                )
        return np.ndarray(self.dims, dtype, raw)

    def raw_form(self) -> Buffer:
        """Return the values in the protocol's raw form, without a copy if possible."""
        raw = self._raw
        if raw is not None:
            return raw
        array: Any = self._array
        if self.datatype == "BYTES":
            raw = self._raw = raw_of_elements(array)
            return raw
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        if array.size == 0:
            return b""
        if self.datatype == "BF16":
            array = array.view(np.uint16)
        view: memoryview = array.data.cast("B")
        return view

    def _as_bits(self) -> "np.ndarray[Any, Any]":
        """Return the values as an array, BF16 as uint16: for DLPack, which has no strings."""
        if self.datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self.datatype != "BF16":
            return self.as_numpy()
        if self._array is not None:
            return self._array.view(np.uint16)
        raw: Any = self._raw
        return np.ndarray(self.dims, np.uint16, raw)

    def to_dlpack(self) -> object:
        """Make a "dltensor" capsule over the same memory, or over a copy if that is read-only."""
        return dlpack.capsule(self._as_bits(), self.datatype)

    def __dlpack__(
        self,
        stream: object = None,
        *,
        max_version: object = None,
        dl_device: object = None,
        copy: Optional[bool] = None,
    ) -> object:
        bits = self._as_bits()
        return dlpack.capsule(bits.copy() if copy else bits, self.datatype)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return dlpack.CPU, 0

    @staticmethod
    def from_dlpack(name: Union[str, bytes], tensor: object) -> "Tensor":
        """Return a tensor over the memory of a "dltensor" capsule or of an object with `__dlpack__`.

        Memory that is not contiguous, or is on a GPU, is copied. Raises TritonModelException if the object cannot be a
        tensor.
        """
        name = check_name(name)
        if isinstance(tensor, np.ndarray):
            tensor = base_array(tensor, f"Tensor '{name}'")
        bits, datatype = dlpack.array(tensor)
        raw = None
        if datatype == "BF16":
            dtype = bfloat16()
            if dtype is None:
                raw = bits.reshape(-1).view(np.uint8).data
                return Tensor.make_unchecked(name, datatype, bits.shape, raw)
            bits = bits.view(dtype)
        return Tensor.make_unchecked(name, datatype, bits.shape, None, bits)

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self.datatype}, {list(self.dims)})"


def check_name(name: Union[str, bytes]) -> str:
    if isinstance(name, bytes):
        name = name.decode()
    if not isinstance(name, str):
        raise TypeError(f"the name of a Tensor must be a str, not {type_name(name)}")
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return str.__str__(name)  # without what a class of the model's own adds


def explain_unsupported(name: str, dtype: "np.dtype[Any]") -> str:
    text = f"NumPy dtype is not supported. Tensor '{name}' has {dtype}"
    if dtype.kind == "U":
        return text + "; strings are BYTES: make it an array of objects with .astype(numpy.object_)"
    if not dtype.isnative and datatype_of(dtype.newbyteorder("=")) is not None:
        return text + "; the order of its bytes is not this machine's"
    return text

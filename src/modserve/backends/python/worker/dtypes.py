"""The protocol's datatypes, with Triton's numbers and numpy's types for them."""

import enum
import sys
from typing import Any, Dict, Optional

import numpy as np

from .errors import TritonModelException


class DataType(enum.IntEnum):
    """Triton's numbers of the datatypes: results of `Tensor.triton_dtype`, arguments of `triton_to_numpy_type`."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


NUMPY_TYPES: Dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
"""Numpy types of the datatypes with the same binary form as numpy's memory."""

DTYPES: Dict[str, "np.dtype[Any]"] = {name: np.dtype(numpy_type) for name, numpy_type in NUMPY_TYPES.items()}
"""Numpy dtype by datatype."""
DATATYPES: Dict["np.dtype[Any]", str] = {dtype: name for name, dtype in DTYPES.items()}
"""Datatype by numpy dtype, the reverse of `DTYPES`."""


def bfloat16() -> "Optional[np.dtype[Any]]":
    """Return the dtype bfloat16 of ml_dtypes if this process has imported that. Numpy has no bfloat16."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    scalar = getattr(ml_dtypes, "bfloat16", None)
    return None if scalar is None else np.dtype(scalar)


def base_array(array: "np.ndarray[Any, Any]", subject: str) -> "np.ndarray[Any, Any]":
    """Return a plain numpy array over the same memory. Raises TritonModelException for masked elements."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        count = int(np.ma.getmaskarray(array).sum())
        raise TritonModelException(
            f"{subject} has {count} masked element{'s' if count != 1 else ''}, which the protocol cannot express; "
            "array.filled(value) gives them a value"
        )
    return np.asarray(array)


def datatype_of(dtype: "np.dtype[Any]") -> Optional[str]:
    """Return the datatype for a numpy dtype; None if the protocol has none. Objects and bytes are BYTES."""
    name = DATATYPES.get(dtype)
    if name is not None and dtype.isnative:
        return name
    if dtype.kind in "OS":
        return "BYTES"
    if dtype.name == "bfloat16" and dtype.itemsize == 2:
        return "BF16"
    return None

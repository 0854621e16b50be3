"""Table of datatypes. Replace a datatype-dependent ``if`` elsewhere by a column here."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Datatype:
    """Tensor element type of the v2 protocol.

    `name` is its name in the protocol, `config_name` in ``inference.DataType`` of config.pbtxt. `size` is in bytes; 0
    for BYTES, which has elements of variable size. `own_numpy` is numpy's own type, None for BF16. `contents_field` is
    its field of ``InferTensorContents`` in gRPC, None if only raw data is allowed. `json_kind` is the kind of JSON
    value of an element.
    """

    name: str
    config_name: str
    size: int
    own_numpy: np.dtype[Any] | None
    contents_field: str | None
    json_kind: str

    def __repr__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """Little-endian array type; BYTES arrays contain ``bytes`` objects."""
        return _bfloat16() if self.own_numpy is None else self.own_numpy

    @property
    def largest(self) -> float:
        """Largest finite number of a type with `json_kind` ``float``."""
        import ml_dtypes

        return float(ml_dtypes.finfo(self.numpy).max)  # type: ignore[no-untyped-call]


@cache
def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes  # imported on demand: takes 4 MB of memory

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def _row(
    name: str, config_name: str, numpy: str, contents_field: str | None, json_kind: str, size: int | None = None
) -> Datatype:
    dtype: np.dtype[Any] = np.dtype(numpy)
    return Datatype(name, config_name, dtype.itemsize if size is None else size, dtype, contents_field, json_kind)


BOOL = _row("BOOL", "TYPE_BOOL", "?", "bool_contents", "bool")
UINT8 = _row("UINT8", "TYPE_UINT8", "<u1", "uint_contents", "int")
UINT16 = _row("UINT16", "TYPE_UINT16", "<u2", "uint_contents", "int")
UINT32 = _row("UINT32", "TYPE_UINT32", "<u4", "uint_contents", "int")
UINT64 = _row("UINT64", "TYPE_UINT64", "<u8", "uint64_contents", "int")
INT8 = _row("INT8", "TYPE_INT8", "<i1", "int_contents", "int")
INT16 = _row("INT16", "TYPE_INT16", "<i2", "int_contents", "int")
INT32 = _row("INT32", "TYPE_INT32", "<i4", "int_contents", "int")
INT64 = _row("INT64", "TYPE_INT64", "<i8", "int64_contents", "int")
FP16 = _row("FP16", "TYPE_FP16", "<f2", None, "float")
BF16 = Datatype("BF16", "TYPE_BF16", 2, None, None, "float")
FP32 = _row("FP32", "TYPE_FP32", "<f4", "fp32_contents", "float")
FP64 = _row("FP64", "TYPE_FP64", "<f8", "fp64_contents", "float")
BYTES = _row("BYTES", "TYPE_STRING", "O", "bytes_contents", "string", size=0)

INVALID = _row("<invalid>", "TYPE_INVALID", "u1", None, "")
"""Stand-in for a request's unknown datatype. No model expects it, so validation refuses it with Triton's text."""

ALL = (BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES)
BY_NAME = {row.name: row for row in ALL}
BY_CONFIG_NAME = {row.config_name: row for row in ALL}
_BY_NUMPY = {row.own_numpy: row for row in ALL if row.own_numpy is not None}


def from_numpy(dtype: np.dtype[Any]) -> Datatype | None:
    """Return the datatype of a numpy type, BYTES for fixed-width strings; None if the protocol lacks the type."""
    if dtype.kind in "SU":
        return BYTES
    if dtype.kind == "V":
        return BF16 if dtype == BF16.numpy else None
    return _BY_NUMPY.get(dtype.newbyteorder("<"))

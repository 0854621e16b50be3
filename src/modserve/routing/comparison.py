"""Compares two responses."""

from collections.abc import Mapping

import numpy as np

from modserve.core.tensors.tensor import Array, Tensor, format_shape


def difference(expected: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float) -> str:
    """Where `other` differs from `expected`, by the first output that does; empty if it does not.

    Elements of floating point are the same up to a relative difference of `tolerance`; all others only if they are
    equal. Takes time with the size of the tensors, and copies those of devices to the host.
    """
    if missing := expected.keys() - other.keys():
        return f"output '{min(missing)}' is missing"
    for name, tensor in expected.items():
        if text := _difference(tensor, other[name], tolerance):
            return f"output '{name}' {text}"
    return ""


def _difference(expected: Tensor, other: Tensor, tolerance: float) -> str:
    if other.datatype is not expected.datatype:
        return f"is {other.datatype.name}, expected {expected.datatype.name}"
    if other.shape != expected.shape:
        return f"has shape {format_shape(other.shape)}, expected {format_shape(expected.shape)}"
    if not expected.datatype.size or expected.array.dtype.kind in "biu":
        return _counted(np.asarray(expected.array != other.array), "")
    a, b = expected.array.astype(np.float64), other.array.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
        size = np.maximum(np.abs(a), np.abs(b))
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | ((apart <= tolerance * size) & np.isfinite(size))
        finite = ~same & np.isfinite(apart) & (size > 0)
        largest = float(np.max(apart[finite] / size[finite])) if finite.any() else None
    return _counted(~same, "" if largest is None else f", by up to {largest:.3g} of their size")


def _counted(differing: Array, more: str) -> str:
    count = int(np.count_nonzero(differing))
    return f"differs in {count} of {differing.size} elements{more}" if count else ""

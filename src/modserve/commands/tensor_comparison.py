"""Element-wise comparison of two tensors."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor

_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class ElementTolerance:
    """Floating-point numbers are alike within `absolute`, or within `relative` times the size of the first one."""

    relative: float
    absolute: float


DEFAULT_TOLERANCES: Mapping[str, ElementTolerance] = {
    "FP64": ElementTolerance(1e-8, 1e-10),
    "FP32": ElementTolerance(1e-4, 1e-5),
    "FP16": ElementTolerance(1e-2, 1e-3),
    "BF16": ElementTolerance(3e-2, 1e-2),
}
"""Default tolerances by datatype. They allow for the slightly different results of other batches."""


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """Comparison result: `unlike` of `elements` differ; `index` is the first of these, with its two values as texts.

    `largest` is the largest difference of two finite numbers, within the tolerance or not; 0 unless floating point.
    """

    elements: int
    unlike: int = 0
    index: tuple[int, ...] = ()
    first: str = ""
    second: str = ""
    largest: float = 0.0


def compare_elements(first: Tensor, second: Tensor, tolerance: ElementTolerance) -> TensorComparison:
    """Compare tensors of the same datatype and shape. NaN equals NaN; only floating-point numbers have a tolerance."""
    a, b = first.array.reshape(-1), second.array.reshape(-1)
    largest = 0.0
    if first.datatype.json_kind == "float":
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(a - b)
            allowed = np.maximum(tolerance.absolute, tolerance.relative * np.abs(a))
            finite = np.isfinite(a) & np.isfinite(b)
            unlike = ~((finite & (apart <= allowed)) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if finite.any():
            largest = min(float(np.max(apart[finite])), sys.float_info.max)
    else:
        unlike = np.asarray(a != b)
    count = int(np.count_nonzero(unlike))
    if not count:
        return TensorComparison(unlike.size, largest=largest)
    index = tuple(int(each) for each in np.unravel_index(int(np.argmax(unlike)), first.shape))
    values = _text(first, index), _text(second, index)
    return TensorComparison(unlike.size, count, index, *values, largest)


def precision(datatype: Datatype) -> float:
    """Return the relative distance of two adjacent floating-point numbers of a datatype."""
    return float(ml_dtypes.finfo(datatype.numpy).eps)  # type: ignore[no-untyped-call]


def _text(tensor: Tensor, index: tuple[int, ...]) -> str:
    value = tensor.array[index]
    return repr(value)[:_LONGEST_VALUE] if isinstance(value, bytes) else str(value)

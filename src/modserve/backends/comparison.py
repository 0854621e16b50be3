"""Distance between the outputs of two engines."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modserve.core.tensors.tensor import Array

DIFFERENT = math.inf
"""The outputs cannot be compared, or must be equal and are not."""


def difference(outputs: Mapping[str, Array], reference: Mapping[str, Array], names: Iterable[str]) -> tuple[float, str]:
    """Return the largest difference of the outputs `names`, and why it is `DIFFERENT`, or an empty text.

    Of floating-point outputs it is the largest absolute difference of two elements, divided by the largest magnitude in
    the reference's tensor: elements near zero in a tensor of large ones do not count more than these. NaN must stand
    where the reference has NaN, and infinity where it has the same. Others must be equal.
    """
    worst = 0.0
    for name in names:
        if name not in outputs:
            return DIFFERENT, f"it has no output '{name}'"
        error, why = _tensor_difference(np.asarray(outputs[name]), np.asarray(reference[name]))
        if why:
            return DIFFERENT, f"output '{name}' {why}"
        worst = max(worst, error)
    return worst, ""


def not_comparable(samples: Sequence[Mapping[str, Array]], names: Iterable[str]) -> str:
    """Return why the reference's outputs `names` cannot show how exact another precision is; empty if they can.

    An output that is constant proves nothing: a saturated probability, the one class of all samples, no boxes.
    """
    for name in names:
        values = [_flat(np.asarray(outputs[name])) for outputs in samples]
        joined = np.concatenate(values) if values else np.empty(0)
        floating = joined.dtype.kind == "f"
        numbers = joined[np.isfinite(joined)] if floating else joined
        if not numbers.size or (floating and not numbers.any()):
            return f"output '{name}' has no number but zeros" if joined.size else f"output '{name}' is empty"
        if (numbers == numbers[0]).all() and (numbers.size > 1 or not floating):
            return f"output '{name}' is the same everywhere"
    return ""


def _flat(array: Array) -> Array:
    return (array.astype(np.float64) if _is_floating(array) else array).reshape(-1)


def _is_floating(array: Array) -> bool:
    return array.dtype.kind == "f" or str(array.dtype) == "bfloat16"  # which is of kind V


def _tensor_difference(output: Array, expected: Array) -> tuple[float, str]:
    if output.shape != expected.shape:
        return DIFFERENT, f"has the shape {list(output.shape)}, but the reference has {list(expected.shape)}"
    if output.dtype != expected.dtype:
        return DIFFERENT, f"is of type {output.dtype}, but the reference is of type {expected.dtype}"
    if not _is_floating(expected):
        differ = int(np.count_nonzero(output != expected))
        return (
            (DIFFERENT, f"differs in {differ} of {expected.size} elements, which must be equal") if differ else (0, "")
        )
    ours, theirs = output.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return DIFFERENT, "has NaN where the reference has a number, or the other way round"
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(ours[finite]).all():
        return DIFFERENT, "has infinity where the reference has another value, or the other way round"
    if not finite.any():
        return 0.0, ""
    largest = float(np.abs(theirs[finite]).max())
    distance = float(np.abs(ours[finite] - theirs[finite]).max())
    return (distance / largest if largest else distance), ""

"""Conversion of a forest's numbers to the output of Triton's forest backend, according to its parameters."""

from collections.abc import Callable

import numpy as np

from modserve.core.tensors.tensor import Array

from .options import ForestOptions

_THRESHOLD = 0.5
_CLASSIFIES = frozenset({"binary", "classes"})

Result = tuple[int, Callable[[Array], Array]]
"""Number of columns of an output, and the function that computes it from the forest's, ``[rows, columns]`` both."""


def result(task: str, targets: int, classes: int, options: ForestOptions, columns: int | None) -> Result:
    """Return a forest's result. `columns` is the configured number of output columns; None if not configured.

    A forest of two classes gives one number, the probability of the second, or two, as its library made it. For
    ``predict_proba`` both can be had, by the dims of the output; by default it is one number for those that give one
    (Triton's docs/model_config.md).
    """
    whole = targets * classes
    if options.predict_proba:
        if classes == 1 and targets == 1 and columns == 2:
            return 2, lambda numbers: np.concatenate([1 - numbers, numbers], axis=1)
        if classes == 2 and targets == 1 and columns == 1:
            return 1, lambda numbers: numbers[:, 1:]
        return whole, _same
    classifies = task in _CLASSIFIES if options.output_class is None else options.output_class
    if not classifies:
        return whole, _same
    threshold = _THRESHOLD if options.threshold is None else options.threshold
    if classes == 1:
        return whole, lambda numbers: (numbers > threshold).astype(np.float32)
    if classes == 2 and targets == 1 and options.threshold is not None:
        return 1, lambda numbers: (numbers[:, 1:] > threshold).astype(np.float32)
    return targets, lambda numbers: _best(numbers, targets, classes)


def _same(numbers: Array) -> Array:
    return numbers


def _best(numbers: Array, targets: int, classes: int) -> Array:
    """Return the class with the largest value. The first wins a tie, as in NumPy, scikit-learn and Triton."""
    best: Array = np.argmax(numbers.reshape(len(numbers), targets, classes), axis=2)
    return best.astype(np.float32)

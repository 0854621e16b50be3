"""Conversion of a forest's raw output to the output of Triton's forest backend."""

from collections.abc import Callable

import numpy as np

from modserve.core.tensors.tensor import Array

from .options import ForestOptions

_THRESHOLD = 0.5
_CLASSIFIES = frozenset({"binary", "classes"})

Result = tuple[int, Callable[[Array], Array]]
"""Column count of an output, and the function that computes it from the forest's output; both ``[rows, columns]``."""


def result(task: str, targets: int, classes: int, options: ForestOptions, columns: int | None) -> Result:
    """Return the result of a forest. `columns` is the configured number of output columns, None if not configured.

    Depending on its library, a binary classifier computes one number (the probability of the second class) or two. With
    ``predict_proba``, the output's dims select either form; the default is the forest's own (Triton's
    docs/model_config.md).
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
    """Return the class with the largest value; the first one wins a tie, as in NumPy, scikit-learn and Triton."""
    best: Array = np.argmax(numbers.reshape(len(numbers), targets, classes), axis=2)
    return best.astype(np.float32)

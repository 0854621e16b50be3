"""What forests of scikit-learn leave to the estimator; without scikit-learn."""

from typing import Any

import numpy as np
import pytest

from modserve.backends.sklearn.acceleration import AcceleratedForest
from modserve.core.tensors.tensor import Array


def made(double: bool) -> AcceleratedForest:
    return AcceleratedForest(lambda rows: rows[:, :1], None, "1", double)


@pytest.mark.parametrize(
    ("dtype", "forest", "histograms"),
    [
        (np.float64, False, False),
        (np.float32, True, True),
        (np.float16, True, True),
        (np.int64, True, False),
        (np.uint64, True, False),
        (np.int32, True, False),
        (np.uint32, True, False),
        (np.int16, True, True),
        (np.uint16, True, True),
        (np.int8, True, True),
        (np.bool_, True, True),
    ],
)
def test_types_that_fp32_does_not_hold(dtype: Any, forest: bool, histograms: bool) -> None:
    rows = np.ones((2, 3), dtype)
    assert (made(False).compute("predict", rows) is not None) is forest
    assert (made(True).compute("predict", rows) is not None) is histograms


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_a_number_are_for_the_estimator(value: float) -> None:
    rows: Array = np.ones((2, 3), np.float32)
    rows[1, 2] = value
    assert made(False).compute("predict", rows) is None

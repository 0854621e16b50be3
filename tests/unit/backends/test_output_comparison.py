"""How far outputs are apart: relative to the tensor's largest element, and not at all for what must be equal."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.backends.comparison import difference, not_comparable

INF, NAN = math.inf, math.nan


def compared(output: Any, expected: Any, kind: Any = np.float32) -> tuple[float, str]:
    return difference({"OUT": np.array(output, kind)}, {"OUT": np.array(expected, kind)}, ["OUT"])


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 101.0], [1.0, 100.0], 0.01),
        ([0.5, 100.0], [0.0, 100.0], 0.005),
        ([0.25, 0.0], [0.0, 0.0], 0.25),
        ([NAN, INF, -INF, 4.0], [NAN, INF, -INF, 4.0], 0.0),
        ([NAN, INF, -INF, 5.0], [NAN, INF, -INF, 4.0], 0.25),
        ([NAN, INF], [NAN, INF], 0.0),
        ([], [], 0.0),
        (3.0, 2.0, 0.5),
    ],
    ids=[
        "equal",
        "of the largest",
        "near zero",
        "all zero",
        "special",
        "special, and one differs",
        "only special",
        "none",
        "scalar",
    ],
)
def test_floats(output: Any, expected: Any, error: float) -> None:
    distance, why = compared(output, expected)
    assert distance == pytest.approx(error)
    assert why == ""


@pytest.mark.parametrize("kind", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floats(kind: Any) -> None:
    assert compared([1.0, 3.0], [1.0, 2.0], kind) == (0.5, "")


@pytest.mark.parametrize(
    ("output", "expected", "kind", "why"),
    [
        ([NAN, 1.0], [1.0, 1.0], np.float32, "has NaN where"),
        ([1.0, 1.0], [NAN, 1.0], np.float32, "has NaN where"),
        ([INF, 1.0], [1.0, 1.0], np.float32, "has infinity where"),
        ([1.0, 1.0], [INF, 1.0], np.float32, "has infinity where"),
        ([-INF, 1.0], [INF, 1.0], np.float32, "has infinity where"),
        ([1, 2, 3], [1, 2, 4], np.int64, "differs in 1 of 3 elements"),
        ([True], [False], np.bool_, "differs in 1 of 1 elements"),
        ([b"a", b"b"], [b"a", b"c"], object, "differs in 1 of 2 elements"),
        ([[1.0]], [1.0], np.float32, "has the shape [1, 1], but the reference has [1]"),
    ],
)
def test_what_is_no_matter_of_degree(output: Any, expected: Any, kind: Any, why: str) -> None:
    error, text = compared(output, expected, kind)
    assert error == INF
    assert text.startswith(f"output 'OUT' {why}")


def test_integers_and_texts_that_are_equal() -> None:
    assert compared([1, 2], [1, 2], np.int32) == (0, "")
    assert compared([b"a"], [b"a"], object) == (0, "")


def test_another_type() -> None:
    outputs = {"OUT": np.zeros(1, np.float64)}, {"OUT": np.zeros(1, np.float32)}
    text = "output 'OUT' is of type float64, but the reference is of type float32"
    assert difference(*outputs, ["OUT"]) == (INF, text)


def test_the_worst_of_several_outputs_counts_and_others_do_not() -> None:
    ours = {"A": np.array([1.0]), "B": np.array([1.1]), "C": np.array([9.0])}
    theirs = {name: np.array([1.0]) for name in "ABC"}
    assert difference(ours, theirs, ["A", "B"])[0] == pytest.approx(0.1)
    assert difference(ours, theirs, ["A", "D"]) == (INF, "it has no output 'D'")


@pytest.mark.parametrize(
    ("samples", "kind", "why"),
    [
        ([[0.1, 0.2]], np.float32, ""),
        ([[0.1, 0.2]], ml_dtypes.bfloat16, ""),
        ([[1.0], [0.5]], np.float32, ""),
        ([[0.5]], np.float32, ""),
        ([[NAN, INF, 1.0, 2.0]], np.float32, ""),
        ([[1.0, 1.0], [1.0]], np.float32, "output 'OUT' is the same everywhere"),
        ([[0.0, 0.0]], np.float32, "output 'OUT' has no number but zeros"),
        ([[NAN, INF]], np.float32, "output 'OUT' has no number but zeros"),
        ([[], []], np.float32, "output 'OUT' is empty"),
        ([], np.float32, "output 'OUT' is empty"),
        ([[1, 2]], np.int64, ""),
        ([[True], [False]], np.bool_, ""),
        ([[7], [7, 7]], np.int64, "output 'OUT' is the same everywhere"),
        ([[7]], np.int64, "output 'OUT' is the same everywhere"),
        ([[b"cat"], [b"dog"]], object, ""),
        ([[b"cat"], [b"cat"]], object, "output 'OUT' is the same everywhere"),
    ],
)
def test_outputs_that_show_how_exact_an_engine_is(samples: list[Any], kind: Any, why: str) -> None:
    assert not_comparable([{"OUT": np.array(sample, kind)} for sample in samples], ["OUT"]) == why

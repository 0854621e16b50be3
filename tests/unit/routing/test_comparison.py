"""Compares two responses."""

from typing import Any

import numpy as np
import pytest

from modserve.core.tensors.tensor import Tensor
from modserve.routing.shadow import difference

NAN, INF = float("nan"), float("inf")


def tensor(values: Any, kind: Any) -> Tensor:
    return Tensor.from_array(np.array(values, kind))


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "text"),
    [
        ([1, 2], [1, 2], 0, ""),
        ([1, 2], [1, 2.002], 0.002, ""),
        ([1, 2], [1, 2.002], 0.0001, "differs in 1 of 2 elements, by up to 0.000999 of their size"),
        ([NAN, INF, -INF, 0.0], [NAN, INF, -INF, -0.0], 0, ""),
        ([INF, 1], [1, INF], 10, "differs in 2 of 2 elements"),
        ([NAN], [1], 10, "differs in 1 of 1 elements"),
        ([INF], [-INF], 10, "differs in 1 of 1 elements"),
        ([], [], 0, ""),
    ],
)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_with_fractions(a: Any, b: Any, tolerance: float, text: str, kind: Any) -> None:
    expected = f"output 'O' {text}" if text else ""
    assert difference({"O": tensor(a, kind)}, {"O": tensor(b, kind)}, tolerance) == expected


@pytest.mark.parametrize("kind", [np.int32, np.bool_, np.uint64, np.object_])
def test_all_others_are_equal_or_not(kind: Any) -> None:
    a, b = ([b"x", b"y"], [b"x", b"z"]) if kind is np.object_ else ([1, 0], [1, 1])
    assert difference({"O": tensor(a, kind)}, {"O": tensor(a, kind)}, 1) == ""
    assert difference({"O": tensor(a, kind)}, {"O": tensor(b, kind)}, 1) == "output 'O' differs in 1 of 2 elements"


def test_what_is_not_even_alike() -> None:
    a = {"A": tensor([1], np.int32), "B": tensor([1], np.int32)}
    assert difference(a, {"A": a["A"]}, 0) == "output 'B' is missing"
    assert difference({"A": a["A"]}, a, 0) == ""
    assert difference(a, {**a, "B": tensor([1.0], np.float32)}, 0) == "output 'B' is FP32, expected INT32"
    assert difference(a, {**a, "B": tensor([[1]], np.int32)}, 0) == "output 'B' has shape [1,1], expected [1]"

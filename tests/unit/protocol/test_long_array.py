"""Long arrays: what they hold is known before they are parsed."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from modserve.protocol.json import long_array
from modserve.protocol.json.long_array import LongArray, UnevenError


def found(data: Any, indent: int | None = None) -> LongArray:
    array = long_array.find_numbers(b'{"x":%b,"y":1}' % json.dumps(data, indent=indent).encode(), 5)
    assert array is not None
    return array


def numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape)).reshape(shape).tolist()


SHAPES = [shape for rank in (1, 2, 3, 4) for shape in product((1, 2, 3), repeat=rank)]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_shapes(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (40, 41, 60, 2**16):
        monkeypatch.setattr(long_array, "_PIECE", size)
        for indent in (None, 1):
            array = found(numbers(*shape), indent)
            assert array.shape() == shape
            assert array.parts == np.prod(shape)


@pytest.mark.parametrize(
    ("data", "element"),
    [
        ([[1, 2], [3]], 2),
        ([[1], [2, 3]], 2),
        ([[1], 2], 1),
        ([1, [2]], 1),
        ([[1], [2], 3], 2),
        ([[[1, 2], [3, 4]], [[5, 6]]], 5),
        ([[[1, 2]], [[3, 4], [5, 6]]], 4),
        ([[[1, 2]], [[3], [4]]], 3),
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9, 10]], 9),
        ([[[1]], [[2]], [3]], 2),
        ([[1, 2], [[3, 4]]], 2),
    ],
)
def test_uneven(data: Any, element: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (12, 13, 30, 2**16):
        monkeypatch.setattr(long_array, "_PIECE", size)
        with pytest.raises(UnevenError) as caught:
            found(data).shape()
        assert caught.value.element == element


def test_what_there_is_of_an_array_with_texts() -> None:
    text = rb'["a,b", ["]", "\",["], [[]], 1]'
    array = long_array.find_end(text, 0)
    assert array is not None
    assert array.parts == 5


def test_depth_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that never ends is not looked for to its end, which would have no comma, in pieces of growing length."""
    sizes: list[int] = []
    original = long_array._cut

    def cut(text: bytes, start: int, limit: int, depth: int) -> Any:
        sizes.append(limit - start)
        return original(text, start, limit, depth)

    monkeypatch.setattr(long_array, "_cut", cut)
    assert long_array.find_end(b'["x"' + b"[" * 1_000_000, 0) is None
    assert len(sizes) == 1

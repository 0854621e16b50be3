"""Pooling of the vectors of a text's tokens to one vector: the ways of sentence-transformers, without any padding."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]


def _weigh_by_place(tokens: Vectors) -> Any:
    """Each token by its place, the first being 1."""
    weights = np.arange(1, len(tokens) + 1, dtype=np.float32)
    return weights @ tokens / np.add.reduce(weights)


POOLINGS: Final[Mapping[str, Callable[[Vectors], Any]]] = {
    "cls": lambda tokens: tokens[0].copy(),
    "max": lambda tokens: tokens.max(axis=0),
    "mean": lambda tokens: np.add.reduce(tokens, axis=0) / len(tokens),
    "mean_sqrt_len": lambda tokens: np.add.reduce(tokens, axis=0) / len(tokens) ** 0.5,
    "weighted_mean": _weigh_by_place,
    "last_token": lambda tokens: tokens[-1].copy(),
}
"""Pooling functions by name: FP32 [tokens, width] → [width], a new array. There is at least one token."""


def pool(tokens: NDArray[Any], names: Sequence[str], skip: int = 0) -> Vectors:
    """[tokens, width] → [width times the number of names], FP32, a new array. The names are in `POOLINGS`.

    The first `skip` tokens, which are a prompt, do not count; `cls` is the first one all the same.
    """
    vectors = tokens if tokens.dtype == np.float32 else tokens.astype(np.float32)
    rest = vectors[skip:] if 0 < skip < len(vectors) else vectors
    parts: list[Vectors] = [POOLINGS[name](vectors if name == "cls" else rest) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def shorten(vector: Vectors, dimensions: int | None, normalize: bool) -> Vectors:
    """Return the first `dimensions` of a vector, or all for None; with `normalize` of length 1, unless all are zero."""
    if dimensions is not None:
        vector = vector[:dimensions]
    if not normalize:
        return vector
    length = math.sqrt(vector.dot(vector))
    return vector / length if length > 0.0 else vector

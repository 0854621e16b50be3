"""Vectors of tokens to vectors of texts, against the formulas of sentence-transformers over padded batches."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modserve.text.pooling import POOLINGS, pool, shorten

RNG = np.random.default_rng(3)
TOKENS = RNG.normal(size=(7, 5)).astype(np.float32)


def _padded(tokens: NDArray[np.float32], name: str, skip: int) -> Any:
    """With a mask, in float64, three rows of padding behind, and the first `skip` tokens masked."""
    vectors = np.vstack([tokens, np.full((3, tokens.shape[1]), 99.0)]).astype(np.float64)
    mask = np.array([0.0] * skip + [1.0] * (len(tokens) - skip) + [0.0] * 3)[:, None]
    if name == "cls":
        return vectors[0]
    if name == "max":
        return np.where(mask > 0, vectors, -1e9).max(axis=0)
    if name == "last_token":
        return vectors[np.flatnonzero(mask[:, 0])[-1]]
    if name == "weighted_mean":
        weights = mask * np.arange(1, len(vectors) + 1)[:, None]
        return (vectors * weights).sum(axis=0) / weights.sum()
    total = (vectors * mask).sum(axis=0)
    return total / (mask.sum() if name == "mean" else np.sqrt(mask.sum()))


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_one(name: str, count: int) -> None:
    np.testing.assert_allclose(pool(TOKENS[:count], [name]), _padded(TOKENS[:count], name, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cls", "max", "mean", "mean_sqrt_len", "last_token"])
def test_a_prompt_does_not_count(name: str) -> None:
    np.testing.assert_allclose(pool(TOKENS, [name], 3), _padded(TOKENS, name, 3), rtol=1e-5, atol=1e-6)


def test_a_text_that_is_all_prompt_counts() -> None:
    np.testing.assert_array_equal(pool(TOKENS, ["mean"], 7), pool(TOKENS, ["mean"]))


def test_several_side_by_side() -> None:
    both = pool(TOKENS, ["cls", "mean"])
    assert both.shape == (10,)
    np.testing.assert_array_equal(both[:5], TOKENS[0])


def test_half_precision_is_pooled_in_single() -> None:
    tokens = np.full((4096, 2), 1.0009765625, np.float16)
    np.testing.assert_allclose(pool(tokens, ["mean"]), 1.0009765625, rtol=1e-6)


def test_the_result_does_not_keep_the_tokens() -> None:
    vectors = pool(TOKENS, ["cls"])
    assert vectors.base is None or vectors.base.size == vectors.size


def test_normalised_and_shortened() -> None:
    vector = np.array([3.0, 4.0, 12.0], np.float32)
    np.testing.assert_allclose(shorten(vector, None, True), vector / 13)
    np.testing.assert_allclose(shorten(vector, 2, True), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(shorten(vector, 2, False), [3.0, 4.0])
    np.testing.assert_array_equal(shorten(np.zeros(3, np.float32), None, True), np.zeros(3))

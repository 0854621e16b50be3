"""Ranges of length, learnt from requests."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.scheduling.adaptive.costs import CELLS, FIRST_LESSON, WORTH, LengthBuckets, best_bounds, elements


def taught(buckets: LengthBuckets, lengths: Iterable[int]) -> LengthBuckets:
    for length in lengths:
        buckets.of(length)
    return buckets


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ({}, 4, ()),
        ({7: 3}, 4, (7,)),
        ({8: 1, 128: 1}, 1, (128,)),
        ({8: 1, 128: 1}, 2, (8, 128)),
        ({8: 10, 9: 10, 100: 10, 101: 10}, 4, (9, 101)),  # more would save next to nothing
        ({8: 1000, 128: 1}, 4, (8, 128)),
        ({8: 1, 128: 1000}, 4, (128,)),
        ({10: 5, 20: 5, 40: 5, 80: 5}, 3, (20, 40, 80)),
    ],
    ids=["nothing", "one", "one allowed", "two", "two of four", "long ones are few", "short ones are few", "three"],
)
def test_best_bounds(counts: dict[int, float], most: int, expected: tuple[int, ...]) -> None:
    assert best_bounds(counts, most) == expected


@given(st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_no_other_ranges_are_better(counts: dict[int, float], most: int) -> None:
    """But for what is not worth another range."""
    found = best_bounds(counts, most)
    assert found == tuple(sorted(set(found)))
    assert len(found) <= most
    assert found[-1] == max(counts)
    all_of_that_many = itertools.combinations(sorted(counts), len(found))
    least = min(elements(counts, bounds) for bounds in all_of_that_many if bounds[-1] == max(counts))
    assert elements(counts, found) == pytest.approx(least)


def test_many_lengths_are_told_apart_roughly() -> None:
    counts = dict.fromkeys(range(1, 10_001), 1.0)
    found = best_bounds(counts, 4)
    assert (len(found), found[-1]) == (4, 10_000)
    assert elements(counts, found) < 1.1 * elements(counts, (2500, 5000, 7500, 10_000))
    heavy = {**counts, 5_000: 1e6}
    assert 5_000 in best_bounds(heavy, 2)
    assert len(counts) > CELLS


def test_nothing_is_known_at_first() -> None:
    buckets = LengthBuckets(4)
    assert [buckets.of(length) for length in (8, 128, 512)] == [0, 0, 0]


def test_learning() -> None:
    buckets = taught(LengthBuckets(2), [10, 100] * (FIRST_LESSON // 2))
    assert buckets.bounds == (10, 100)
    assert [buckets.of(length) for length in (1, 10, 11, 100, 101, 4000)] == [10, 10, 100, 100, 0, 0]
    assert repr(buckets) == "LengthBuckets(10, 100)"


def test_lengths_are_rounded_up_first() -> None:
    buckets = taught(LengthBuckets(4, multiple_of=8), [3, 8, 9, 16] * (FIRST_LESSON // 4))
    assert buckets.bounds == (8, 16)
    assert [buckets.of(length) for length in (1, 8, 9, 16, 17)] == [8, 8, 16, 16, 0]


def test_a_steady_load_keeps_its_ranges() -> None:
    buckets = taught(LengthBuckets(4, relearn_every=128), [10, 20, 40, 80] * 32)
    before = buckets.bounds
    for round_ in range(1, 9):  # about as it was, but never quite
        taught(buckets, [10 + round_ % 2, 20 - round_ % 3, 40, 79 + round_ % 2] * 32)
        assert buckets.bounds == before


def test_another_load_is_learnt_and_the_old_one_forgotten() -> None:
    buckets = taught(LengthBuckets(2, relearn_every=128), [10, 20] * 64)
    assert buckets.bounds == (10, 20)
    taught(buckets, [200, 400] * 64 * 12)
    assert buckets.bounds == (200, 400)
    assert len(buckets._counts) == 2
    assert WORTH < 0.5


def test_a_length_that_came_once_is_forgotten_in_the_third_round() -> None:
    buckets = taught(LengthBuckets(1, relearn_every=128), [4000, *[10] * 255])
    assert buckets.bounds == (4000,)
    assert taught(buckets, [10] * 128).bounds == (10,)


def test_lengths_of_one_kind_have_one_range() -> None:
    buckets = taught(LengthBuckets(4), [64] * 1000)
    assert buckets.bounds == (64,)
    assert buckets.of(64) == 64

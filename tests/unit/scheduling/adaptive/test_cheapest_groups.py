"""The cheapest groups of requests, against trying all."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.configuration.merging import rows_of
from modserve.scheduling.adaptive.grouping import best_groups, counts_tried, queue_weight

MOST = 6


def times(length: int) -> Sequence[float]:
    return [0.0, *(40 + length * rows * (1 + 0.1 * rows) for rows in range(1, MOST + 1))]


def price(lengths: Sequence[int], rows: Sequence[int], cuts: Sequence[int], weight: float) -> float:
    total = 0.0
    for begin, end in itertools.pairwise([*cuts, len(lengths)]):
        size = sum(rows[begin:end])
        total += times(lengths[end - 1])[size] * (weight + 0.5 * size)
    return total


def allowed(
    lengths: Sequence[int], rows: Sequence[int], cuts: Sequence[int], most_elements: int, sizes: tuple[int, ...]
) -> bool:
    for begin, end in itertools.pairwise([*cuts, len(lengths)]):
        size = sum(rows[begin:end])
        too_many = size > MOST or (0 < most_elements < rows_of(size, sizes) * lengths[end - 1])
        if too_many and end - begin > 1:
            return False
    return True


@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 1, 1, 2, 3])), min_size=1, max_size=7),
    st.floats(0, 50),
    st.sampled_from([0, 60, 200]),
    st.sampled_from([(), (1, 2, 4, 8), (1, MOST), (2, 4), (4,)]),
)
@settings(max_examples=150, deadline=None)
def test_no_other_groups_are_cheaper(
    requests: list[tuple[int, int]], weight: float, most_elements: int, sizes: tuple[int, ...]
) -> None:
    requests.sort()
    lengths, rows = [length for length, _ in requests], [size for _, size in requests]
    cuts, cost = best_groups(lengths, rows, times, counts_tried(MOST), weight, MOST, most_elements, sizes)
    assert cuts[0] == 0
    assert cost == pytest.approx(price(lengths, rows, cuts, weight))
    assert allowed(lengths, rows, cuts, most_elements, sizes)
    places = range(1, len(lengths))
    ways = ([0, *more] for count in range(len(lengths)) for more in itertools.combinations(places, count))
    least = min(price(lengths, rows, way, weight) for way in ways if allowed(lengths, rows, way, most_elements, sizes))
    assert cost == pytest.approx(least)


def test_at_full_load_the_rate_counts_and_at_low_load_the_latency() -> None:
    """A batch of two saves a fifth of the time; the first of both would be answered after half of it."""
    table = [0.0, 10.0, 16.0]

    def groups(utilisation: float) -> list[int]:
        return best_groups([8, 8], [1, 1], lambda length: table, [2], queue_weight(2, utilisation), 2)[0]

    assert groups(0.9) == [0]
    assert groups(0.0) == [0, 1]


def test_all_that_fit_are_a_choice_even_if_their_number_is_not() -> None:
    assert 15 not in counts_tried(16)
    cuts, _ = best_groups([8] * 15, [1] * 15, lambda length: [0.0] + [5.0] * 16, counts_tried(16), 100.0, 16)
    assert cuts == [0]
    assert counts_tried(1) == []

"""Run times by rows and length, learnt from executions."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.scheduling.adaptive.costs import OVERHEAD_NS, Costs, fit

ROWS = (1, 2, 3, 5, 8, 13, 16)
LENGTHS = range(8, 129, 8)
Cost = Callable[[int, int], float]
"""Nanoseconds."""


def taught(cost: Cost, count: int = 800, noise: float = 0.1, costs: Costs | None = None) -> Costs:
    chance = random.Random(1)
    costs = costs or Costs(16)
    for _ in range(count):
        rows, length = chance.choice(ROWS), chance.choice(LENGTHS)
        costs.observe(rows, length, int(cost(rows, length) * chance.lognormvariate(0, noise)))
    return costs


def worst(costs: Costs, cost: Cost) -> float:
    """By what factor a prediction is off at most, over and under the usual factor: only ratios matter."""
    ratios = [(costs.of(length)[rows] - OVERHEAD_NS) / cost(rows, length) for rows in ROWS for length in LENGTHS]
    middle = sorted(ratios)[len(ratios) // 2]
    return max(max(ratios) / middle, middle / min(ratios))


@pytest.mark.parametrize(
    "cost",
    [
        lambda rows, length: 2e5 + 5e4 * rows * length,
        lambda rows, length: 8e6,
        lambda rows, length: 5e5 + 1e4 * rows * length + 2e3 * rows * length * length,
        lambda rows, length: 3e5 + 4e4 * (rows * length) ** 1.15,
        lambda rows, length: 5e5 + 5e4 * rows * (-(-length // 16) * 16) * (1.3 if rows > 6 else 1.0),
    ],
    ids=["linear", "constant", "quadratic", "superlinear", "steps"],
)
def test_learning(cost: Cost) -> None:
    assert worst(taught(cost), cost) < 1.25
    assert worst(taught(cost, noise=0), cost) < 1.2


def linear(rows: int, length: int) -> float:
    return 2e5 + 5e4 * rows * length


def test_what_never_ran_has_a_price_too() -> None:
    costs = Costs(16)
    for rows, length in [(1, 16), (1, 40), (1, 64), (4, 16), (4, 40), (4, 64)] * 20:
        costs.observe(rows, length, int(linear(rows, length)))
    for rows, length in [(2, 32), (1, 100), (8, 64)]:
        assert costs.of(length)[rows] == pytest.approx(linear(rows, length) + OVERHEAD_NS, rel=0.1)
    assert costs.sureness(4, 64) > 10
    assert costs.sureness(16, 16) == 0


def test_what_ran_for_the_first_time_counts_soon() -> None:
    """Not only when it is time for the next fit, which is a hundred executions away. Fits stay as few as before."""
    costs = Costs(16)
    for number in range(1024):
        costs.observe(1, LENGTHS[number % 8], int(linear(1, LENGTHS[number % 8])))
    before, version = costs.of(64)[16], costs.version
    assert before == pytest.approx(linear(16, 64), rel=0.05), "a guess"
    for _ in range(2):
        costs.observe(16, 64, int(linear(16, 64) / 4))
    assert costs.of(64)[16] < 0.5 * before
    for _ in range(254):
        costs.observe(16, 64, int(linear(16, 64) / 4))
    assert costs.version <= version + 4


def test_the_first_execution_of_a_shape_may_prepare_something() -> None:
    costs = taught(linear, noise=0)
    before = costs.of(44)[7]
    costs.observe(7, 44, 1_000_000_000)
    assert costs.of(44)[7] == before
    assert costs.count == 800


def lasting(count: int, factor: float = 1.0, shortest: int = 8, rows: int = 1) -> list[tuple[int, int, int]]:
    """Executions whose lengths all differ: rows, length and nanoseconds."""
    lengths = range(shortest, shortest + count)
    return [(rows, length, int(factor * linear(rows, length))) for length in lengths]


def test_where_lengths_never_repeat_what_was_expected_is_corrected() -> None:
    def cost(rows: int, length: int) -> float:
        return 2e5 + 1e3 * rows * length * length

    costs = Costs(16)
    for length in range(8, 17):
        costs.observe(1, length, int(cost(1, length)))
    for length in range(500, 1000):
        costs.observe(1, length, int(cost(1, length)))
    assert costs.count >= 9 + 490
    assert costs.of(1000)[1] == pytest.approx(cost(1, 1000), rel=0.15)


def test_surprises_among_what_is_known_are_corrected_too() -> None:
    """Long requests, no two of them alike, now and then among short ones that are as expected."""
    costs = Costs(16)
    for number in range(400):
        costs.observe(1, 8 + number % 4, 1_000_000)
        if number > 20 and number % 4 == 0:
            costs.observe(1, 500 + number, 50_000_000)
    assert costs.of(700)[1] == pytest.approx(50_000_000, rel=0.15)
    assert costs.of(9)[1] == pytest.approx(1_000_000 + OVERHEAD_NS, rel=0.15)


def test_all_gets_slower_where_lengths_never_repeat() -> None:
    costs = Costs(16)
    for execution in lasting(400)[::2]:
        costs.observe(*execution)
    for execution in lasting(400, 3.0)[-41::2]:
        costs.observe(*execution)
    assert costs.of(400)[1] == pytest.approx(3 * linear(1, 400), rel=0.1)
    assert costs.changes == 0


def test_another_behaviour_is_noticed_where_lengths_never_repeat() -> None:
    costs = Costs(16)
    for short, long in zip(lasting(300, rows=2), lasting(300, shortest=1000), strict=True):
        costs.observe(*short)
        costs.observe(*long)
    for short, long in zip(lasting(60, shortest=308, rows=2), lasting(60, 3.0, shortest=1300), strict=True):
        costs.observe(*short)
        costs.observe(*long)
    assert costs.changes >= 1
    assert costs.of(1360)[1] == pytest.approx(3 * linear(1, 1360), rel=0.2)


def test_what_is_new_counts_once_no_more_shapes_can_be_kept() -> None:
    costs = Costs(1)
    for execution in lasting(4096):
        costs.observe(*execution)
    costs.observe(1, 5000, int(3 * linear(1, 5000)))
    assert costs.count == 4097


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_engine_that_prepares_itself_for_each_shape(noise: float) -> None:
    """Once it has, it takes the usual time: 4 ms more at first, as OpenVINO does, say nothing about later ones."""
    prepared: set[tuple[int, int]] = set()

    def cost(rows: int, length: int) -> float:
        new = (rows, length) not in prepared
        prepared.add((rows, length))
        return 5e5 + 5e3 * rows * length + (4e6 if new else 0)

    costs = taught(cost, noise=noise)
    assert worst(costs, lambda rows, length: 5e5 + 5e3 * rows * length) < 1.3
    count, changes = costs.count, costs.changes
    for rows in (4, 6, 7):
        costs.observe(rows, 44, int(4e6 + cost(rows, 44)))
        costs.observe(8, 64, int(cost(8, 64)))
    assert costs.count == count + 3
    assert costs.changes == changes


def test_what_a_shape_takes_at_first_is_not_held_against_it() -> None:
    """The preparation is less than a surprise here. Only short lengths repeat."""
    costs = Costs(16)
    prepared: set[tuple[int, int]] = set()
    for number in range(600):
        rows, length = ROWS[number % 7], LENGTHS[number % 3] if number < 500 else 8 + number
        ns = 4e6 + 5e4 * rows * length + (0 if (rows, length) in prepared else 3e6)
        prepared.add((rows, length))
        costs.observe(rows, length, int(ns))
    for length in (512, 560, 600):
        assert costs.of(length)[1] == pytest.approx(4e6 + 5e4 * length + OVERHEAD_NS, rel=0.03)


def test_a_single_slow_execution_changes_little() -> None:
    costs = taught(linear, noise=0)
    costs.observe(8, 64, int(50 * linear(8, 64)))
    for _ in range(128):
        costs.observe(1, 8, int(linear(1, 8)))
    assert costs.of(64)[8] == pytest.approx(linear(8, 64), rel=0.06)


def test_when_all_gets_slower_relations_stay() -> None:
    """Others use the machine. What does not run meanwhile gets slower, too."""
    costs = taught(linear, noise=0.05)
    before = costs.of(128)[16] / costs.of(32)[4]
    for _ in range(20):
        costs.observe(4, 32, int(3 * linear(4, 32)))
    assert costs.of(32)[4] == pytest.approx(3 * linear(4, 32), rel=0.1)
    assert costs.of(128)[16] / costs.of(32)[4] == pytest.approx(before, rel=0.1)
    assert costs.changes == 0


def test_another_behaviour_is_learnt_anew() -> None:
    costs = taught(linear, noise=0.05)
    taught(lambda rows, length: 8e6, 300, 0.05, costs)
    assert costs.changes >= 1
    assert worst(costs, lambda rows, length: 8e6) < 1.4


def test_models_without_lengths() -> None:
    costs = Costs(32)
    for rows in [1, 2, 4, 8, 16, 32] * 20:
        costs.observe(rows, 1, 3_000_000 + 1_000_000 * rows)
    assert costs.of(1)[12] == pytest.approx(15_000_000, rel=0.05)
    assert [(rows, length) for rows, length, _ in costs.list_cells()] == [(rows, 1) for rows in (1, 2, 4, 8, 16, 32)]
    assert repr(costs) == "Costs(120 executions in 6 cells)"


@given(st.lists(st.tuples(st.floats(1, 64), st.floats(1, 512), st.floats(1e3, 1e10), st.floats(0.1, 6)), min_size=1))
@settings(max_examples=60, deadline=None)
def test_curves_are_never_negative(points: list[tuple[float, float, float, float]]) -> None:
    curve = fit(points)
    assert all(number >= 0 and math.isfinite(number) for number in curve)
    assert any(curve)

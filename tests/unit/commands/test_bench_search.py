"""The search for the highest rate within a goal, and single loads, on a server that exists only in numbers."""

import asyncio
import math
from collections.abc import Sequence

import pytest
from bench_fakes import FakeGenerator, profiler, window

from modserve.commands.bench.measures import LoadLevel, Measurement, MeasurementWindow
from modserve.commands.bench.profiler import LatencyGoal, MeasurementRules, RateSearch


def tries(search: RateSearch, limit: float) -> list[float]:
    """All rates of a search against a server that keeps the goal up to `limit`."""
    rates = []
    while (rate := search.next()) is not None:
        rates.append(rate)
        search.record(rate, rate <= limit)
        assert len(rates) < 60
    return rates


@pytest.mark.parametrize("limit", [3.0, 99.0, 1000.0, 54_321.0])
@pytest.mark.parametrize("start", [1.0, 1000.0, 1e6])
def test_it_comes_within_five_percent(limit: float, start: float) -> None:
    search = RateSearch(start)
    rates = tries(search, limit)
    assert search.met <= limit < search.missed <= search.met * 1.05
    assert len(rates) < 30


def test_it_doubles_then_halves() -> None:
    assert tries(RateSearch(100), 350)[:4] == [100, 200, 400, pytest.approx(math.sqrt(200 * 400))]
    assert tries(RateSearch(800), 150)[:4] == [800, 400, 200, 100]


def test_no_rate_keeps_the_goal() -> None:
    search = RateSearch(8)
    assert tries(search, 0) == [8, 4, 2, 1, 0.5]
    assert search.met == 0


def test_bounds() -> None:
    search = RateSearch(1, 100, 400)
    assert tries(search, math.inf) == [100, 200, 400]
    assert search.met == 400
    search = RateSearch(1000, 100, 400)
    assert tries(search, 50) == [400, 200, 100]
    assert search.met == 0


def test_a_rate_that_is_kept_once_and_then_not() -> None:
    search = RateSearch(100)
    search.record(100, True)
    search.record(200, True)
    search.record(150, False)
    assert (search.met, search.missed) == (0, 150)
    assert search.next() == 75


def result_at(rate: float, capacity: float, quick: float = 5.0) -> MeasurementWindow:
    """Up to its capacity the server is quick; beyond, it is late and falls behind."""
    fine = rate <= capacity
    return window([quick if fine else 100.0] * round(min(rate, capacity)))


def searched(goal: LatencyGoal, capacities: Sequence[float]) -> list[tuple[float, bool]]:
    """The rates of a search; the server's capacity is another one for each try, and at last stays."""
    running: list[FakeGenerator] = []

    def generator_of(load: LoadLevel) -> FakeGenerator:
        rate = load.value
        capacity = capacities[min(len(running), len(capacities) - 1)]
        running.append(FakeGenerator(load, lambda number: result_at(rate, capacity)))
        return running[-1]

    async def go() -> list[tuple[float, bool]]:
        measuring = profiler(MeasurementRules(requests=1), lambda: running[-1] if running else None)
        tried = measuring.highest_rate(RateSearch(100), goal, generator_of)
        return [(result.load.value, met) async for result, met in tried]

    outcome = asyncio.run(go())
    assert all(generator.log == ["start", "stop"] for generator in running)
    return outcome


def test_the_highest_rate_is_measured_once_more() -> None:
    *before, (rate, met) = searched(LatencyGoal(50, 99), [1000])
    assert met
    assert 950 <= rate <= 1000
    assert before.count((rate, True)) == 1


def test_luck_does_not_count() -> None:
    """The rate that the search ends with is not met again: somewhat less is tried."""
    lucky = searched(LatencyGoal(50, 99), [1000])
    tried = searched(LatencyGoal(50, 99), [1000] * (len(lucky) - 1) + [920])
    assert tried[len(lucky) - 1 :] == [(lucky[-1][0], False), (pytest.approx(lucky[-1][0] * 0.92), True)]


def test_a_goal_that_nothing_keeps() -> None:
    assert not any(met for _, met in searched(LatencyGoal(1, 99), [1000]))


def run_one(
    windows: list[MeasurementWindow], rules: MeasurementRules, interrupt_after: int | None = None
) -> tuple[Measurement, FakeGenerator, list[str]]:
    generator = FakeGenerator(LoadLevel(False, 4), lambda number: windows[min(number, len(windows) - 1)])
    log: list[str] = []
    measuring = profiler(rules, lambda: generator, log, interrupt_after)
    return asyncio.run(measuring.measure(generator)), generator, log


def test_a_load_ends_when_three_windows_agree() -> None:
    windows = [window([1.0] * 50), window([2.0] * 50), window([2.0] * 50), window([2.0] * 50)]
    result, generator, log = run_one(windows, MeasurementRules())
    assert (result.stable, result.windows, result.requests) == (True, 4, 150)
    assert log == [f"concurrency 4: {number}" for number in (1, 2, 3, 4)]
    assert generator.log == ["start", "stop"]
    assert result.server is not None
    assert result.server.requests == 30  # of the three windows that it is made of


def test_a_load_that_never_agrees() -> None:
    windows = [window([1.0 + number] * 50) for number in range(20)]
    result, _, _ = run_one(windows, MeasurementRules(most_windows=6))
    assert (result.stable, result.windows) == (False, 6)


def test_a_window_lasts_until_it_has_enough_requests() -> None:
    result, generator, _ = run_one([window([1.0] * 20)], MeasurementRules(requests=50))
    assert (result.requests, result.seconds, result.windows) == (180, 9.0, 3)
    assert generator.number == 9


def test_a_window_does_not_last_for_ever() -> None:
    result, generator, _ = run_one([window([])], MeasurementRules(requests=50, most_windows=3))
    assert (result.requests, generator.number) == (0, 30)


def test_ctrl_c_gives_what_there_is() -> None:
    windows = [window([1.0 + number] * 50) for number in range(20)]
    result, generator, _ = run_one(windows, MeasurementRules(), interrupt_after=2)
    assert (result.windows, result.requests) == (2, 100)
    assert generator.log == ["start", "stop"]

"""Times are taken in turns, and the clearly slower fall out; with a clock that only the entrants move."""

import math
from collections.abc import Iterable, Iterator

import pytest

from modserve.backends.auto.race import MOST_ROUNDS, race


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.rests = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests += 1


class Runner:
    """Takes so many seconds for each execution: the same each time, or one after the other."""

    def __init__(
        self, clock: Clock, log: list[str], name: str, seconds: float | Iterable[float], lanes: int = 1
    ) -> None:
        self._clock = clock
        self._log = log
        self._name = name
        self._lanes = lanes
        self._seconds: Iterator[float] | float = seconds if isinstance(seconds, float) else iter(seconds)
        self.executions = 0

    def run(self, times: int) -> int:
        self._log.append(self._name)
        for _ in range(times):
            self._clock.now += self._seconds if isinstance(self._seconds, float) else next(self._seconds)
            self.executions += self._lanes
        return times * self._lanes


class Track:
    def __init__(self, **seconds: float | Iterable[float]) -> None:
        self.clock = Clock()
        self.turns: list[str] = []
        self.runners = {name: Runner(self.clock, self.turns, name, each) for name, each in seconds.items()}

    def race(self, budget_s: float = 1e9, **estimates: float) -> dict[str, list[float]]:
        self.timings = race(
            self.runners,
            {name: estimates.get(name, 1.0) for name in self.runners},
            budget_s,
            self.clock,
            self.clock.sleep,
        )
        return {name: timing.seconds for name, timing in self.timings.items()}


def test_the_clearly_slower_fall_out_after_three_rounds() -> None:
    track = Track(a=1.0, b=1.05, c=3.0)
    seconds = track.race()
    assert {name: len(each) for name, each in seconds.items()} == {"a": MOST_ROUNDS, "b": MOST_ROUNDS, "c": 3}
    assert {name: timing.dropped for name, timing in track.timings.items()} == {"a": False, "b": False, "c": True}
    assert [track.timings[name].typical for name in "abc"] == pytest.approx([1.0, 1.05, 3.0])


def test_it_ends_when_one_is_left() -> None:
    track = Track(a=1.0, b=2.0)
    track.race()
    assert sorted(track.turns) == ["a"] * 3 + ["b"] * 3


def test_every_entrant_begins_a_round_in_turn() -> None:
    track = Track(a=1.0, b=1.0, c=1.0)
    track.race()
    assert track.turns[:9] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_noise_does_not_drop_the_fastest() -> None:
    """Its best time counts against the others' typical one."""
    track = Track(a=[9.0, 1.0, 9.0, *[1.0] * 100], b=2.0)
    track.race()
    assert track.timings["b"].typical == 2.0
    assert track.timings["a"].typical == 1.0
    assert not track.timings["a"].dropped


def test_the_budget_ends_it() -> None:
    track = Track(a=1.0, b=1.0)
    track.race(5.0)
    assert track.turns == ["a", "b", "b", "a", "a"]


@pytest.mark.parametrize(("budget_s", "turns"), [(0.0, []), (0.1, ["a"]), (10.0, ["a"]), (10.1, ["a", "b"])])
def test_one_execution_at_most_ends_after_the_time_is_over(budget_s: float, turns: list[str]) -> None:
    track = Track(a=10.0, b=10.0)
    track.race(budget_s)
    assert track.turns == turns


def test_neither_does_a_turn_of_many_executions_nor_its_warming_up() -> None:
    track = Track(a=0.001, b=0.001)
    track.race(0.0065, a=0.001, b=0.001)
    assert track.clock.now - 100 < 0.0076
    assert track.turns == ["a", "a"], "one to warm up, and six"
    slow = Track(a=7.0)
    slow.race(1.0, a=0.01)
    assert slow.runners["a"].executions == 1, "that was expected to be quick"


def test_short_executions_are_repeated_until_they_can_be_timed() -> None:
    track = Track(a=2**-9, b=0.99 * 2**-9)
    seconds = track.race(a=2**-9, b=2**-11)
    assert track.runners["a"].executions == MOST_ROUNDS * (1 + 11)
    assert track.runners["b"].executions == 41 + 1 + (MOST_ROUNDS - 1) * (1 + 11), (
        "the estimate was wrong, and corrected"
    )
    assert seconds["a"] == pytest.approx([2**-9] * MOST_ROUNDS)


def test_a_turn_begins_with_a_rest_and_an_execution_that_does_not_count() -> None:
    """But not where an execution is long enough for the caches not to matter."""
    track = Track(a=[9.0, 0.03, 9.0, 0.03, 9.0, 0.03], b=1.0)
    seconds = track.race(a=0.05)
    assert seconds["a"] == pytest.approx([0.03] * 3)
    assert len(seconds["b"]) == 3
    assert track.turns == ["a", "a", "b", "b", "a", "a", "a", "a", "b"]
    assert track.clock.rests == 6


def test_a_time_of_nothing_is_no_reason_to_run_for_ever() -> None:
    track = Track(a=0.0)
    track.race(a=0.0)
    assert track.runners["a"].executions == 1001


def test_several_executions_at_a_time_count_as_so_many() -> None:
    track = Track(a=1.0)
    track.runners["b"] = Runner(track.clock, track.turns, "b", 2.0, lanes=4)
    seconds = track.race()
    assert seconds["b"][:1] == [0.5]
    assert track.timings["a"].dropped


def test_who_fails_is_out() -> None:
    track = Track(a=1.0, b=[1.0])
    seconds = track.race()
    assert (seconds["b"], track.timings["b"].failure) == ([1.0], "StopIteration")
    assert track.turns.count("b") == 2


def test_nobody_races() -> None:
    assert race({}, {}, 1.0, Clock(), Clock().sleep) == {}
    track = Track(a=[])
    track.race()
    assert (track.timings["a"].typical, track.timings["a"].best) == (math.inf, math.inf)

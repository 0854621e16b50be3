"""Batch size and number of instances are found by measuring, with a clock that only executions move."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from modserve.backends.auto.setting import (
    BatchSetting,
    SearchResult,
    TrialPool,
    batch_sizes,
    best_setting,
    instance_counts,
)
from modserve.backends.runner import Runner
from modserve.core.tensors.tensor import Array

ROW = {"IN": np.zeros((1, 2), np.float32)}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class MadeUpCrew:
    """So many instances that execute side by side; a batch takes what a function of its size says."""

    def __init__(self, hangar: "Hangar", count: int, seconds: Callable[[int], float]) -> None:
        self._hangar = hangar
        self._count = count
        self._seconds = seconds
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return self._count

    def run(self, inputs: Mapping[str, Array], times: int) -> int:
        size = len(inputs["IN"])
        assert self._count in self._hangar.open
        if size > self._hangar.most:
            raise MemoryError("too large")
        self.sizes.append(size)
        self._hangar.longest_s = max(self._hangar.longest_s, self._seconds(size))
        self._hangar.clock.now += self._seconds(size) * times
        self._hangar.executing_s += self._seconds(size) * times
        return times * self._count


class Hangar:
    """Opens crews. Of those whose seconds are none it says that there is no memory."""

    def __init__(self, crews: Mapping[int, Callable[[int], float] | None], most: int, opening_s: float) -> None:
        self.clock = Clock()
        self.most = most
        self.open: set[int] = set()
        self.most_open = 0
        self.executing_s = self.longest_s = 0.0
        self.crews = {count: MadeUpCrew(self, count, seconds) for count, seconds in crews.items() if seconds}
        self._opening_s = opening_s

    @contextmanager
    def crew(self, count: int) -> Iterator[TrialPool]:
        if count not in self.crews:
            raise MemoryError("no memory for another")
        self.clock.now += self._opening_s
        self.open.add(count)
        self.most_open = max(self.most_open, len(self.open))
        yield cast(Any, self.crews[count])
        self.open.remove(count)


def tried(
    crews: Mapping[int, Callable[[int], float] | None],
    budget_s: float = 1e9,
    batches: Sequence[int] = (),
    most: int = 1000,
    opening_s: float = 0.0,
) -> tuple[SearchResult, Hangar]:
    hangar = Hangar(crews, most, opening_s)
    clock = hangar.clock
    best = best_setting(hangar.crew, list(crews), batches or batch_sizes(), ROW, budget_s, clock, clock.sleep)
    assert not hangar.open
    return best, hangar


def best(
    crews: Mapping[int, Callable[[int], float] | None],
    budget_s: float = 1e9,
    batches: Sequence[int] = (),
    most: int = 1000,
) -> tuple[BatchSetting, Mapping[BatchSetting, float], dict[int, MadeUpCrew]]:
    outcome, hangar = tried(crews, budget_s, batches, most)
    return outcome.best, outcome.seconds, hangar.crews


def test_a_batch_that_wins_nothing_is_not_made_larger() -> None:
    setting, seconds, made = best({1: lambda size: 0.1 * size})
    assert setting == BatchSetting(1, 1)
    assert sorted(seconds) == [BatchSetting(1, 1), BatchSetting(2, 1), BatchSetting(4, 1)]
    assert max(made[1].sizes) == 4


def test_the_smallest_of_the_batches_that_are_as_good() -> None:
    """Up to 8 rows an execution takes the same time, and then grows."""
    setting, seconds, _ = best({1: lambda size: 0.1 * max(1, size / 8)})
    assert setting == BatchSetting(8, 1)
    assert seconds[BatchSetting(8, 1)] == pytest.approx(0.0125)
    assert BatchSetting(64, 1) not in seconds


def test_a_batch_that_wins_all_the_way() -> None:
    setting, _, _ = best({1: lambda size: 0.1 + 0.001 * size})
    assert setting == BatchSetting(64, 1)


@pytest.mark.parametrize(
    ("two", "expected"),
    [(0.15, BatchSetting(1, 2)), (0.2, BatchSetting(1, 1)), (0.3, BatchSetting(1, 1)), (0.195, BatchSetting(1, 1))],
    ids=["better", "the same", "worse", "hardly better"],
)
def test_instances_that_share_the_threads(two: float, expected: BatchSetting) -> None:
    setting, _, _ = best({1: lambda size: 0.1 * size, 2: lambda size: two * size})
    assert setting == expected


def test_sizes_that_an_engine_refuses() -> None:
    setting, _, made = best({1: lambda size: 0.1}, most=4)
    assert setting == BatchSetting(4, 1)
    assert max(made[1].sizes) == 4
    with pytest.raises(MemoryError):
        best({1: lambda size: 0.1}, most=0)


def test_half_of_the_time_is_for_growing_batches() -> None:
    setting, seconds, _ = best({1: lambda size: 1.0}, budget_s=9.0)
    assert sorted(seconds) == [BatchSetting(1, 1), BatchSetting(2, 1)]
    assert setting == BatchSetting(2, 1)


@pytest.mark.parametrize("execution_s", [0.5, 1.0, 3.0, 9.0, 11.0, 25.0])
@pytest.mark.parametrize("by_size", [False, True], ids=["constant", "in proportion"])
def test_the_time_is_overrun_by_one_execution_at_most(execution_s: float, by_size: bool) -> None:
    """And what was not tried for that reason is said. Opening takes time, too, which does not count."""

    def seconds(size: int) -> float:
        return execution_s * (size if by_size else 1)

    outcome, hangar = tried(dict.fromkeys((1, 2, 4, 8), seconds), 10.0, opening_s=100.0)
    assert hangar.executing_s < 10 + hangar.longest_s
    never_ran = {count for count, crew in hangar.crews.items() if not crew.sizes}
    assert {setting.instances for setting in outcome.left_out} >= never_ran
    assert not outcome.left_out.keys() & outcome.seconds.keys()
    assert set(outcome.left_out.values()) <= {"the 10 s for measuring ended before it had run"}
    assert outcome.best in outcome.seconds
    if execution_s >= 9:
        assert never_ran >= {4, 8}


def test_two_crews_at_most_are_open() -> None:
    shares: dict[int, Callable[[int], float] | None] = {
        count: lambda size, count=count: 0.1 * size * (2.0 if count == 4 else 0.9**count)  # type: ignore[misc]
        for count in (1, 2, 4, 8)
    }
    outcome, hangar = tried(shares)
    assert hangar.most_open == 2
    assert outcome.best == BatchSetting(1, 8)
    assert {setting.instances for setting in outcome.seconds} == {1, 2, 4, 8}


def test_a_crew_that_cannot_be_opened_ends_nothing() -> None:
    outcome, _ = tried({1: lambda size: 0.1 * size, 2: None, 4: lambda size: 0.2 * size})
    assert outcome.best == BatchSetting(1, 4)
    assert outcome.left_out == {BatchSetting(1, 2): "no memory for another"}
    with pytest.raises(MemoryError):
        tried({1: None, 2: lambda size: 0.1})


def test_a_size_that_the_configuration_says() -> None:
    setting, seconds, _ = best({1: lambda size: 0.1 * size, 2: lambda size: 0.15 * size}, batches=[16])
    assert setting == BatchSetting(16, 2)
    assert set(seconds) == {BatchSetting(16, 1), BatchSetting(16, 2)}


def test_what_is_tried() -> None:
    assert [instance_counts(threads) for threads in (0, 1, 2, 3, 16)] == [[1], [1], [1, 2], [1, 2], [1, 2, 4, 8, 16]]
    assert batch_sizes() == [1, 2, 4, 8, 16, 32, 64]


class Instance:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self._log.append(f"run {len(inputs['IN'])}")
        return {}

    def close(self) -> None:
        self._log.append("close")


def test_a_crew_runs_all_of_its_instances() -> None:
    log: list[str] = []
    crew = TrialPool([lambda: Runner(Instance(log), (), ())] * 2)
    assert len(crew) == 2
    assert crew.run({"IN": np.zeros((3, 2))}, 2) == 4
    crew.close()
    assert log == ["run 3"] * 4 + ["close"] * 2


def test_a_crew_of_which_one_cannot_be_made() -> None:
    log: list[str] = []

    def fail() -> Runner:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        TrialPool([lambda: Runner(Instance(log), (), ()), fail])
    assert log == ["close"]

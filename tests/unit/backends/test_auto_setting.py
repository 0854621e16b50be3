"""Batch size and number of instances are found by measuring, with a clock that only executions move."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from modserve.backends.auto.runner import Runner
from modserve.backends.auto.setting import Crew, Setting, batch_sizes, best_setting, instance_counts
from modserve.core.tensor import Array

ROW = {"IN": np.zeros((1, 2), np.float32)}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class MadeUpCrew:
    """So many instances that execute side by side; a batch takes what a function of its size says."""

    def __init__(self, clock: Clock, count: int, seconds: Callable[[int], float], most: int = 1000) -> None:
        self._clock = clock
        self._count = count
        self._seconds = seconds
        self._most = most
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return self._count

    def run(self, inputs: Mapping[str, Array], times: int) -> int:
        size = len(inputs["IN"])
        if size > self._most:
            raise MemoryError("too large")
        self.sizes.append(size)
        self._clock.now += self._seconds(size) * times
        return times * self._count


def best(
    crews: Mapping[int, Callable[[int], float]], budget_s: float = 1e9, batches: Sequence[int] = (), most: int = 1000
) -> tuple[Setting, dict[Setting, float], dict[int, MadeUpCrew]]:
    clock = Clock()
    made = {count: MadeUpCrew(clock, count, seconds, most) for count, seconds in crews.items()}
    setting, seconds = best_setting(cast(Any, made), batches or batch_sizes(), ROW, budget_s, clock, clock.sleep)
    return setting, seconds, made


def test_a_batch_that_wins_nothing_is_not_made_larger() -> None:
    setting, seconds, made = best({1: lambda size: 0.1 * size})
    assert setting == Setting(1, 1)
    assert sorted(seconds) == [Setting(1, 1), Setting(2, 1), Setting(4, 1)]
    assert max(made[1].sizes) == 4


def test_the_smallest_of_the_batches_that_are_as_good() -> None:
    """Up to 8 rows an execution takes the same time, and then grows."""
    setting, seconds, _ = best({1: lambda size: 0.1 * max(1, size / 8)})
    assert setting == Setting(8, 1)
    assert seconds[Setting(8, 1)] == pytest.approx(0.0125)
    assert Setting(64, 1) not in seconds


def test_a_batch_that_wins_all_the_way() -> None:
    setting, _, _ = best({1: lambda size: 0.1 + 0.001 * size})
    assert setting == Setting(64, 1)


@pytest.mark.parametrize(
    ("two", "expected"),
    [(0.15, Setting(1, 2)), (0.2, Setting(1, 1)), (0.3, Setting(1, 1)), (0.195, Setting(1, 1))],
    ids=["better", "the same", "worse", "hardly better"],
)
def test_instances_that_share_the_threads(two: float, expected: Setting) -> None:
    setting, _, _ = best({1: lambda size: 0.1 * size, 2: lambda size: two * size})
    assert setting == expected


def test_sizes_that_an_engine_refuses() -> None:
    setting, _, made = best({1: lambda size: 0.1}, most=4)
    assert setting == Setting(4, 1)
    assert max(made[1].sizes) == 4
    with pytest.raises(MemoryError):
        best({1: lambda size: 0.1}, most=0)


def test_half_of_the_time_is_for_growing_batches() -> None:
    setting, seconds, _ = best({1: lambda size: 1.0}, budget_s=9.0)
    assert sorted(seconds) == [Setting(1, 1), Setting(2, 1)]
    assert setting == Setting(2, 1)


def test_a_size_that_the_configuration_says() -> None:
    setting, seconds, _ = best({1: lambda size: 0.1 * size, 2: lambda size: 0.15 * size}, batches=[16])
    assert setting == Setting(16, 2)
    assert set(seconds) == {Setting(16, 1), Setting(16, 2)}


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
    crew = Crew([lambda: Runner(Instance(log), (), ())] * 2)
    assert len(crew) == 2
    assert crew.run({"IN": np.zeros((3, 2))}, 2) == 4
    crew.close()
    assert log == ["run 3"] * 4 + ["close"] * 2


def test_a_crew_of_which_one_cannot_be_made() -> None:
    log: list[str] = []

    def fail() -> Runner:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        Crew([lambda: Runner(Instance(log), (), ()), fail])
    assert log == ["close"]

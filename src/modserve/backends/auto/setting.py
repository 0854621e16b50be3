"""How many instances of a model run best, with how many threads each, and in batches of which size.

The instances share the threads that the server has for the model: two of them have half each. For each number of
instances the batch grows until a row takes no less time any more; the best of all these settings then race.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from .race import race
from .runner import AsyncRunner, Runner
from .samples import Inputs

LARGEST_BATCH = 64
_GAIN = 0.97
"""A batch of twice the size is worth it if a row takes less than this share of the time."""
_TRIALS = 2
"""Executions of which the better one counts, before the race."""
_CONTENDERS = 1.5
"""Settings whose rows take at most so many times those of the best take part in the race."""
_AS_GOOD = 1.05
"""Of settings that are so near to the best, the one with the smallest batch and the fewest instances is taken."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """Ordered by what is to be preferred among equals."""

    batch: int
    instances: int

    @property
    def name(self) -> str:
        return f"{self.instances} × {self.batch}"


class Crew:
    """The instances of a model, each made and run on a thread of its own, as the server has them."""

    def __init__(self, makers: Sequence[Callable[[], Runner | AsyncRunner]]) -> None:
        self._stack = ExitStack()
        self._threads: list[ThreadPoolExecutor] = []
        self._runners: list[Runner | AsyncRunner] = []
        try:
            for make in makers:
                thread = self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tune"))
                runner = thread.submit(make).result()
                self._stack.callback(self._close, thread, runner)
                self._threads.append(thread)
                self._runners.append(runner)
        except BaseException:
            self._stack.close()
            raise

    @staticmethod
    def _close(thread: ThreadPoolExecutor, runner: Runner | AsyncRunner) -> None:
        thread.submit(runner.close).result()

    def __len__(self) -> int:
        return len(self._runners)

    def run(self, inputs: Inputs, times: int) -> int:
        """Each instance executes `inputs` so many times, all side by side; returns the executions of all."""
        for runner in self._runners:
            runner.timed = (inputs,)
        futures = [
            thread.submit(runner.run, times) for thread, runner in zip(self._threads, self._runners, strict=True)
        ]
        return sum(future.result() for future in futures)

    def close(self) -> None:
        self._stack.close()


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A setting in the race, whose executions are counted in rows."""

    crew: Crew
    inputs: Inputs
    rows: int

    def run(self, times: int) -> int:
        return self.crew.run(self.inputs, max(1, times // (self.rows * len(self.crew)))) * self.rows


def best_setting(
    crews: Mapping[int, Crew],
    batches: Sequence[int],
    row: Inputs,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Setting, dict[Setting, float]]:
    """The best of all numbers of instances, by their `crews`, and batch sizes, ascending; and the seconds of a row.

    `row` is a batch of one row. What an instance raises with some size ends the trial of larger ones; with the smallest
    it is raised.
    """
    start = clock()
    entrants: dict[Setting, _Entrant] = {}
    seconds: dict[Setting, float] = {}
    for instances, crew in crews.items():
        best, worse = float("inf"), 0
        for size in batches:
            setting, entrant = Setting(size, instances), _Entrant(crew, _batch(row, size), size)
            try:
                entrant.run(1)
                took = min(_timed(entrant, clock) for _ in range(_TRIALS))
            except Exception:
                if not entrants:
                    raise
                break
            seconds[setting], entrants[setting] = took, entrant
            worse = 0 if seconds[setting] < _GAIN * best else worse + 1
            best = min(best, seconds[setting])
            if worse == 2 or clock() - start >= budget_s / 2:
                break
    limit = _CONTENDERS * min(seconds.values())
    contenders = {setting.name: setting for setting in sorted(seconds) if seconds[setting] <= limit}
    timings = race(
        {name: entrants[setting] for name, setting in contenders.items()},
        {name: seconds[setting] for name, setting in contenders.items()},
        max(0.0, budget_s - (clock() - start)),
        clock,
        sleep,
    )
    seconds |= {contenders[name]: timing.typical for name, timing in timings.items() if timing.seconds}
    raced = {contenders[name]: timing.typical for name, timing in timings.items() if not timing.failure}
    fastest = min(raced.values())
    return min(setting for setting, took in raced.items() if took <= _AS_GOOD * fastest), seconds


def _timed(entrant: _Entrant, clock: Callable[[], float]) -> float:
    start = clock()
    rows = entrant.run(1)
    return (clock() - start) / rows


def _batch(row: Inputs, size: int) -> Inputs:
    return {name: np.repeat(array[:1], size, axis=0) for name, array in row.items()} if size > 1 else row


def instance_counts(threads: int) -> list[int]:
    """1, 2, 4, … up to the number of threads."""
    return [1 << power for power in range(max(1, threads).bit_length())]


def batch_sizes(largest: int = LARGEST_BATCH) -> list[int]:
    return [1 << power for power in range(largest.bit_length())]

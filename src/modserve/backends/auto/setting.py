"""Search for the best number of instances of a model, threads for each, and batch size.

The instances share the threads that the server has for the model: two of them have half each. One number of instances
comes after the other. For each the batch grows until the time per row stops falling, and the best settings race
against the current leaders; the better crew stays open, the other is closed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np

from ..runner import AsyncRunner, Inputs, Runner
from .budget import Budget
from .race import race

LARGEST_BATCH = 64
_GAIN = 0.97
"""A batch of twice the size is worth it if a row takes less than this share of the time."""
_TRIALS = 2
"""Number of executions before the race; the best one counts."""
_CONTENDERS = 1.5
"""Largest time per row of settings in the race, as a multiple of the best one's."""
_AS_GOOD = 1.05
"""Ratio up to which settings count as equal: the smallest batch, then the fewest instances, wins."""


@dataclass(frozen=True, slots=True, order=True)
class BatchSetting:
    """A batch size and a number of instances; the smaller one is preferred among equals."""

    batch: int
    instances: int

    @property
    def name(self) -> str:
        return f"{self.instances} × {self.batch}"


class TrialPool:
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
        """Execute `inputs` `times` times on each instance, concurrently; returns the total of executions."""
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
    """A setting in the race. Its executions are counted in rows."""

    crew: TrialPool
    inputs: Inputs
    rows: int

    def run(self, times: int) -> int:
        return self.crew.run(self.inputs, max(1, times // (self.rows * len(self.crew)))) * self.rows


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best setting, the seconds of a row by setting, and why others were not tried."""

    best: BatchSetting
    seconds: Mapping[BatchSetting, float]
    left_out: Mapping[BatchSetting, str]


def best_setting(
    open_crew: Callable[[int], AbstractContextManager[TrialPool]],
    counts: Sequence[int],
    batches: Sequence[int],
    row: Inputs,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> SearchResult:
    """Return the best of all numbers of instances, `counts`, and batch sizes, ascending.

    `row` is a batch of one row. At most two crews are open: the one that leads, and the next, which races against it.
    An exception of an instance ends the trial of larger sizes, one of opening a crew the trial of its number. With the
    first size of the first crew it is raised.
    """
    search = _Search(batches, row, Budget(budget_s, clock), clock, sleep)
    with ExitStack() as leading:
        for place, count in enumerate(counts):
            if search.leaders and not search.budget.left:
                search.left_out[BatchSetting(batches[0], count)] = search.budget.over_text
                continue
            with ExitStack() as stack:
                try:
                    crew = stack.enter_context(open_crew(count))
                    search.grow(crew, count, 2 * (len(counts) - place))
                except Exception as error:
                    if not search.leaders:
                        raise
                    search.left_out[BatchSetting(batches[0], count)] = str(error) or type(error).__name__
                    continue
                if search.best.instances == count:
                    leading.close()
                    leading.enter_context(stack.pop_all())
        search.race(search.budget.left)
    return SearchResult(search.best, search.seconds, search.left_out)


class _Search:
    """Search state: the settings of the leading crew, which has to be open, and all results."""

    def __init__(
        self,
        batches: Sequence[int],
        row: Inputs,
        budget: Budget,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.budget = budget
        self.leaders: dict[BatchSetting, _Entrant] = {}
        self.seconds: dict[BatchSetting, float] = {}
        self.left_out: dict[BatchSetting, str] = {}
        self._batches = batches
        self._row = row
        self._clock = clock
        self._sleep = sleep

    @property
    def best(self) -> BatchSetting:
        fastest = min(self.seconds[setting] for setting in self.leaders)
        return min(setting for setting in self.leaders if self.seconds[setting] <= _AS_GOOD * fastest)

    def grow(self, crew: TrialPool, count: int, parts: int) -> None:
        """Try a crew with larger and larger batches, then let it race against the leaders.

        Each takes one of `parts` equal parts of the time that is left.
        """
        with self.budget.running():
            entrants = self._try_batches(crew, count, self.budget.left / parts)
        both = bool(self.leaders)
        self.leaders |= entrants
        limit = _CONTENDERS * min(self.seconds[setting] for setting in self.leaders)
        self.leaders = {setting: each for setting, each in self.leaders.items() if self.seconds[setting] <= limit}
        if both and len({setting.instances for setting in self.leaders}) > 1:
            self.race(self.budget.left / (parts - 1))
        ahead = self.best.instances
        self.leaders = {setting: each for setting, each in self.leaders.items() if setting.instances == ahead}

    def _try_batches(self, crew: TrialPool, count: int, limit_s: float) -> dict[BatchSetting, "_Entrant"]:
        budget, entrants = self.budget, dict[BatchSetting, _Entrant]()
        end_s = budget.spent + limit_s
        best, worse, execution_s = float("inf"), 0, 0.0
        for size in self._batches:
            setting, entrant = BatchSetting(size, count), _Entrant(crew, _batch(self._row, size), size)
            # A larger batch takes at least as long as the one before.
            if entrants and (budget.spent >= end_s or execution_s > budget.left):
                self.left_out[setting] = budget.over_text
                break
            try:
                took = self._time_row(entrant, end_s)
            except Exception as error:
                if not entrants:
                    raise
                self.left_out[setting] = str(error) or type(error).__name__
                break
            self.seconds[setting], entrants[setting] = took, entrant
            execution_s = took * size * count
            worse = 0 if took < _GAIN * best else worse + 1
            best = min(best, took)
            if worse == 2:
                break
        return entrants

    def _time_row(self, entrant: "_Entrant", end_s: float) -> float:
        """Return the seconds of a row, by the best of some executions after the first; by the first if time is up."""
        took: list[float] = []
        for _ in range(1 + _TRIALS):
            if took and self.budget.spent >= end_s:
                break
            start = self._clock()
            rows = entrant.run(1)
            took.append((self._clock() - start) / rows)
        return min(took[1:] or took)

    def race(self, limit_s: float) -> None:
        """Let the leaders run in turns. Who falls out leads no more."""
        names = {setting.name: setting for setting in sorted(self.leaders)}
        with self.budget.running():
            timings = race(
                {name: self.leaders[setting] for name, setting in names.items()},
                {name: self.seconds[setting] for name, setting in names.items()},
                limit_s,
                self._clock,
                self._sleep,
            )
        for name, timing in timings.items():
            if timing.seconds:
                self.seconds[names[name]] = timing.typical
        able = {names[name] for name, timing in timings.items() if not timing.failure}
        if not able:
            raise RuntimeError("; ".join(timing.failure for timing in timings.values()))
        self.leaders = {setting: each for setting, each in self.leaders.items() if setting in able}


def _batch(row: Inputs, size: int) -> Inputs:
    return {name: np.repeat(array[:1], size, axis=0) for name, array in row.items()} if size > 1 else row


def instance_counts(threads: int) -> list[int]:
    """Return 1, 2, 4, … up to the number of threads."""
    return [1 << power for power in range(max(1, threads).bit_length())]


def batch_sizes(largest: int = LARGEST_BATCH) -> list[int]:
    return [1 << power for power in range(largest.bit_length())]

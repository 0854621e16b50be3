"""Search over points, one server at a time, and a final measurement of the best one against the present one."""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modserve.commands.bench.profiler import LOWEST, RateSearch
from modserve.core.errors import ModserveError
from modserve.core.runtime.clock import LoopClock
from modserve.pb import inference as pb

from ..bench.inputs import DataOptions
from ..bench.loops import LoadGenerator
from ..bench.measures import LoadLevel, Measurement, MeasurementWindow
from ..bench.profiler import LatencyGoal, MeasurementRules, Profiler
from ..bench.session import BenchSession, Interrupt, session, without_collections
from ..destination import Destination
from .repository import ModelCopy, serving
from .space import CoordinateSearch, Point, apply, text

_CONNECTIONS = 256
_SHARE_OF_POINT = 0.2
"""Share of the time that one point may take, if it is the present one or a better one."""
_SHARE_FOR_END = 0.25
"""Share of the time reserved for measuring the best point against the present one."""
_TURNS = 4
"""Measurements at the end: two of each."""
_TOLERANCE = 0.08
"""Relative precision of a rate; smaller differences between points do not matter."""
_ABOVE, _BELOW = 1.2, 0.25
"""Range in which the final measurement searches, as multiples of the point's earlier rate."""


@dataclass(slots=True)
class Trial:
    """A point and its results."""

    point: Point
    rate: float = 0.0
    """The highest that met the goal; 0: none did, or none above that of the best point before."""
    results: list[tuple[Measurement, bool]] = field(default_factory=list)
    """Measured rates, and True for each that met the goal."""
    failure: str = ""
    better: bool = False
    unfinished: bool = False
    """The time was over before its highest rate was known."""

    @property
    def best(self) -> Measurement | None:
        """The last measurement of its highest rate."""
        return next((result for result, met in reversed(self.results) if met and result.load.value == self.rate), None)


@dataclass(frozen=True, slots=True)
class TuneSetup:
    """The setup that all trials share."""

    model: str
    config: pb.ModelConfig
    """Configuration as its author wrote it."""
    backend: str
    present: Point
    goal: LatencyGoal
    rules: MeasurementRules
    data: DataOptions
    load_seconds: float
    options: Sequence[str] = ()
    """Options of all servers."""

    def text(self, point: Point) -> str:
        return text(apply(self.config, point, self.present, self.backend), [])


@dataclass(slots=True)
class TuneResult:
    trials: list[Trial]
    """The present point first."""
    best: Trial
    finals: tuple[Trial, Trial] | None = None
    """The present and the best point, measured again side by side."""
    interrupted: bool = False
    out_of_time: bool = False

    @property
    def gain(self) -> float | None:
        """The best point's rate over the present one's, side by side; None if that was not measured."""
        if self.finals is None or not self.finals[0].rate:
            return None
        return self.finals[1].rate / self.finals[0].rate


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of a tuning. Tests replace them with simulated servers."""

    attempt: Callable[[Point, float | None, float], "Trial"]
    """Measurement of a point until a time; only above a rate, if there is one. Blocks."""
    compare: Callable[[Trial, Trial, float], tuple[Trial, Trial]]
    """Measurement of two points side by side, until a time."""
    on_trial: Callable[[Trial], None]
    interrupted: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic


def tune(search_from: Callable[[float], CoordinateSearch], present: Point, budget: float, hooks: Hooks) -> TuneResult:
    """Run the whole search. A point that does not exceed the best rate by some percent is given up at once."""
    begin = hooks.clock()
    end_of_search = begin + budget * (1 - _SHARE_FOR_END)

    def limit() -> float:
        return min(end_of_search, hooks.clock() + budget * _SHARE_OF_POINT)

    first = hooks.attempt(present, None, limit())
    first.better = True
    hooks.on_trial(first)
    outcome = TuneResult([first], first)
    search = search_from(first.rate)
    while not hooks.interrupted():
        if hooks.clock() > end_of_search:
            outcome.out_of_time = True
            break
        point = search.next()
        if point is None:
            break
        each = hooks.attempt(point, search.bar or None, limit())
        if hooks.interrupted():
            break
        search.record(point, each.rate)
        each.better = search.best == point
        outcome.trials.append(each)
        if each.better:
            outcome.best = each
        hooks.on_trial(each)
    if outcome.best is not first and not hooks.interrupted():
        outcome.finals = hooks.compare(first, outcome.best, hooks.clock() + budget * _SHARE_FOR_END)
    outcome.interrupted = hooks.interrupted()
    return outcome


class TrialRunner:
    """Measurement of points on real servers, in a running event loop's `Runner`, one at a time."""

    def __init__(self, setup: TuneSetup, copies: tuple[ModelCopy, ModelCopy], run: "asyncio.Runner") -> None:
        self._setting, self._copies, self._runner = setup, copies, run
        self._interruption = run.run(_interruption())

    def interrupted(self) -> bool:
        return self._interruption.happened

    def attempt(self, point: Point, above: float | None, deadline: float) -> Trial:
        trial = Trial(point)
        setup = self._setting
        copy = self._copies[0]
        copy.configure(setup.text(point))
        try:
            with (
                serving(copy, setup.options, setup.load_seconds) as server,
                session([server], setup.model, None, setup.data) as opened,
            ):
                self._runner.run(self._measure(opened, trial, deadline, above=above))
        except (ModserveError, OSError) as error:
            trial.failure = error.message if isinstance(error, ModserveError) else str(error)
        return trial

    def compare(self, present: Trial, best: Trial, deadline: float) -> tuple[Trial, Trial]:
        """Measure both points on servers that run side by side, in turns; the better of two results counts."""
        share = max(0.0, deadline - time.monotonic()) / _TURNS
        again = (Trial(present.point), Trial(best.point))
        setup = self._setting
        for copy, trial in zip(self._copies, again, strict=True):
            copy.configure(setup.text(trial.point))
        with (
            serving(self._copies[0], setup.options, setup.load_seconds) as first,
            serving(self._copies[1], setup.options, setup.load_seconds) as second,
        ):
            for _ in range(_TURNS // 2):
                for server, trial, before in zip((first, second), again, (present, best), strict=True):
                    if not self.interrupted():
                        self._once_more(server, trial, before, time.monotonic() + share)
        return again

    def _once_more(self, server: Destination, trial: Trial, before: Trial, deadline: float) -> None:
        setup = self._setting
        with session([server], setup.model, None, setup.data) as opened:
            self._runner.run(self._measure(opened, trial, deadline, near=before.rate or None))

    async def _measure(
        self, opened: BenchSession, trial: Trial, deadline: float, above: float | None = None, near: float | None = None
    ) -> None:
        """Search for the point's rate: from scratch, only `above` a rate, or `near` one."""
        setup = self._setting
        timers = LoopClock(asyncio.get_running_loop())

        def on_window(load: LoadLevel, windows: Sequence[MeasurementWindow]) -> None:
            gc.collect()

        def generator_of(load: LoadLevel) -> LoadGenerator:
            return opened.generator(load, _CONNECTIONS, False, timers)

        profiler = Profiler(setup.rules, opened.times, on_window, self._interruption.sleep)
        await opened.first_responses()
        with without_collections():
            if above is not None:
                search = RateSearch(above, above, tolerance=_TOLERANCE)
            elif near is not None:
                search = RateSearch(near, near * _BELOW, near * _ABOVE, tolerance=_TOLERANCE)
            else:
                search = RateSearch(max(await profiler.single_client_rate(generator_of), LOWEST), tolerance=_TOLERANCE)
            rates = profiler.highest_rate(search, setup.goal, generator_of)
            last = 0.0
            async for result, met in rates:
                if self.interrupted():
                    return
                trial.results.append((result, met))
                last = result.load.value if met else 0.0
                if time.monotonic() > deadline:
                    last = max(last, search.met)
                    trial.unfinished = search.next() is not None
                    break
            trial.rate = max(trial.rate, last)


async def _interruption() -> Interrupt:
    return Interrupt()

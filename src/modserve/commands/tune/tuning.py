"""Tries points, one server after the other, and measures the best one beside the present one at the end."""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modserve.core.errors import ModserveError
from modserve.pb import inference as pb

from ..bench.inputs import Wishes
from ..bench.loops import Driver
from ..bench.measures import Load, Result, Window
from ..bench.run import Goal, Rules, Surroundings, highest_rate, measure
from ..bench.search import LOWEST, RateSearch
from ..bench.session import Interruption, Session, session, without_collections
from ..destination import Destination
from .search import CoordinateSearch
from .servers import Copy, serving
from .space import Point, applied, text

_CONNECTIONS = 256
_SHARE_OF_POINT = 0.2
"""Of the time: what one point may take, when it is the present one or a better one."""
_SHARE_FOR_END = 0.25
"""Of the time, kept for measuring the best point beside the present one."""
_TURNS = 4
"""Measurements at the end: two of each."""
_TOLERANCE = 0.08
"""A rate is known to so much; points have to differ by more to matter."""
_ABOVE, _BELOW = 1.2, 0.25
"""Of the rate that a point had, where the measurement at the end looks for its rate."""


@dataclass(slots=True)
class Tried:
    """A point, and what came of it."""

    point: Point
    rate: float = 0.0
    """The highest that kept the goal; 0: none did, or none above that of the best point before."""
    results: list[tuple[Result, bool]] = field(default_factory=list)
    """All rates that were measured, and whether each kept the goal."""
    failure: str = ""
    better: bool = False

    @property
    def best(self) -> Result | None:
        """The last measurement of its highest rate."""
        return next(
            (result for result, kept in reversed(self.results) if kept and result.load.value == self.rate), None
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same for all points."""

    model: str
    config: pb.ModelConfig
    """As its author wrote it."""
    backend: str
    present: Point
    goal: Goal
    rules: Rules
    wishes: Wishes
    load_seconds: float
    options: Sequence[str] = ()
    """For all servers."""

    def text(self, point: Point) -> str:
        return text(applied(self.config, point, self.present, self.backend), [])


@dataclass(slots=True)
class Outcome:
    tried: list[Tried]
    """The present point first."""
    best: Tried
    finals: tuple[Tried, Tried] | None = None
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
    """What a tuning calls: a person looks on, and tests have servers that exist only in numbers."""

    attempt: Callable[[Point, float | None, float], "Tried"]
    """Measures a point until a moment of the clock; only above a rate, if there is one. Blocks."""
    compare: Callable[[Tried, Tried, float], tuple[Tried, Tried]]
    """Measures two of them side by side, until a moment."""
    on_tried: Callable[[Tried], None]
    interrupted: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic


def tune(search_from: Callable[[float], CoordinateSearch], present: Point, budget: float, hooks: Hooks) -> Outcome:
    """The whole search. A point that does not exceed the best rate by some percent is given up at once."""
    begin = hooks.clock()
    end_of_search = begin + budget * (1 - _SHARE_FOR_END)

    def limit() -> float:
        return min(end_of_search, hooks.clock() + budget * _SHARE_OF_POINT)

    first = hooks.attempt(present, None, limit())
    first.better = True
    hooks.on_tried(first)
    outcome = Outcome([first], first)
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
        search.tried(point, each.rate)
        each.better = search.best == point
        outcome.tried.append(each)
        if each.better:
            outcome.best = each
        hooks.on_tried(each)
    if outcome.best is not first and not hooks.interrupted():
        outcome.finals = hooks.compare(first, outcome.best, hooks.clock() + budget * _SHARE_FOR_END)
    outcome.interrupted = hooks.interrupted()
    return outcome


class Laboratory:
    """Measures points with real servers; lives inside a running event loop's `Runner`, one measurement at a time."""

    def __init__(self, setting: Setting, copies: tuple[Copy, Copy], run: "asyncio.Runner") -> None:
        self._setting, self._copies, self._runner = setting, copies, run
        self._interruption = run.run(_interruption())

    def interrupted(self) -> bool:
        return self._interruption.happened

    def attempt(self, point: Point, above: float | None, deadline: float) -> Tried:
        tried = Tried(point)
        setting = self._setting
        copy = self._copies[0]
        copy.configure(setting.text(point))
        try:
            with (
                serving(copy, setting.options, setting.load_seconds) as server,
                session(server, setting.model, None, setting.wishes) as opened,
            ):
                self._runner.run(self._measure(opened, tried, deadline, above=above))
        except (ModserveError, OSError) as error:
            tried.failure = error.message if isinstance(error, ModserveError) else str(error)
        return tried

    def compare(self, present: Tried, best: Tried, deadline: float) -> tuple[Tried, Tried]:
        """Both servers run; each is measured twice, in turns, and its better result counts."""
        share = max(0.0, deadline - time.monotonic()) / _TURNS
        again = (Tried(present.point), Tried(best.point))
        setting = self._setting
        for copy, tried in zip(self._copies, again, strict=True):
            copy.configure(setting.text(tried.point))
        with (
            serving(self._copies[0], setting.options, setting.load_seconds) as first,
            serving(self._copies[1], setting.options, setting.load_seconds) as second,
        ):
            for _ in range(_TURNS // 2):
                for server, tried, before in zip((first, second), again, (present, best), strict=True):
                    if not self.interrupted():
                        self._once_more(server, tried, before, time.monotonic() + share)
        return again

    def _once_more(self, server: Destination, tried: Tried, before: Tried, deadline: float) -> None:
        setting = self._setting
        with session(server, setting.model, None, setting.wishes) as opened:
            self._runner.run(self._measure(opened, tried, deadline, near=before.rate or None))

    async def _measure(
        self, opened: Session, tried: Tried, deadline: float, above: float | None = None, near: float | None = None
    ) -> None:
        """Search for the point's rate: from scratch, only `above` a rate, or `near` one."""
        setting = self._setting

        def on_window(load: Load, windows: Sequence[Window]) -> None:
            gc.collect()

        def driver_of(load: Load) -> Driver:
            return opened.driver(load, _CONNECTIONS, False)

        around = Surroundings(opened.times, on_window, self._interruption.sleep)
        await opened.first_response()
        with without_collections():
            if above is not None:
                search = RateSearch(above, above, tolerance=_TOLERANCE)
            elif near is not None:
                search = RateSearch(near, near * _BELOW, near * _ABOVE, tolerance=_TOLERANCE)
            else:
                single = await measure(driver_of(Load(False, 1)), setting.rules, around, lambda windows: True)
                search = RateSearch(max(single.rate, LOWEST), tolerance=_TOLERANCE)
            rates = highest_rate(search, setting.goal, setting.rules, around, lambda rate: driver_of(Load(True, rate)))
            last = 0.0
            async for result, kept in rates:
                if self.interrupted():
                    return
                tried.results.append((result, kept))
                last = result.load.value if kept else 0.0
                if time.monotonic() > deadline:
                    last = max(last, search.kept)
                    break
            tried.rate = max(tried.rate, last)


async def _interruption() -> Interruption:
    return Interruption()

"""One load, from its first request to its result; the search for the highest rate that keeps a goal."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from .loops import LoadGenerator
from .measures import AT_THE_EDGE, WINDOWS, LoadLevel, Measurement, MeasurementWindow, ServerTimes, is_stable, summary
from .search import RateSearch

_SETTLE_SECONDS = 0.02
"""Behind what the command itself does between two windows."""
_DRAIN_SECONDS = 5.0
_LONGEST = 10
"""Windows' lengths that one may grow to until it has enough requests."""


@dataclass(frozen=True, slots=True)
class MeasurementRules:
    """When a measurement is good enough."""

    window: float = 1.0
    """Seconds."""
    requests: int = 50
    """Of a window, at least, unless it would last ten times as long."""
    most_windows: int = 10
    warm_up: float = 0.5
    stability: float = 10.0
    percentile: float = 99.0
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a measurement needs beside its generator. Tests have a clock of their own."""

    times: Callable[[], Awaitable[ServerTimes | None]]
    """What the server has counted so far."""
    on_window: Callable[[LoadLevel, Sequence[MeasurementWindow]], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def measure(
    generator: LoadGenerator,
    rules: MeasurementRules,
    around: Surroundings,
    enough: Callable[[Sequence[MeasurementWindow]], bool] = lambda windows: False,
) -> Measurement:
    """Windows until three agree, or until `enough` of them. Raises OSError.

    When `around.sleep` raises InterruptedError, the result is of what there is until then.
    """
    windows: list[MeasurementWindow] = []
    unanswered = 0
    started = False
    try:
        await generator.start()
        started = True
        await around.sleep(rules.warm_up)
        before = await around.times()
        while len(windows) < rules.most_windows:
            await around.sleep(_SETTLE_SECONDS)
            generator.take_window()
            window = await _window(generator, rules, around)
            after = await around.times()
            if before is not None and after is not None:
                window.server = after.since(before)
            before = after
            windows.append(window)
            around.on_window(generator.load, windows)
            if is_stable(windows, rules.stability, rules.percentile) or enough(windows):
                break
    except InterruptedError:
        if (rest := generator.take_window()).latencies:
            windows.append(rest)
    finally:
        unanswered = await generator.stop(_DRAIN_SECONDS if started else 0.0)
    result = summary(generator.load, windows, rules.rows, rules.stability, rules.percentile)
    return replace(result, unanswered=unanswered)


async def _window(generator: LoadGenerator, rules: MeasurementRules, around: Surroundings) -> MeasurementWindow:
    await around.sleep(rules.window)
    window = generator.take_window()
    for _ in range(_LONGEST - 1):
        if len(window.latencies) + sum(window.errors.values()) >= rules.requests:
            break
        await around.sleep(rules.window)
        window.add(generator.take_window())
    return window


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """So many percent of the requests take at most so many milliseconds."""

    ms: float
    percentile: float

    def kept(self, result: Measurement) -> bool:
        """Whether a load keeps it: by its percentile, without errors, and as many responses as requests."""
        return (
            result.requests > 0
            and not result.failed
            and result.keeps_up
            and result.percentiles[self.percentile] <= self.ms
        )

    def hopeless(self, windows: Sequence[MeasurementWindow], rate: float) -> bool:
        """Whether a load will not keep it, however long it lasts."""
        last = windows[-1]
        late = sum(window.percentile_ms(self.percentile) > self.ms for window in windows)
        return (
            len(windows) >= WINDOWS
            or late > 1
            or bool(last.errors)
            or not last.latencies
            or len(last.latencies) < _HOPELESS_SHARE * rate * last.seconds - AT_THE_EDGE
        )


_HOPELESS_SHARE = 0.8
_CONFIRMATIONS = 4
_STEP_BACK = 0.92


async def highest_rate(
    search: RateSearch,
    goal: LatencyGoal,
    rules: MeasurementRules,
    around: Surroundings,
    generator_of: Callable[[float], LoadGenerator],
) -> AsyncIterator[tuple[Measurement, bool]]:
    """All rates that were tried, and whether each keeps the goal. The last one that does is the highest.

    What the search ends with is measured once more: a rate at the limit may have kept the goal by luck. Where it does
    not, somewhat less is tried.
    """

    async def attempt(rate: float) -> tuple[Measurement, bool]:
        result = await measure(generator_of(rate), rules, around, lambda windows: goal.hopeless(windows, rate))
        return result, goal.kept(result)

    while (rate := search.next()) is not None:
        result, kept = await attempt(rate)
        search.tried(rate, kept)
        yield result, kept
    rate = search.kept
    for _ in range(_CONFIRMATIONS if rate else 0):
        result, kept = await attempt(rate)
        yield result, kept
        if kept:
            return
        rate *= _STEP_BACK

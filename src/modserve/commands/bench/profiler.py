"""Measurement of loads: windows until the results are stable, and the search for the highest rate within a goal.

Searches the highest rate that meets a goal, by doubling and then halving the range; pure.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from modserve.commands.status_report import VersionUsage

from .loops import LoadGenerator
from .measures import AT_THE_EDGE, WINDOWS, LoadLevel, Measurement, MeasurementWindow, is_stable, summary

LOWEST = 0.5


class RateSearch:
    """Return the rate to try next, from which rates have met the goal so far.

    Upwards by doubling until one does not keep it, downwards by halving until one does; then the geometric mean of the
    two, until they are within `tolerance` of each other. `lowest` and `highest` bound the search.
    """

    def __init__(
        self, start: float, lowest: float = LOWEST, highest: float = math.inf, tolerance: float = 0.05
    ) -> None:
        self._lowest, self._highest, self._tolerance = lowest, highest, tolerance
        self._next = min(max(start, lowest), highest)
        self.met: float = 0.0
        """The highest rate that met the goal; 0: none did."""
        self.missed: float = math.inf
        """The lowest rate that did not."""

    def next(self) -> float | None:
        """Return the rate to try; None when the search is over."""
        if self.met >= self._highest or self.missed <= self._lowest or self.missed <= self.met * (1 + self._tolerance):
            return None
        return self._next

    def record(self, rate: float, met: bool) -> None:
        if met:
            self.met = max(self.met, rate)
        else:
            self.missed = min(self.missed, rate)
            if self.met >= self.missed:  # what was met once is not met again
                self.met = 0.0
        if not self.met:
            self._next = max(self.missed / 2, self._lowest)
        elif self.missed == math.inf:
            self._next = min(self.met * 2, self._highest)
        else:
            self._next = math.sqrt(self.met * self.missed)


_SETTLE_SECONDS = 0.02
"""A pause after the command's own work between two windows."""
_DRAIN_SECONDS = 5.0
_LONGEST = 10
"""Multiple of its length that a window may last until it has enough requests."""


@dataclass(frozen=True, slots=True)
class MeasurementRules:
    """Measurement times, and the conditions of a stable result."""

    window: float = 1.0
    """Seconds."""
    requests: int = 50
    """Minimum number of requests in a window, which lasts at most ten times as long for them."""
    most_windows: int = 10
    warm_up: float = 0.5
    stability: float = 10.0
    percentile: float = 99.0
    rows: int = 1


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """A latency threshold: `percentile` percent of the requests take at most `ms`."""

    ms: float
    percentile: float

    def met_by(self, result: Measurement) -> bool:
        """Return True if a load meets the goal: its percentile is low enough, no request fails, and it keeps up."""
        return (
            result.requests > 0
            and not result.failed
            and result.keeps_up
            and result.percentiles[self.percentile] <= self.ms
        )

    def hopeless(self, windows: Sequence[MeasurementWindow], rate: float) -> bool:
        """Return True if a load will miss the goal, however long it lasts."""
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


@dataclass(frozen=True, slots=True)
class Profiler:
    """Measurement of one load after another by the same rules. Tests bring a clock of their own."""

    rules: MeasurementRules
    server_times: Callable[[], Awaitable[VersionUsage | None]]
    """The server's counts so far; None if it has no statistics."""
    on_window: Callable[[LoadLevel, Sequence[MeasurementWindow]], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Raises InterruptedError to end the measurement with the results so far."""

    async def measure(
        self,
        generator: LoadGenerator,
        enough: Callable[[Sequence[MeasurementWindow]], bool] = lambda windows: False,
    ) -> Measurement:
        """Measure windows until three agree, or until `enough` of them. Raises OSError."""
        rules = self.rules
        windows: list[MeasurementWindow] = []
        unanswered = 0
        started = False
        try:
            await generator.start()
            started = True
            await self.sleep(rules.warm_up)
            before = await self.server_times()
            while len(windows) < rules.most_windows:
                await self.sleep(_SETTLE_SECONDS)
                generator.take_window()
                window = await self._window(generator)
                after = await self.server_times()
                if before is not None and after is not None:
                    window.server = after.since(before)
                before = after
                windows.append(window)
                self.on_window(generator.load, windows)
                if is_stable(windows, rules.stability, rules.percentile) or enough(windows):
                    break
        except InterruptedError:
            if (rest := generator.take_window()).latencies:
                windows.append(rest)
        finally:
            unanswered = await generator.stop(_DRAIN_SECONDS if started else 0.0)
        result = summary(generator.load, windows, rules.rows, rules.stability, rules.percentile)
        return replace(result, unanswered=unanswered)

    async def _window(self, generator: LoadGenerator) -> MeasurementWindow:
        await self.sleep(self.rules.window)
        window = generator.take_window()
        for _ in range(_LONGEST - 1):
            if len(window.latencies) + sum(window.errors.values()) >= self.rules.requests:
                break
            await self.sleep(self.rules.window)
            window.add(generator.take_window())
        return window

    async def single_client_rate(self, generator_of: Callable[[LoadLevel], LoadGenerator]) -> float:
        """Return the requests per second of one client in a closed loop: the start of a search for the highest rate."""
        return (await self.measure(generator_of(LoadLevel(False, 1)), lambda windows: True)).rate

    async def highest_rate(
        self, search: RateSearch, goal: LatencyGoal, generator_of: Callable[[LoadLevel], LoadGenerator]
    ) -> AsyncIterator[tuple[Measurement, bool]]:
        """Yield each rate tried, and whether it meets the goal. The last one that does is the highest.

        The final rate is measured once more, since a rate at the limit may meet the goal by luck. If it misses then,
        somewhat lower rates are tried.
        """

        async def attempt(rate: float) -> tuple[Measurement, bool]:
            generator = generator_of(LoadLevel(True, rate))
            result = await self.measure(generator, lambda windows: goal.hopeless(windows, rate))
            return result, goal.met_by(result)

        while (rate := search.next()) is not None:
            result, met = await attempt(rate)
            search.record(rate, met)
            yield result, met
        rate = search.met
        for _ in range(_CONFIRMATIONS if rate else 0):
            result, met = await attempt(rate)
            yield result, met
            if met:
                return
            rate *= _STEP_BACK

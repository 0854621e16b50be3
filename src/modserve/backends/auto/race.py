"""Timing of several engines in turns, so that noise of the machine affects all of them alike.

A round is one turn of each entrant; a turn repeats short executions until it is long enough to be timed. Before it
there is a rest, since the threads of the engine before still spin for a while, and an execution that does not count,
which brings the caches back.

After a few rounds, engines with a best time clearly worse than the typical time of the leader drop out:
disturbances make a measurement longer, never shorter. The race ends when one engine is left, after a number of rounds,
or when the time is over.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

MOST_ROUNDS = 20
_LOOKS = (3, 6, 12)
"""Numbers of rounds after which clearly slower engines drop out."""
_CLEARLY = 1.1
_TURN_S = 0.02
_MOST_TIMES = 1000
_REST_S = 0.005
_WARM_BELOW_S = 0.1
"""Longest execution, in seconds, that needs a separate warm-up."""


class Entrant(Protocol):
    def run(self, times: int) -> int:
        """Execute `times` times, or a multiple of it, blocking; returns how often.

        An exception takes it out of the race.
        """


@dataclass(slots=True)
class Timing:
    """Seconds per execution of one entrant, by round."""

    seconds: list[float] = field(default_factory=list)
    dropped: bool = False
    """True if it was clearly slower and was not timed to the end."""
    failure: str = ""

    @property
    def typical(self) -> float:
        """Lower quartile of the rounds: other load on the machine disturbs it less than the median."""
        return sorted(self.seconds)[len(self.seconds) // 4] if self.seconds else math.inf

    @property
    def best(self) -> float:
        return min(self.seconds, default=math.inf)


def race(
    entrants: Mapping[str, Entrant],
    estimates: Mapping[str, float],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Timing]:
    """Return the times of all entrants; none for an entrant that gets no turn within `budget_s`.

    `estimates` are the seconds that an execution is likely to take. What runs when the time is over is the last.
    """
    timings = {name: Timing() for name in entrants}
    expected = dict(estimates)
    running = list(entrants)
    deadline = clock() + budget_s
    for number in range(MOST_ROUNDS):
        turn = number % max(1, len(running))
        for name in running[turn:] + running[:turn]:
            if clock() >= deadline:
                return timings
            sleep(_REST_S)
            try:
                if expected[name] < _WARM_BELOW_S:
                    entrants[name].run(1)
                start = clock()
                if start >= deadline:
                    return timings
                times = _times(expected[name], deadline - start)
                count = entrants[name].run(times)
            except Exception as error:
                timings[name].failure = str(error) or type(error).__name__
                continue
            expected[name] = (clock() - start) / count
            timings[name].seconds.append(expected[name])
        running = [name for name in running if not timings[name].failure]
        if number + 1 in _LOOKS:
            running = _without_slow(running, timings)
        if len(running) <= 1:
            break
    return timings


def _times(seconds: float, left_s: float) -> int:
    """Return the executions of a turn: enough to be timed, but only one that ends after the time is over."""
    if seconds <= 0:
        return _MOST_TIMES
    return max(1, min(_MOST_TIMES, math.ceil(min(left_s, _TURN_S) / seconds)))


def _without_slow(running: list[str], timings: Mapping[str, Timing]) -> list[str]:
    leader = min((timings[name].typical for name in running), default=math.inf)
    for name in running:
        timings[name].dropped = timings[name].best > _CLEARLY * leader
    return [name for name in running if not timings[name].dropped]

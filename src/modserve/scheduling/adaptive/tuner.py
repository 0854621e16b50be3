"""A batcher that tunes itself: queue delay and batch size for a latency goal, as large batches as that allows.

The goal is for what 99 of 100 requests stay below, from queueing to the end of their execution. Longer delays make
larger batches, which cost less a request; they also make requests wait. Under load both directions can be the right
one: where executions get in each other's way, waiting for fewer and larger ones is faster. So it is found by trial.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching
from modserve.core.statistics import TunerDecision, TunerStatistics
from modserve.core.timing import ExecutionTiming

from ..batching import Decision, Rule, Together

_AIM = 0.96
"""Of the goal: where a change is meant to lead."""
_SLACK = 0.92
"""Of the goal: from here up to the goal itself nothing is changed."""
_CLEARLY = 1.1
"""Of the goal: what is above for two windows, or above this for one, is above it."""
_GAIN = 0.65
"""Of the way to the aim: by how much the delay changes, since the latency changes by more than it."""
_STEP = 0.15
"""Of the goal: by how much the delay grows when that is tried against too long latencies."""
_DELAYED = 0.35
"""Of the latency: a delay longer than that is to blame for it."""
_NEAR = 0.05
"""Of the goal: delays that differ by less are not told apart."""
_REST = 10
_LARGEST_DELAY = 0.75
"""Of the goal: a longer delay would leave no time to run."""
_RUN_SHARE = 0.5
"""Of the goal: a batch that runs longer makes the next one late, which waits for it."""
_WORTH = 0.5
"""Items that must be likely to join a batch during a delay."""
_BACKLOG = 4
"""Requests that take so many times as long as a full batch stand behind others."""
_FLOOR_FOR = 20
_SHORT_FOR = 40
_MANY = 0.5
"""A share of batches that tells how most of them come about."""
_ENOUGH = 300
_FEW = 50
_LONG_NS = 2_000_000_000
_LATE = 12
"""A window ends with `_ENOUGH` requests, or after a long time with a few; early if so many were late, and of them all
one in `_LATE_SHARE`."""
_LATE_SHARE = 20
_PAUSE_NS = 1_000_000_000
_PAUSE_SHARE = 20
"""A longer time without a request is a pause, unless there are as many of them as one in so many requests."""


class Window(NamedTuple):
    """What was seen since the last decision took effect."""

    p99_ns: int
    run_ns: int
    """The longest execution."""
    per_second: float
    """Batch items."""
    filled: float
    """Share of the batches that had the largest size allowed."""


class Targets(NamedTuple):
    delay_ns: int
    batch_size: int
    reason: str


class _Climb(NamedTuple):
    """Where a try with longer and longer delays began."""

    delay_ns: int
    p99_ns: int

    def in_vain(self, delay_ns: int, p99_ns: int) -> bool:
        """Whether the latency has grown by most of what the delay has, and more than it does by chance."""
        return p99_ns > 1.08 * self.p99_ns + 0.75 * (delay_ns - self.delay_ns)


class Controller:
    """Decides from one window to the next; pure but for its memory of the last step."""

    def __init__(
        self, goal_ns: int, max_batch_size: int, delay_limit_ns: int = 0, run_ns: Callable[[int], int] = lambda _: 0
    ) -> None:
        self.goal_ns = goal_ns
        self._largest = max_batch_size
        self._limit_ns = min(delay_limit_ns or goal_ns, int(_LARGEST_DELAY * goal_ns))
        self._run_ns = run_ns
        self.delay_ns = 0
        self.batch_size = max_batch_size
        self._doubtful = False
        """The last window was above the goal, but not clearly."""
        self._climb: _Climb | None = None
        self._rest = 0
        """Windows for which the delay is left alone, since no other was better."""
        self._floor = 0
        """Smaller batches were seen to be too few for the requests, so many windows ago that `_floor_left` are left."""
        self._floor_left = 0
        self._short: _Climb | None = None
        """A delay seen to be too short, where a longer one helped; `_short_left` as above."""
        self._short_left = 0

    def decide(self, window: Window) -> Targets:
        """The targets from now on."""
        ratio = window.p99_ns / self.goal_ns
        self._floor_left -= 1
        if self._floor_left <= 0:
            self._floor = 0
        self._short_left -= 1
        if self._short_left <= 0:
            self._short = None
        if ratio > 1:
            if ratio < _CLEARLY and not self._doubtful:
                self._doubtful = True
                return self._set("above the goal for the first time")
            return self._against(window)
        self._doubtful = False
        self._climb = None
        self._rest = 0
        if ratio >= _SLACK:
            return self._set("the goal is held")
        return self._with_slack(window)

    def _with_slack(self, window: Window) -> Targets:
        """Larger batches, if there is anything to make them of."""
        self._short = None
        slack_ns = int(_AIM * self.goal_ns) - window.p99_ns
        if window.filled >= _MANY and self.batch_size < self._largest_in_time():
            return self._set("room for larger batches", batch_size=self.batch_size + max(1, self.batch_size // 4))
        if window.per_second * self._limit_ns / 1e9 < _WORTH:
            return self._set("too few requests to wait for", 0)
        if window.filled >= _MANY:
            return self._set("batches are full without waiting longer")
        return self._set("room for a longer delay", self.delay_ns + int(_GAIN * slack_ns))

    def _against(self, window: Window) -> Targets:
        """Latencies are too long: the delay is to blame if it is a good part of them, else it may be too short."""
        if window.filled >= _MANY:
            return self._against_full(window)
        if self._rest:
            self._rest -= 1
            return self._set("the goal is out of reach")
        if self.delay_ns > _DELAYED * window.p99_ns:
            return self._shorten(window.p99_ns)
        if self._climb is None:
            self._climb = _Climb(self.delay_ns, window.p99_ns)
        elif self._climb.in_vain(self.delay_ns, window.p99_ns) or self.delay_ns >= self._limit_ns:
            foot, self._climb, self._rest = self._climb, None, _REST
            return self._set("waiting longer did not help", foot.delay_ns)
        return self._set("waiting for fewer, larger batches", self.delay_ns + int(_STEP * self.goal_ns))

    def _shorten(self, p99_ns: int) -> Targets:
        """Less delay, but not as little as was seen to be worse."""
        climb, self._climb = self._climb, None
        if climb is not None and p99_ns < climb.p99_ns:
            self._short, self._short_left = climb, _SHORT_FOR
        excess_ns = int(_GAIN * (p99_ns - _AIM * self.goal_ns))
        delay_ns = self.delay_ns - min(excess_ns, self.delay_ns // 2)
        if self._short is not None and p99_ns < self._short.p99_ns:
            delay_ns = max(delay_ns, (self._short.delay_ns + self.delay_ns) // 2)
            if self.delay_ns - delay_ns < _NEAR * self.goal_ns:
                self._rest = _REST
                return self._set("the goal is out of reach")
        return self._set("a shorter delay", delay_ns)

    def _against_full(self, window: Window) -> Targets:
        """Batches do not wait for the delay: their size decides."""
        self._climb = None
        if window.p99_ns > _BACKLOG * window.run_ns:
            if self.batch_size >= self._largest:
                return self._set("more requests than the model takes")
            self._floor, self._floor_left = self.batch_size + max(1, self.batch_size // 2), _FLOOR_FOR
            return self._set("more requests than batches of this size take", batch_size=self._floor)
        least = max(self._largest_in_time(), self._floor)
        if self.batch_size > least:
            return self._set("batches take too long", batch_size=max(least, self.batch_size * 3 // 4))
        return self._set("the goal is out of reach")

    def _largest_in_time(self) -> int:
        """The largest batch likely to run in its share of the goal."""
        share_ns = int(_RUN_SHARE * self.goal_ns)
        if self._run_ns(self._largest) <= share_ns:
            return self._largest
        low, high = 1, self._largest
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._run_ns(middle) <= share_ns else (low, middle)
        return low

    def _set(self, reason: str, delay_ns: int | None = None, batch_size: int | None = None) -> Targets:
        if delay_ns is not None:
            self.delay_ns = max(0, min(delay_ns, self._limit_ns))
        if batch_size is not None:
            self.batch_size = max(1, min(batch_size, self._largest))
        return Targets(self.delay_ns, self.batch_size, reason)


class Tuner:
    """Measures executions, asks the controller, and is the rule that does what it says."""

    def __init__(
        self,
        policy: DynamicBatching,
        max_batch_size: int,
        run_ns: Callable[[int], int],
        make_rule: Callable[[DynamicBatching, int], Rule],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`make_rule` gives the dynamic batcher's rule for a policy and a largest batch size; `run_ns` predicts."""
        largest = max(1, max_batch_size)
        self._policy = policy
        self._rule_for = make_rule
        self._now_ns = now_ns
        self._controller = Controller(policy.p99_goal_ns, largest, policy.tuned_delay_limit_ns, run_ns)
        self.statistics = TunerStatistics(policy.p99_goal_ns, 0, largest)
        self._rule: Rule = self._make_rule()
        self._begin()

    def _begin(self) -> None:
        self._since_ns = self._now_ns()
        self._latencies: list[int] = []
        self._backlog: list[int] = []
        """Of requests that came before the last decision, and tell nothing of it, unless there are very many."""
        self._run_ns: int = 0
        self._items: int = 0
        self._batches: int = 0
        self._filled: int = 0
        self._late: int = 0
        self._start_ns: int = 0
        """When the first request came, or the window began, if there were some then; 0: no request yet."""
        self._latest_ns: int = 0
        self._pauses: int = 0
        self._paused_ns: int = 0

    def rule(self, together: Together, now_ns: int) -> Decision:
        """The dynamic batcher's rule with the targets of the moment."""
        return self._rule(together, now_ns)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        """A batch has been executed."""
        end_ns, since_ns, goal_ns = timing.compute_end_ns, self._since_ns, self._controller.goal_ns
        self._items += timing.batch_size
        self._batches += 1
        self._filled += timing.batch_size >= self._controller.batch_size
        latencies = self._latencies
        self._run_ns = max(self._run_ns, end_ns - timing.compute_start_ns)
        for inflight in members:
            came_ns = inflight.queue_start_ns
            latency_ns = end_ns - came_ns
            self._came(max(came_ns, since_ns))
            if came_ns >= since_ns:
                latencies.append(latency_ns)
                self._late += latency_ns > goal_ns
            else:
                self._backlog.append(latency_ns)
        if len(self._backlog) >= _ENOUGH:
            latencies += self._backlog
        count = len(latencies)
        many_late = self._late >= _LATE and self._late * _LATE_SHARE >= count
        if count >= _ENOUGH or many_late or (count >= _FEW and self._busy_ns() >= _LONG_NS):
            self._decide()

    def _came(self, at_ns: int) -> None:
        """Takes the time."""
        if not self._start_ns:
            self._start_ns = self._latest_ns = at_ns
        elif at_ns > self._latest_ns:
            gap_ns = at_ns - self._latest_ns
            if gap_ns > _PAUSE_NS:
                self._pauses += 1
                self._paused_ns += gap_ns
            self._latest_ns = at_ns

    def _busy_ns(self) -> int:
        """The window's time without its pauses; where requests are always that rare, those are none."""
        rare = self._pauses > 1 and self._pauses * _PAUSE_SHARE > len(self._latencies)
        return max(1, self._now_ns() - self._start_ns - (0 if rare else self._paused_ns))

    def _decide(self) -> None:
        latencies = sorted(self._latencies)
        p99_ns = latencies[int(0.99 * (len(latencies) - 1))]
        per_second = self._items * 1e9 / self._busy_ns()
        window = Window(p99_ns, self._run_ns, per_second, self._filled / self._batches)
        before = self.statistics
        targets = self._controller.decide(window)
        if (targets.delay_ns, targets.batch_size) != (before.delay_ns, before.batch_size):
            self._rule = self._make_rule()
        found = self.statistics
        found.p99_ns, found.delay_ns, found.batch_size = p99_ns, targets.delay_ns, targets.batch_size
        found.decisions.append(
            TunerDecision(
                int(time.time() * 1e3), targets.reason, p99_ns, per_second, targets.delay_ns, targets.batch_size
            )
        )
        self._begin()

    def _make_rule(self) -> Rule:
        size = self._controller.batch_size
        policy = replace(self._policy, preferred_batch_sizes=(size,), max_queue_delay_ns=self._controller.delay_ns)
        return self._rule_for(policy, size)

"""A self-tuning batcher: it finds the queue delay and the batch size for a latency goal by trial.

The goal is a latency that 99 of 100 requests stay below, from queueing to the end of their execution. Within it batches
should be as large as possible, since a request costs less in a larger one.

`LatencyTuner` measures. It divides time into windows: a window begins when the last decision takes effect, and ends
with enough requests, earlier if many are late. `Controller` decides, at the end of each window, by four numbers of it:

- The goal is held with some slack: wait longer, so that batches become larger. If they are full already, allow larger
  ones, as long as these run in their share of the goal; if too few requests come, waiting is useless: no delay.
- The goal is just held: change nothing.
- Latencies are too long, and batches are full: their size decides, not the delay. Where requests stand behind others
  (latency is many times the execution), batches are too small for the load: larger ones. This size is a *floor* for
  some time. Otherwise batches run for too long: smaller ones.
- Latencies are too long, and batches are not full. If the delay makes up much of the latency, it is to blame: shorten
  it. If not, executions may be in each other's way, and waiting for fewer and larger ones may be faster: a *climb* of
  longer and longer delays begins. If the latency only grows by what the delay does, the climb was in vain: go back to
  where it began, and *rest* for some windows. If it helped, the delay at its beginning was too *short*, which is
  remembered for some time, so that shortening stops half way to it.

The latencies of one window say little: with real engines, the same delay has a p99 of 60 ms and one of 110. So a
decision goes by those of the latest windows together that had about the same load; of windows with another delay they
are *moved* by the difference. If they are a little above the goal for the first time, that changes nothing. A climb
begins only after a second window, and from no delay or one known as too short: before that, shorter ones are tried,
first those that *held* the goal under this load.

The load of a model's instances: at full load only throughput counts, at low load the latency of each request.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics, TunerDecision, TunerStatistics
from modserve.scheduling.batching import Decision, Rule, Together

from .grouping import queue_weight

_BUSIEST = 0.98
_WINDOW = 16  # executions
_LOAD_KEPT = 0.92
"""The share of what was seen before that counts with each new window. Choices are made in busy times only; so what is
remembered must be longer than these usually are."""
_LOAD_REST = 8
"""Most executions that a pause counts as: what was before it says nothing about the load now."""
_SOONER = 0.8
"""Share of one batch's time that several of its parts, run in parallel, may take and still be better."""


class Utilisation:
    """The utilisation of the places where batches run, which goes into the statistics."""

    def __init__(self, statistics: ChoiceStatistics) -> None:
        self._places = 1
        self._free: Callable[[], int] = _none
        self._statistics = statistics
        self._end_ns = self._batches = 0
        self._window_ns = self._window_all_ns = 0
        self._mean_ns = 0.0
        self._busy_ns = self._all_ns = 0.0

    def use(self, places: int, free: Callable[[], int]) -> None:
        """Set the number of batches that run at a time; `free` returns how many could begin besides the chosen one."""
        self._places = max(1, places)
        self._free = free

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        start_ns, end_ns = timing.compute_start_ns, timing.compute_end_ns
        ns = end_ns - start_ns
        self._mean_ns += (ns - self._mean_ns) / _WINDOW if self._mean_ns else ns
        if self._end_ns:
            # With several instances an execution may end before this one that began before it.
            pause_ns = start_ns - self._end_ns
            self._window_all_ns += max(0, end_ns - self._end_ns) - max(0, pause_ns - int(_LOAD_REST * self._mean_ns))
            self._window_ns += ns
            if pause_ns > 0 and any(inflight.queue_start_ns < self._end_ns for inflight in members):
                self._window_ns += pause_ns * self._places  # nobody waited for work, but the work for the server
            self._batches += 1
        self._end_ns = max(self._end_ns, end_ns)
        self._statistics.run_ns += ns
        if self._batches >= _WINDOW:
            busy_ns = self._window_ns / self._places
            self._busy_ns = _LOAD_KEPT * self._busy_ns + busy_ns
            self._all_ns = _LOAD_KEPT * self._all_ns + max(busy_ns, self._window_all_ns)
            self._window_ns = self._window_all_ns = self._batches = 0
            if self._all_ns:
                self._statistics.utilisation = self._busy_ns / self._all_ns

    def weight(self, waiting: int, largest: int) -> float:
        """Return the weight of times for `grouping`. A long queue counts as full load, whatever the load was before."""
        return queue_weight(waiting, min(_BUSIEST, max(self._statistics.utilisation, waiting / (waiting + largest))))

    def share(self, waiting: int, times: Sequence[float]) -> int:
        """Return how many of `waiting` rows are for one place, if several are free: all, unless parts end sooner.

        `times` has that of a batch by its rows, up to the largest, as they were with the other places at work.
        """
        free = self._free()
        if not free:
            return waiting
        part, largest = -(-waiting // (1 + free)), len(times) - 1
        return part if times[min(part, largest)] < _SOONER * times[min(waiting, largest)] else waiting


def _none() -> int:
    return 0


# Shares of the goal
_AIM = 0.96  # where a change is meant to lead
_SLACK = 0.92  # a latency from here up to the goal is left as it is
_CLEARLY = 1.1  # a latency above this is too long in one window, one above the goal in two
_STEP = 0.15  # by how much the delay grows in a climb
_NEAR = 0.05  # delays that differ by less are the same
_CLOSE = 0.2  # a latency under a delay that differs by less says something about this one
_LARGEST_DELAY = 0.75  # a longer delay would leave no time to run
_RUN_SHARE = 0.5  # a batch that runs longer makes the next one late, which waits for it
# Other shares
_GAIN = 0.65  # of the way to the aim: how far the delay goes, since the latency changes by more than it
_DELAYED = 0.35  # of the latency: a longer delay is to blame for it
_MANY = 0.5  # of the batches: if so many are full, batches are full
_CHANCE = 1.08  # of the latency before a climb: what is above has not come by chance
_IN_VAIN = 0.75  # of what the delay has grown by in a climb: the latency has grown by more than that, and chance
_FADE = 0.85  # of a window's weight, with each one after it
_SHORTER = 0.75  # of a delay that held the goal, and does so no longer
# Numbers
_KEPT = 12  # windows that may have a part in a mean
_SAME_LOAD = 1.6  # more requests, or fewer, by this factor are another load
_WORTH = 0.5  # items must be likely to join a batch during a delay
_BACKLOG = 4  # requests that take so many times as long as a full batch stand behind others
_REST = 10  # windows in which the delay stays, after no other was better
_FLOOR_FOR = 20  # windows for which a floor is remembered
_SHORT_FOR = 40  # windows for which a delay that was too short is remembered
# Windows
_ENOUGH = 300  # requests end a window
_FEW, _LONG_NS = 50, 2_000_000_000  # so do fewer after a long time
_LATE, _LATE_SHARE = 12, 20  # so do so many late ones, if they are at least one in so many
_PAUSE_NS, _PAUSE_SHARE = 1_000_000_000, 20  # longer without a request is a pause, unless one in so many has one


class TunerWindow(NamedTuple):
    """Measurements of the tuner since the last decision took effect."""

    slowest: Sequence[int]
    """The tenth of the latencies that were longest, the longest first."""
    requests: int
    """Number of all of these latencies."""
    run_ns: int
    """The longest execution."""
    per_second: float
    """Batch items."""
    filled: float
    """Share of the batches that had the largest size allowed."""

    def like(self, other: "TunerWindow") -> bool:
        """True if both had about the same load, and their batches were full in both or in neither."""
        return _same_load(self.per_second, other.per_second) and (self.filled >= _MANY) == (other.filled >= _MANY)


class Targets(NamedTuple):
    delay_ns: int
    batch_size: int
    reason: str


class _Climb(NamedTuple):
    """The delay and the latency where a climb began."""

    delay_ns: int
    p99_ns: int

    def in_vain(self, delay_ns: int, p99_ns: int) -> bool:
        """True if the latency has grown by most of the increase in the delay, and by more than chance."""
        return p99_ns > _CHANCE * self.p99_ns + _IN_VAIN * (delay_ns - self.delay_ns)


class _Alike(NamedTuple):
    """A window, what its latencies would have been longer under the delay of now, and what each of them counts."""

    window: TunerWindow
    moved_ns: int
    weight: float


class _Held(NamedTuple):
    """A delay that held the goal, and the load it did so under."""

    delay_ns: int
    per_second: float


class Controller:
    """Decides from one window to the next; pure but for its memory of the last steps."""

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
        self._latest: deque[tuple[int, TunerWindow]] = deque(maxlen=_KEPT)
        """Windows, the last one first, with the delay of each."""
        self._held: _Held | None = None
        self._climb: _Climb | None = None
        self._rest = 0
        """Windows for which the delay stays."""
        self._floor = 0
        self._floor_left = 0
        """Windows for which the floor is still remembered."""
        self._short: _Climb | None = None
        self._short_left = 0

    def decide(self, window: TunerWindow) -> Targets:
        self._latest.appendleft((self.delay_ns, window))
        alike = self._alike()
        p99_ns = _p99(alike)
        ratio = p99_ns / self.goal_ns
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
            return self._against(window, p99_ns, len(alike) > 1)
        self._doubtful = False
        self._climb = None
        self._rest = 0
        self._held = _Held(self.delay_ns, window.per_second)
        if ratio >= _SLACK:
            return self._set("the goal is held")
        return self._with_slack(window, p99_ns)

    def _alike(self) -> list[_Alike]:
        """Return the latest windows with about the load and delay of the last one."""
        last = self._latest[0][1]
        alike: list[_Alike] = []
        for delay_ns, window in self._latest:
            moved_ns = self.delay_ns - delay_ns
            if abs(moved_ns) > _CLOSE * self.goal_ns or not window.like(last):
                break
            alike.append(_Alike(window, moved_ns, _FADE ** len(alike)))
        return alike

    def _with_slack(self, window: TunerWindow, p99_ns: int) -> Targets:
        """Allow larger batches, if there is anything to make them of."""
        self._short = None
        slack_ns = int(_AIM * self.goal_ns) - p99_ns
        if window.filled >= _MANY and self.batch_size < self._largest_in_time():
            return self._set("room for larger batches", batch_size=self.batch_size + max(1, self.batch_size // 4))
        if window.per_second * self._limit_ns / 1e9 < _WORTH:
            return self._set("too few requests to wait for", 0)
        if window.filled >= _MANY:
            return self._set("batches are full without waiting longer")
        if self.delay_ns >= self._limit_ns:
            return self._set("the delay is the longest allowed")
        return self._set("room for a longer delay", self.delay_ns + int(_GAIN * slack_ns))

    def _against(self, window: TunerWindow, p99_ns: int, again: bool) -> Targets:
        """Act against long latencies: the delay is to blame if it is a good part of them, else it may be too short."""
        if window.filled >= _MANY:
            return self._against_full(window, p99_ns)
        if self._rest:
            self._rest -= 1
            if not self._rest:
                self._short = None
            return self._set("the goal is out of reach")
        held = self._held
        held_ns = held.delay_ns if held is not None and _same_load(held.per_second, window.per_second) else None
        if held_ns is not None and self._climb is None and self.delay_ns > held_ns:
            return self._set("back to a delay that held the goal", held_ns)
        if self.delay_ns > _DELAYED * p99_ns:
            return self._shorten(p99_ns)
        if self._climb is None:
            if self.delay_ns == held_ns and held_ns > _NEAR * self.goal_ns:
                self._held = _Held(int(_SHORTER * held_ns), window.per_second)
                return self._set("a shorter delay", self._held.delay_ns)
            if self.delay_ns > _NEAR * self.goal_ns and self._short is None:
                half_ns = self.delay_ns // 2
                return self._set("a shorter delay", half_ns if half_ns > _NEAR * self.goal_ns else 0)
            if not again:
                return self._set("above the goal for the first time")
            self._climb = _Climb(self.delay_ns, p99_ns)
        elif self._climb.in_vain(self.delay_ns, p99_ns) or self.delay_ns >= self._limit_ns:
            foot, self._climb, self._rest = self._climb, None, _REST
            return self._set("waiting longer did not help", foot.delay_ns)
        self._latest.clear()
        return self._set("waiting for fewer, larger batches", self.delay_ns + int(_STEP * self.goal_ns))

    def _shorten(self, p99_ns: int) -> Targets:
        """Shorten the delay, but not to one that was too short before."""
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

    def _against_full(self, window: TunerWindow, p99_ns: int) -> Targets:
        """Act on full batches, which do not wait for the delay: their size decides."""
        self._climb = None
        if p99_ns > _BACKLOG * window.run_ns:
            if self.batch_size >= self._largest:
                return self._set("more requests than the model takes")
            self._floor, self._floor_left = self.batch_size + max(1, self.batch_size // 2), _FLOOR_FOR
            return self._set("more requests than batches of this size take", batch_size=self._floor)
        least = max(self._largest_in_time(), self._floor)
        if self.batch_size > least:
            return self._set("batches take too long", batch_size=max(least, self.batch_size * 3 // 4))
        return self._set("the goal is out of reach")

    def _largest_in_time(self) -> int:
        """Return the largest batch likely to run in its share of the goal."""
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
            self._latest.clear()
        return Targets(self.delay_ns, self.batch_size, reason)


class LatencyTuner:
    """Measures executions, lets the controller decide, and has the rule that follows its decisions."""

    def __init__(
        self,
        policy: DynamicBatching,
        max_batch_size: int,
        run_ns: Callable[[int], int],
        make_rule: Callable[[DynamicBatching, int], Rule],
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """Create a tuner. `make_rule` makes a rule for a policy and a largest size; `run_ns` predicts a size's time."""
        largest = max(1, max_batch_size)
        self._policy = policy
        self._rule_for = make_rule
        self._now_ns = now_ns or time.monotonic_ns
        self._controller = Controller(policy.p99_goal_ns, largest, policy.tuned_delay_limit_ns, run_ns)
        self.statistics = TunerStatistics(policy.p99_goal_ns, 0, largest)
        self._rule: Rule = self._make_rule()
        self._begin()

    def _begin(self) -> None:
        self._since_ns = self._now_ns()
        self._latencies: list[int] = []
        self._backlog: list[int] = []
        """The latencies of requests that came before the last decision. They count only if there are very many."""
        self._run_ns: int = 0
        self._items: int = 0
        self._batches: int = 0
        self._filled: int = 0
        self._late: int = 0
        self._start_ns: int = 0
        """Time of the first request, or of the window's start if requests waited then; 0 before the first request."""
        self._latest_ns: int = 0
        self._pauses: int = 0
        self._paused_ns: int = 0

    def rule(self, together: Together, now_ns: int) -> Decision:
        """Return the dynamic batcher's rule with the targets of the moment."""
        return self._rule(together, now_ns)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
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
        """Record a request of the window that came at a time, or waited when the window began."""
        if not self._start_ns:
            self._start_ns = self._latest_ns = at_ns
        elif at_ns > self._latest_ns:
            gap_ns = at_ns - self._latest_ns
            if gap_ns > _PAUSE_NS:
                self._pauses += 1
                self._paused_ns += gap_ns
            self._latest_ns = at_ns

    def _busy_ns(self) -> int:
        """Return the window's time without its pauses. If requests are always that rare, there are no pauses."""
        rare = self._pauses > 1 and self._pauses * _PAUSE_SHARE > len(self._latencies)
        return max(1, self._now_ns() - self._start_ns - (0 if rare else self._paused_ns))

    def _decide(self) -> None:
        count = len(self._latencies)
        slowest = sorted(self._latencies, reverse=True)[: count // 10 + 1]
        p99_ns = slowest[count // 100]
        per_second = self._items * 1e9 / self._busy_ns()
        window = TunerWindow(slowest, count, self._run_ns, per_second, self._filled / self._batches)
        statistics = self.statistics
        targets = self._controller.decide(window)
        if (targets.delay_ns, targets.batch_size) != (statistics.delay_ns, statistics.batch_size):
            self._rule = self._make_rule()
        statistics.p99_ns, statistics.delay_ns, statistics.batch_size = p99_ns, targets.delay_ns, targets.batch_size
        decision = TunerDecision(
            int(time.time() * 1e3), targets.reason, p99_ns, per_second, targets.delay_ns, targets.batch_size
        )
        statistics.decisions.append(decision)
        self._begin()

    def _make_rule(self) -> Rule:
        size = self._controller.batch_size
        policy = replace(self._policy, preferred_batch_sizes=(size,), max_queue_delay_ns=self._controller.delay_ns)
        return self._rule_for(policy, size)


def _same_load(one: float, other: float) -> bool:
    return 1 / _SAME_LOAD < (one + 1) / (other + 1) < _SAME_LOAD


def _p99(windows: Sequence[_Alike]) -> int:
    """Return the 99th percentile of their latencies, each moved and counted by its window's weight."""
    slowest = [(latency + each.moved_ns, each.weight) for each in windows for latency in each.window.slowest]
    slowest.sort(reverse=True)
    left = 0.01 * sum(each.window.requests * each.weight for each in windows)
    for latency, weight in slowest:
        left -= weight
        if left < 0:
            return latency
    return slowest[-1][0]

"""Admission by prediction on a simulated engine: what it refuses at first, and what it has learnt in the end."""

from collections import Counter
from collections.abc import Callable

import pytest
from simulated_engine import MS, SimulatedPool, one_item

from modserve.core.configuration.model_config import Admission, DynamicBatching
from modserve.core.errors import OverloadedError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.scheduling import batching
from modserve.scheduling.admission import Gate
from modserve.scheduling.prediction import RunTimes
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock

GOAL_MS = 190
RETRY_NS = 20 * MS
CLIENTS = 16


class Clients:
    """They ask for one item at a time, again and again; who is refused tries again a little later.

    A batch of n, up to 4, takes `run_ms` of n. Goal 0: no admission.
    """

    def __init__(self, run_ms: Callable[[int], float], *, goal_ms: int = GOAL_MS, count: int = CLIENTS) -> None:
        self.run_ms = run_ms
        self.clock = FakeClock()
        self.sizes: Counter[int] = Counter()
        """Of the batches so far."""
        self.pool = SimulatedPool(self.clock, 1, lambda size: int(self.run_ms(size) * MS))
        self.pool.observe = self._observe
        self._run_times = RunTimes()
        self._scheduler = QueuedScheduler(
            batching.dynamic(DynamicBatching(), 4, self._run_times),
            self.pool,
            self.clock,
            lambda entry, error: None,
            gate=Gate(Admission(bool(goal_ms), goal_ms * MS), self._run_times.at_best, self._remaining_ns, 4),
        )
        self.pool.scheduler = self._scheduler
        self._scheduler.enqueue(one_item())  # so that a batch of one is known, and no other
        self.clock.advance(1_000 * MS)
        self.pool.on_answer = lambda entry: self.clock.call_soon(self._ask)
        for number in range(count):
            self.clock.call_at(self.clock.now_ns() + number * MS, self._ask)

    def tell(self, size: int) -> None:
        """What batches of a size take."""
        for _ in range(2):
            self._run_times.observe(size, int(self.run_ms(size) * MS))

    def _observe(self, timing: ExecutionTiming, members: list[Inflight]) -> None:
        self.sizes[timing.batch_size] += 1
        self._run_times.observe(timing.batch_size, timing.compute_end_ns - timing.compute_start_ns)

    def _remaining_ns(self, now_ns: int) -> list[int]:
        found = [
            max(0, timing.compute_start_ns + self._run_times(timing.batch_size) - now_ns)
            for timing in self.pool.running.values()
        ]
        return found or [0]

    def _ask(self) -> None:
        try:
            self._scheduler.enqueue(one_item())
        except OverloadedError as error:
            self.clock.call_at(self.clock.now_ns() + max(RETRY_NS, error.retry_after_ns), self._ask)

    def run(self, seconds: float) -> tuple[float, float]:
        """The rate a second, and how many milliseconds 95 of 100 answers stayed below."""
        before = len(self.pool.done)
        self.clock.advance(int(seconds * 1e9))
        took = sorted(ns for _, ns in self.pool.done[before:])
        return len(took) / seconds, took[int(0.95 * len(took))] / MS


def flat(size: int) -> float:
    return 100


def proportional(size: int) -> float:
    return 60 * size


def between(size: int) -> float:
    return 60 + 20 * size


def stepped(size: int) -> float:
    return 60 if size == 1 else 110


@pytest.mark.parametrize("run_ms", [flat, proportional, between, stepped])
def test_what_is_not_known_is_soon_learnt(run_ms: Callable[[int], float]) -> None:
    greedy, late_ms = Clients(run_ms, goal_ms=0).run(4)
    told, learner = Clients(run_ms), Clients(run_ms)
    for size in (1, 2, 3, 4):
        told.tell(size)
    for clients in (told, learner):
        clients.run(2)
    best_rate, best_ms = told.run(6)
    rate, p95_ms = learner.run(6)
    assert rate == pytest.approx(best_rate, rel=0.03)
    assert p95_ms == pytest.approx(best_ms, rel=0.06)
    assert rate >= 0.95 * greedy
    assert p95_ms <= 0.6 * late_ms


def test_the_first_batch_of_a_size_may_be_slow() -> None:
    seen: set[int] = set()

    def slow_at_first(size: int) -> float:
        """As engines that prepare for each size: from the second time on as `flat`."""
        prepared = size in seen or size == 1
        seen.add(size)
        return 100 if prepared else 1000

    clients = Clients(slow_at_first)
    clients.run(10)
    assert clients.run(2)[0] == pytest.approx(40, rel=0.05)


def test_an_engine_that_has_become_faster_is_found_out() -> None:
    clients = Clients(proportional)
    assert clients.run(3)[0] < 18
    clients.run_ms = flat
    clients.run(35)
    assert clients.run(2)[0] == pytest.approx(40, rel=0.05)


def test_an_engine_that_takes_too_long_for_larger_batches_is_seldom_tried() -> None:
    clients = Clients(lambda size: 100 * size, count=6)
    clients.run(5)
    clients.sizes.clear()
    clients.run(40)
    assert clients.sizes[1] >= 0.98 * clients.sizes.total()

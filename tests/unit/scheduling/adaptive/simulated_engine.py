"""Arrivals by chance, the real scheduler, and an engine whose time is that of a clock turned by hand."""

import random
from collections.abc import Callable

from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.scheduling import batching
from modserve.scheduling.adaptive.tuner import LatencyTuner
from modserve.scheduling.prediction import RunTimes
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import Scheduler
from modserve.testing import FakeClock, RecordingSink, request
from modserve.testing.builders import RecordedInflight

MS = 1_000_000
ASKED = request()
"""What all requests ask for, which no engine looks at."""


def one_item() -> Inflight:
    return RecordedInflight(ASKED, RecordingSink(), ASKED.inputs, ("OUTPUT0",), 1, None, 0)


class SimulatedPool:
    """Implements `scheduling.scheduler.BatchRunner`. Batches of all slots run one after the other on one device."""

    def __init__(self, clock: FakeClock, slots: int, run_ns: Callable[[int], int]) -> None:
        self.scheduler: Scheduler | None = None
        self.observe: Callable[[ExecutionTiming, list[Inflight]], None] = lambda timing, members: None
        self.on_answer: Callable[[Inflight], None] = lambda entry: None
        self.done: list[tuple[int, int]] = []
        """When each request came, and how long it took."""
        self.running: dict[int, ExecutionTiming] = {}
        """What runs, or waits for the device, in each slot that is not free."""
        self._clock = clock
        self._free = list(range(slots))
        self._run_ns = run_ns
        self._device_ns = 0

    def reserve(self) -> int | None:
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def run(self, slot: int, batch: list[Inflight], close_reason: str) -> None:
        timing = ExecutionTiming(sum(entry.batch_size for entry in batch), close_reason)
        timing.compute_start_ns = self._clock.now_ns()
        self.running[slot] = timing
        self._device_ns = max(timing.compute_start_ns, self._device_ns) + self._run_ns(timing.batch_size)

        def end() -> None:
            timing.compute_end_ns = self._clock.now_ns()
            self.done += [(entry.queue_start_ns, timing.compute_end_ns - entry.queue_start_ns) for entry in batch]
            self.observe(timing, batch)
            del self.running[slot]
            self._free.append(slot)
            for entry in batch:
                self.on_answer(entry)
            if self.scheduler is not None:
                self.scheduler.dispatch()

        self._clock.call_at(self._device_ns, end)


class Simulation:
    """`goal_ms` tunes the batcher, else the delay is `delay_ms`.

    A batch of n takes `base_ms` + n `item_ms`, times what chance makes of 1 (log-normal, σ `scatter`).
    """

    def __init__(
        self,
        *,
        goal_ms: float = 0,
        delay_ms: float = 0,
        slots: int = 4,
        base_ms: float = 4,
        item_ms: float = 0.2,
        max_batch_size: int = 64,
        scatter: float = 0,
        seed: int = 1,
    ) -> None:
        self.clock = FakeClock()
        chance = random.Random(seed)

        def run_ns(size: int) -> int:
            return int((base_ms + item_ms * size) * MS * chance.lognormvariate(-(scatter**2) / 2, scatter))

        self.pool = SimulatedPool(self.clock, slots, run_ns)
        policy = DynamicBatching((max_batch_size,), int(delay_ms * MS), p99_goal_ns=int(goal_ms * MS))
        run_times = RunTimes()

        def make_rule(policy: DynamicBatching, largest: int) -> batching.Rule:
            return batching.dynamic(policy, largest, run_times)

        rule = make_rule(policy, max_batch_size)
        if goal_ms:
            tuner = self.tuner = LatencyTuner(policy, max_batch_size, run_times, make_rule, self.clock.now_ns)
            rule = tuner.rule

            def observe(timing: ExecutionTiming, members: list[Inflight]) -> None:
                run_times.observe(timing.batch_size, timing.compute_end_ns - timing.compute_start_ns)
                tuner.observe(timing, members)

            self.pool.observe = observe
        self._scheduler = QueuedScheduler(rule, self.pool, self.clock, lambda entry, error: None, policy)
        self.pool.scheduler = self._scheduler
        self._random = random.Random(seed)

    def run(self, seconds: float, per_second: float) -> None:
        """Requests of one item each come by chance, so many a second."""
        end_ns = self.clock.now_ns() + int(seconds * 1e9)
        while self.clock.now_ns() < end_ns:
            self.clock.advance(int(self._random.expovariate(per_second) * 1e9))
            self._scheduler.enqueue(one_item())
            self.clock.run()

    def p99_ms(self, seconds: float) -> float:
        """What 99 of 100 requests stayed below that came in the last `seconds` and have ended."""
        since_ns = self.clock.now_ns() - int(seconds * 1e9)
        latencies = sorted(latency for came_ns, latency in self.pool.done if came_ns >= since_ns)
        return latencies[int(0.99 * (len(latencies) - 1))] / MS

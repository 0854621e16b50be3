"""Requests of different lengths in simulated time: the real schedulers and policies, and an engine of made-up costs."""

import random
from collections.abc import Callable
from math import exp, log, log2, sqrt
from random import Random

from modserve.core.configuration.merging import Padding, PaddingPolicy
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.scheduling import batching
from modserve.scheduling.adaptive.adaptation import Adaptation
from modserve.scheduling.adaptive.costs import LengthBuckets
from modserve.scheduling.queued import QueuedScheduler
from modserve.scheduling.scheduler import Scheduler
from modserve.testing import FakeClock, RecordingSink, config, request
from modserve.testing.builders import RecordedInflight

MS = 1_000_000
PLAIN_REQUEST = request()
MOST = 16
SHORTEST, LONGEST, MEDIAN, SPREAD = 8, 128, 24, 0.6

Cost = Callable[[int, int], float]
"""Milliseconds from rows and length."""
POLICIES = ("alone", "never", "always", "measured")


def text_length(chance: random.Random) -> int:
    """Log-normal, as search queries and sentences are."""
    return min(LONGEST, max(SHORTEST, round(chance.lognormvariate(log(MEDIAN), SPREAD))))


def configured(policy: str, multiple_of: int = 8, most: int = MOST) -> ModelConfig:
    if policy == "alone":
        return config(max_batch_size=most)
    padding = Padding({"INPUT0": 0}, policy=PaddingPolicy(policy), multiple_of=multiple_of)
    return config(max_batch_size=most, dynamic_batching=DynamicBatching((most,)), padding=padding)


class Engine:
    """Implements `scheduling.scheduler.BatchRunner`: instances that do not disturb one another."""

    def __init__(
        self, clock: FakeClock, cost: Cost, padding: Padding, chance: random.Random, noise: float, instances: int
    ) -> None:
        self.scheduler: Scheduler | None = None
        self.observe: Callable[[ExecutionTiming, list[Inflight]], None] = lambda timing, members: None
        self.on_answer: Callable[[Inflight], None] = lambda inflight: None
        self.clock = clock
        self.cost = cost
        self.busy = 0
        self.latencies: list[int] = []
        self.batches: list[tuple[int, int]] = []
        """Rows and length of each."""
        self._padding = padding
        self._chance = chance
        self._noise = noise
        self._instances = instances

    def reserve(self) -> int | None:
        if self.busy == self._instances:
            return None
        self.busy += 1
        return 0

    def release(self, slot: int) -> None:
        self.busy -= 1

    @property
    def most_places(self) -> int:
        return self._instances

    def remaining_ns(self, now_ns: int, run_ns: Callable[[int], int]) -> list[int]:
        raise NotImplementedError

    def free_places(self) -> int:
        return self._instances - self.busy

    def run(self, slot: int, batch: list[Inflight], close_reason: str) -> None:
        rows = sum([inflight.batch_size for inflight in batch])
        length = self._padding.pad_length(max([inflight.length for inflight in batch]))
        self.batches.append((rows, length))
        timing = ExecutionTiming(rows, close_reason)
        timing.compute_start_ns = self.clock.now_ns()
        noise = self._chance.lognormvariate(0, self._noise) if self._noise else 1.0
        ns = int(self.cost(rows, length) * noise * MS)

        def end() -> None:
            timing.compute_end_ns = self.clock.now_ns()
            self.busy -= 1
            self.latencies += [timing.compute_end_ns - inflight.queue_start_ns for inflight in batch]
            if self.scheduler is not None:
                self.scheduler.dispatch()  # as in the pool, the next batch is chosen before this one is observed
            self.observe(timing, batch)
            for inflight in batch:
                self.on_answer(inflight)

        # A batch costs the server something, too.
        self.clock.call_at(timing.compute_start_ns + ns + 80_000, end)


class Simulation:
    def __init__(
        self,
        policy: str,
        cost: Cost,
        *,
        noise: float = 0.0,
        instances: int = 1,
        seed: int = 1,
        multiple_of: int = 8,
        most: int = MOST,
        length: Callable[[random.Random], int] = text_length,
        model: ModelConfig | None = None,
    ) -> None:
        model = model or configured(policy, multiple_of, most)
        padding = model.padding or Padding({}, multiple_of=multiple_of)
        self.clock, self._chance, self._length = FakeClock(), random.Random(seed), length
        self.engine = Engine(self.clock, cost, padding, random.Random(seed + 1), noise, instances)
        self.adaptation = adaptation = Adaptation(model)
        adaptation.use(self.engine)
        self.engine.observe = adaptation.observe
        self._key: Callable[[int], object] = lambda length: None
        if policy == "never":
            self._key = padding.pad_length
        elif policy == "always":
            self._key = LengthBuckets(padding.buckets, padding.multiple_of, padding.relearn_every).of
        self.scheduler = QueuedScheduler(
            adaptation.rule,
            self.engine,
            self.clock,
            lambda inflight, error: None,
            adaptation.bounds,
            ripe_size=batching.ripe_size(adaptation.bounds, model.max_batch_size),
            padded=adaptation.padded,
        )
        self.engine.scheduler = self.scheduler

    def send(self) -> None:
        length = self._length(self._chance)
        inputs = PLAIN_REQUEST.inputs
        sink = RecordingSink()
        inflight = RecordedInflight(PLAIN_REQUEST, sink, inputs, ("OUTPUT0",), 1, self._key(length), 0, length=length)
        self.scheduler.enqueue(inflight)

    def open_loop(self, per_second: float, seconds: float) -> float:
        """Requests by chance; the mean latency in milliseconds of those answered in that time."""
        begin, end_ns = len(self.engine.latencies), self.clock.now_ns() + int(seconds * 1e9)
        while self.clock.now_ns() < end_ns:
            self.clock.advance(int(self._chance.expovariate(per_second) * 1e9))
            self.send()
            self.clock.run()
        latencies = self.engine.latencies[begin:]
        return sum(latencies) / len(latencies) / MS

    def closed_loop(self, clients: int, seconds: float) -> float:
        """Clients that send as soon as they are answered; the answers a second."""
        if not self.engine.busy:
            self.engine.on_answer = lambda inflight: self.clock.call_soon(self.send)
            for _ in range(clients):  # not all at once, or they would stay together for ever
                self.send()
                self.clock.advance(MS // 10)
        begin, begin_ns = len(self.engine.latencies), self.clock.now_ns()
        self.clock.advance(int(seconds * 1e9))
        return (len(self.engine.latencies) - begin) * 1e9 / (self.clock.now_ns() - begin_ns)

    def stop(self, seed: int) -> None:
        """The clients send no more, and all is answered. What comes from now on is the same whatever was before."""
        self.engine.on_answer = lambda inflight: None
        self.clock.advance(5 * 10**9)
        self._chance.seed(seed)


_TEXT_ENCODER = {
    8: (3.5, 2.1, 1.45, 1.15, 1.0),
    16: (4.2, 3.0, 2.3, 2.0, 1.85),
    32: (5.9, 4.5, 3.9, 3.6, 3.7),
    64: (9.3, 8.0, 7.6, 7.9, 7.8),
    128: (16.7, 15.3, 16.2, 16.6, 18.3),
    256: (32.9, 33.4, 37.6, 39.7, 41.0),
}
"""Milliseconds of CPU for each row of a batch of 1, 2, 4, 8 and 16, by length."""
TEXT_LENGTHS = tuple(_TEXT_ENCODER)


def text_encoder(rows: int, length: int) -> float:
    """The costs of all-MiniLM-L6-v2 on ONNX Runtime, as measured on two cores; in between, by powers.

    Short texts gain three times from batches. Long ones lose a fifth: their batches do not fit the caches.
    """
    column = log2(min(TEXT_LENGTHS[-1], max(TEXT_LENGTHS[0], length))) - 3
    left = min(int(column), len(TEXT_LENGTHS) - 2)
    line = log2(rows)
    low = min(int(line), 3)
    total = 0.0
    for place, near in ((left, 1 - column + left), (left + 1, column - left)):
        costs = _TEXT_ENCODER[TEXT_LENGTHS[place]]
        total += near * (log(costs[low]) * (1 - line + low) + log(costs[low + 1]) * (line - low))
    return rows * exp(total)


class SharedMachine:
    """Costs on a machine that others use: all times go up and down together, slowly, by a third of themselves."""

    def __init__(self, cost: Cost, seed: int, times: float, spread: float = 0.35, memory_s: float = 1.0) -> None:
        self.now_ns: Callable[[], int] = lambda: 0
        self._cost = cost
        chance, level = Random(seed), 0.0
        share = _STEP_NS / 1e9 / memory_s
        self._levels: list[float] = []
        for _ in range(int(400e9 / _STEP_NS)):
            level += chance.gauss(0, spread * sqrt(2 * share)) - share * level
            self._levels.append(times * exp(level))

    def __call__(self, rows: int, length: int) -> float:
        return self._cost(rows, length) * self._levels[self.now_ns() // _STEP_NS]


_STEP_NS = 50 * MS


class Preparing:
    """The costs of an engine that prepares itself, as OpenVINO does: once for each shape, and when the shape changes.

    Beyond that batches gain little: they take nearly what their rows take one by one.
    """

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()
        self._latest = 0, 0

    def __call__(self, rows: int, length: int) -> float:
        shape = rows, length
        ms = 1.4 + 0.1 * rows * length + 4.0 * (shape not in self._known) + 1.0 * (shape != self._latest)
        self._known.add(shape)
        self._latest = shape
        return ms

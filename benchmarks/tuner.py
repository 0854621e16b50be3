"""A batcher that tunes itself against fixed queue delays, under a load that changes by 5 times.

    python benchmarks/tuner.py            # about two minutes
    python benchmarks/tuner.py --write    # and puts the table into docs/performance.md

One server in process, and an engine whose four instances share a device that runs one batch at a time: 4 ms, and 0.2 ms
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
from modserve.backends.api import ModelSource, Placement
from modserve.core.model_config import ModelConfig, ModelDescription
from modserve.core.tensor import Array
from overhead import put_into_report

GOAL_MS = 20.0
RATES = (150, 750, 150)
BASE, ITEM = 0.004, 0.0002
ONE = np.ones((1, 1), np.float32)
DELAYS_MS = (0, 4, 8, 16)
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

    def instance(self, config: ModelConfig, placement: Placement) -> "Device":
        return self

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        with self._busy:
            time.sleep(BASE + ITEM * len(inputs["IN"]))
        return {"OUT": inputs["IN"]}

    def close(self) -> None:
        pass


class Phase(NamedTuple):
    p99_ms: float
    mean_batch: float


async def phase(server: InferenceServer, rate: float, seconds: float, settle: float) -> Phase:
    """Requests at `rate`; what is measured came after the first `settle` seconds."""
    chance = random.Random(1)
    windows: dict[int, list[float]] = defaultdict(list)
    begin = due = time.perf_counter()

    async def one(came: float) -> None:
        await server.infer("device", {"IN": ONE})
        if came - begin >= settle:
            windows[int((came - begin - settle) / WINDOW)].append(time.perf_counter() - came)

    counts = server.model("device").statistics
    before = counts.inference_count, counts.execution_count
    async with asyncio.TaskGroup() as tasks:
        while due - begin < seconds:
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one(time.perf_counter()))
    items, batches = counts.inference_count - before[0], counts.execution_count - before[1]
    # The median of several: when others use the machine for a moment, that is not the batcher's doing.
    return Phase(statistics.median(map(p99, windows.values())) * 1e3, items / batches)


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


def row(name: str, phases: list[Phase]) -> str:
    cells = [f"{each.p99_ms:.1f} ms, {each.mean_batch:.1f}" for each in phases]
    held = "yes" if all(each.p99_ms <= 1.1 * GOAL_MS for each in phases) else "no"
    return f"| {name} | {' | '.join(cells)} | {held} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each phase")
    parser.add_argument("--settle", type=float, default=4, help="seconds of each phase that are not measured")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    arguments = parser.parse_args()
    ways: dict[str, float | None] = {f"delay {delay} ms": delay for delay in DELAYS_MS}
    ways[f"tuned for {GOAL_MS:.0f} ms"] = None
    rows = [row(name, asyncio.run(run(delay, arguments.seconds, arguments.settle))) for name, delay in ways.items()]
    heads = " | ".join(f"{rate} requests/s" for rate in RATES)
    text = "\n".join(
        [
            f"p99 from call to answer (median of those of {WINDOW:g} s each) and mean batch size, after "
            f"{arguments.settle:g} s of each phase of {arguments.seconds:g} s.\n",
            f"| | {heads} | {GOAL_MS:.0f} ms held within 10 % |",
            "|---|" + "---|" * (len(RATES) + 1),
            *rows,
        ]
    )
    print(text)
    if arguments.write:
        put_into_report("tuner.py", text)


if __name__ == "__main__":
    main()

"""What a scrape of the metrics page costs: time of the thread that makes it, and how long the event loop waits for it.

    python benchmarks/metrics_page.py                # 200 models
    python benchmarks/metrics_page.py --models 1000

The server is in this process, without ports. Every model has served a request, so that all its families have samples.
The event loop's delay is that of a callback which is due all the time, at worst and on average, with scrapes and
without.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from modserve import InferenceServer, Settings
from modserve.observability.families import render
from modserve.process.metrics_page import MetricsPage

CONFIG = """backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


async def delays(seconds: float) -> list[float]:
    """Milliseconds by which each of many turns of the event loop, a millisecond apart, came too late."""
    found, end = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await asyncio.sleep(0.001)
        found.append(1e3 * (time.perf_counter() - began) - 1)
    return found


def thread_time(page: MetricsPage) -> float:
    """Milliseconds of CPU that the thread needs for a page."""
    began = time.thread_time()
    render(page.collectors)
    return 1e3 * (time.thread_time() - began)


async def scrapes(page: MetricsPage, count: int) -> tuple[list[float], int]:
    """Milliseconds of each, and the bytes of the last one."""
    times, size = [], 0
    for _ in range(count):
        began = time.perf_counter()
        size = len(await page.text())
        times.append(1e3 * (time.perf_counter() - began))
        await asyncio.sleep(0.05)
    return times, size


async def measure(folder: Path, models: int, count: int, summaries: bool) -> None:
    for index in range(models):
        (folder / f"model_{index:04}" / "1").mkdir(parents=True)
        (folder / f"model_{index:04}" / "config.pbtxt").write_text(CONFIG)
    config = {"summary_latencies": str(summaries).lower()}
    settings = Settings(model_repository=folder, metrics_config=config)
    async with InferenceServer(settings) as server:
        page = MetricsPage(server, server.engine_metrics, settings, dict, dict)
        with page.counting():
            server.changes.notify()
            for name in server.model_names():
                await server.infer(name, {"INPUT0": np.zeros((1, 4), np.int32)})
        await page.text()
        work = [await asyncio.to_thread(thread_time, page) for _ in range(count)]
        idle = await delays(2)
        watching = asyncio.create_task(delays(0.06 * count + 1))
        times, size = await scrapes(page, count)
        busy = await watching
    lines = size // 80
    print(f"{models} models, {size / 1e6:.2f} MB, about {lines} lines{', with summaries' if summaries else ''}")
    print(f"  CPU of the thread: median {statistics.median(work):.1f} ms, at most {max(work):.1f} ms")
    print(f"  a page: median {statistics.median(times):.1f} ms, at most {max(times):.1f} ms, on a thread")
    for label, values in (("without scrapes", idle), ("with scrapes", busy)):
        print(f"  the event loop's delay {label}: mean {statistics.fmean(values):.2f} ms, at most {max(values):.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--scrapes", type=int, default=40)
    arguments = parser.parse_args()
    for summaries in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(Path(folder), arguments.models, arguments.scrapes, summaries))


if __name__ == "__main__":
    main()

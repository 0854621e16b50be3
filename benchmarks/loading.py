"""Cost of loading models: time to READY and memory, beside the engine alone in the same kind of process.

    python benchmarks/loading.py                 # the table of files, about three minutes
    python benchmarks/loading.py --only int8     # files whose name contains this
    python benchmarks/loading.py models          # 1, 100 and 1,000 models: the slope
    python benchmarks/loading.py --write         # both, into benchmarks/results/tables.md

Linux only. Each load has a process of its own, with the server running and a tiny model served, so that imports and
first uses count for neither side. Ours is `load_model`; the engine's is its session for the same file, with as many
threads. Memory is the highest resident memory during the load over that before it. Both take turns, and the least of
each figure counts. The last column has what exceeds the aim.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import overhead
from loading_files import FILES, TINY
from modserve import InferenceServer, Settings
from modserve.process.metrics_page import MetricsPage

MOST_TIMES = 1.1
AIMS = {"time": (1e3, "ms", 50), "CPU": (1e3, "ms", 50), "memory": (1, "MB", 20)}
"""The aim: `MOST_TIMES` what the engine alone takes, and so much more; by what factor figures have which unit."""
COUNTS = (1, 100, 1000)
CONFIG = 'backend: "onnxruntime" instance_group { count: 1 kind: KIND_CPU }'
_SIDES = ("ours", "engine")


def settings_for(repository: Path, mode: str) -> Settings:
    return Settings(model_repository=repository, model_control_mode=mode)


def place(file: Path, model: Path) -> Path:
    """A model of a repository whose version 1 has links to the file and those beside it."""
    (model / "1").mkdir(parents=True)
    for each in file.parent.iterdir():
        (model / "1" / each.name).hardlink_to(each)
    (model / "config.pbtxt").write_text(CONFIG)
    return model / "1" / file.name


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # proc(5)


def memory_mb(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


# One load, in a process of its own


async def load(folder: str, side: str) -> tuple[float, float, float]:
    """Seconds, those of CPU time, and megabytes of a load."""
    import onnxruntime

    repository = Path(folder)
    async with InferenceServer(settings_for(repository, "explicit")) as server:
        await server.load_model(TINY)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        path = str(repository / "model" / "1" / "model.onnx")
        gc.collect()
        forget_peak()
        before, began, cpu = memory_mb("VmRSS"), time.perf_counter(), time.process_time()
        if side == "ours":
            await server.load_model("model")
        else:
            session = await asyncio.to_thread(onnxruntime.InferenceSession, path, options)
        seconds, cpu, peak = time.perf_counter() - began, time.process_time() - cpu, memory_mb("VmHWM")
        if side == "engine":
            del session
        return seconds, cpu, peak - before


def loads(repository: Path, runs: int) -> dict[str, list[float]]:
    """The least of each figure, by side: what else the machine does only adds."""
    figures: dict[str, list[list[float]]] = {side: [] for side in _SIDES}
    for run in range(runs + 1):
        for side in _SIDES if run % 2 else reversed(_SIDES):
            row = _alone("load", str(repository), side)
            if run:  # the first of each reads the file from the disk
                figures[side].append(row)
    return {side: [min(column) for column in zip(*rows, strict=True)] for side, rows in figures.items()}


def files_table(folder: Path, only: str, runs: int) -> list[str]:
    lines = [
        "| file | size | READY after | engine alone | CPU | engine alone | memory | engine alone | exceeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    tiny = made(TINY, folder)
    for name in FILES:
        if name == TINY or only not in name:
            continue
        file = made(name, folder)
        with tempfile.TemporaryDirectory(dir=folder) as repository:
            place(tiny, Path(repository, TINY))
            place(file, Path(repository, "model"))
            figures = loads(Path(repository), runs)
        cells, exceeds = [], []
        size = sum(each.stat().st_size for each in file.parent.iterdir()) / 1e6
        for what, (factor, unit, more), ours, own in zip(AIMS, AIMS.values(), *figures.values(), strict=True):
            cells += [f"{each * factor:.0f} {unit}" for each in (ours, own)]
            if ours * factor > MOST_TIMES * own * factor + more:
                exceeds.append(what)
        lines.append(f"| {name} | {size:.1f} MB | {' | '.join(cells)} | {', '.join(exceeds)} |")
        print(lines[-1], flush=True)
    return lines


def made(name: str, folder: Path) -> Path:
    (folder / name).mkdir(parents=True)
    return FILES[name](folder / name)


# Many models


async def with_models(folder: str, count: str) -> list[str]:
    """The cells of a row: what many models cost."""
    began, cpu = time.perf_counter(), time.process_time()
    settings = settings_for(Path(folder), "none")
    before = memory_mb("VmRSS")
    async with InferenceServer(settings) as server:
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        names = server.model_names()
        assert len(names) == int(count)
        rows = {"x": np.zeros((1, 8), np.float32)}
        page = MetricsPage(server, server.engine_metrics, settings, dict, dict)
        with page.counting():
            server.changes.notify()
            for name in names:
                await server.infer(name, rows)
            memory = memory_mb("VmRSS") - before
            await page.text()
            began = time.process_time()
            size = len(await page.text())
            scrape = time.process_time() - began
            latencies = await latency(server, names, rows)
    ms = [1e3 * each for each in statistics.quantiles(latencies, n=100)]
    return [
        f"{int(count):,}",
        f"{seconds:.2f} s",
        f"{cpu:.2f} s",
        f"{memory:.0f} MB",
        f"{size / 1e6:.2f} MB",
        f"{1e3 * scrape:.0f} ms",
        f"{ms[49]:.2f} ms",
        f"{ms[98]:.2f} ms",
    ]


async def latency(
    server: InferenceServer, names: list[str], rows: dict[str, np.ndarray], clients: int = 8
) -> list[float]:
    """Seconds of requests to the first model while clients send to all in turn."""
    ended, times = False, []

    async def client(start: int) -> None:
        turn = start
        while not ended:
            await server.infer(names[turn % len(names)], rows)
            turn += clients

    others = [asyncio.create_task(client(start)) for start in range(clients)]
    end = time.perf_counter() + 3
    while (began := time.perf_counter()) < end:
        await server.infer(names[0], rows)
        times.append(time.perf_counter() - began)
    ended = True
    await asyncio.gather(*others)
    return times


async def engine_alone(file: str, count: str) -> tuple[float, float]:
    """Seconds and megabytes of so many sessions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnxruntime.InferenceSession(file, options)
    before, began = memory_mb("VmRSS"), time.process_time()
    sessions = [onnxruntime.InferenceSession(file, options) for _ in range(int(count))]
    for session in sessions:
        session.run(None, {"x": np.zeros((1, 8), np.float32)})
    return time.process_time() - began, memory_mb("VmRSS") - before


def models_table(folder: Path) -> list[str]:
    lines = [
        "| models | READY after | CPU | memory | metrics page | CPU | p50 of one under load | p99 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    file = made(TINY, folder)
    for count in COUNTS:
        with tempfile.TemporaryDirectory(dir=folder) as repository:
            for index in range(count):
                place(file, Path(repository, f"model_{index:04}"))
            cells = _alone("models-of", repository, str(count))
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    seconds, megabytes = _alone("sessions", str(file), str(COUNTS[-1]))
    each = f"{1e3 * seconds / COUNTS[-1]:.1f} ms of CPU and {1e3 * megabytes / COUNTS[-1]:.0f} kB"
    lines += ["", f"ONNX Runtime's sessions alone take {each} for each of {COUNTS[-1]:,} such models."]
    print(lines[-1])
    return lines


def _alone(*words: str) -> list[Any]:
    output = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE).stdout
    row: list[Any] = json.loads(output.splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", default=["files", "models"], help="files, models; both by default")
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--runs", type=int, default=3, help="loads of each side")
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    if (part := arguments.part[0]) in _ALONE:
        print(json.dumps(asyncio.run(_ALONE[part](*arguments.part[1:]))))
        return
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        if "files" in arguments.part:
            tables.append(files_table(Path(folder), arguments.only, arguments.runs))
        if "models" in arguments.part:
            tables.append(models_table(Path(folder, "models")))
    if arguments.write:
        overhead.put_into_report("loading.py", "\n\n".join("\n".join(each) for each in tables))


_ALONE = {"load": load, "models-of": with_models, "sessions": engine_alone}
"""Run in a process of its own; the first argument says what."""


if __name__ == "__main__":
    main()

"""What tiny requests feel of everything else that a server does: their latency alone, and beside each disturbance.

    python benchmarks/mix.py                       # some 6 minutes
    python benchmarks/mix.py --write               # and puts the tables into benchmarks/results/tables.md
    python benchmarks/mix.py --only json scrapes --seconds 2 --rounds 1
    python benchmarks/mix.py --explain             # and which callbacks held the event loop, and where

Tiny requests (`simple`) go out at a steady rate over HTTP and gRPC, whether or not those before them have responses (an
open loop), and their latency counts from when they were due: what holds the server for 20 ms delays all that come in
this time. Clients share the machine with the server, unlike real ones: those that disturb go after the server, and
those that measure before it if the superuser runs this, since else they measure how long they wait for a core. Beside
them runs one client of a disturbance, or all disturbances together; "busy client" only burns CPU time on a core, like
any other program, and shows what is lost to a shared machine. The phases take turns. `--explain` starts the server by
mix_server.py, on asyncio's own loop.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import process_tree
from mix_clients import DISTURBANCES, HEAVY_NICE, SPARE, TINY_NICE, Ports, disturb, set_nice, settle, spin, tiny
from modserve.execution.placement import available_cores
from overhead import put_into_report
from side_by_side.loads import quantile
from side_by_side.models import MODELS, ROOT, write_files, write_repository
from side_by_side.running import free_ports, ready

ALONE, BUSY, EVERYTHING = "nothing", "a busy client", "all of them"
WAYS = ("HTTP", "gRPC")
LEAD_S = 2.0
"""From the start of a phase to its first tiny request: the clients' processes start, and build what they send."""


@dataclass
class Phase:
    """What was measured beside one kind of disturbance, all windows together."""

    name: str
    disturbances: Sequence[str]
    times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds, by way."""
    medians: dict[str, list[float]] = field(default_factory=dict)
    requests: int = 0
    """Of the disturbances."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When its windows began and ended, by time.time()."""


def phases(words: Sequence[str]) -> list[Phase]:
    """Those whose names have one of the words in them, or all."""
    every = [Phase(ALONE, ()), Phase(BUSY, (BUSY,)), *(Phase(name, (name,)) for name in DISTURBANCES)]
    every.append(Phase(EVERYTHING, tuple(DISTURBANCES)))
    chosen = [each for each in every[1:] if not words or any(word.lower() in each.name.lower() for word in words)]
    return [every[0], *chosen]


def write_models(folder: Path) -> Path:
    """`simple`, `identity` for large tensors, and the model that comes and goes."""
    write_files(folder / "files", [MODELS["simple"], MODELS[SPARE]])
    repository = write_repository(folder / "models", folder / "files", [MODELS["simple"], MODELS[SPARE]])
    (repository / "identity" / "1").mkdir(parents=True)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "n"]) for name in ("INPUT", "OUTPUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT"], ["OUTPUT"])], "identity", values[:1], values[1:])
    opset = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), repository / "identity" / "1" / "model.onnx")
    tensor = "data_type: TYPE_FP32 dims: [ -1, -1 ]"
    (repository / "identity" / "config.pbtxt").write_text(
        'name: "identity"\nbackend: "onnxruntime"\nmax_batch_size: 0\n'
        f'input [ {{ name: "INPUT" {tensor} }} ]\noutput [ {{ name: "OUTPUT" {tensor} }} ]\n'
    )
    return repository


@contextmanager
def server(folder: Path, options: argparse.Namespace) -> Iterator[Ports]:
    """A server of these models, under explicit control. Raises SystemExit if it is not ready in time."""
    ports = Ports(*free_ports(3))
    program = [str(Path(__file__).with_name("mix_server.py"))] if options.explain else ["-m", "modserve"]
    command = [sys.executable, *program, "serve", "--model-repository", str(write_models(folder))]
    command += ["--model-control-mode", "explicit", *(f"--load-model={name}" for name in ("simple", "identity", SPARE))]
    command += ["--http-port", str(ports.http), "--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics)]
    tree = ROOT / "src" if options.tree is None else options.tree.resolve()
    variables = {**os.environ, "PYTHONPATH": str(tree), "LOOP_HOLDS": str(folder / "holds"), "LOOP_HOLDS_MS": "3"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options.serve], stdout=log, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
    try:
        limit = time.monotonic() + 60
        while not ready(ports.http):
            if process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"the server did not become ready:\n{(folder / 'log').read_text()}")
            time.sleep(0.02)
        yield ports
    finally:
        process_tree.end(process)


@dataclass(frozen=True)
class Pools:
    """The processes of the clients, by what they may take from the server."""

    tiny: ProcessPoolExecutor
    heavy: ProcessPoolExecutor
    busy: ProcessPoolExecutor


@contextmanager
def pools() -> Iterator[Pools]:
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        every = []
        for count, nice in ((len(WAYS), TINY_NICE), (len(DISTURBANCES), HEAVY_NICE), (1, 0)):
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=set_nice, initargs=(nice,))
            every.append(stack.enter_context(pool))
            for each in [pool.submit(settle) for _ in range(count)]:
                each.result()
        yield Pools(*every)


def measure(every: Sequence[Phase], ports: Ports, options: argparse.Namespace) -> None:
    steps, done, began = len(every) * options.rounds, 0, time.monotonic()
    with pools() as clients:
        for number in range(options.rounds):
            for phase in every if number % 2 == 0 else every[::-1]:
                window(phase, ports, clients, options)
                done += 1
                left = (time.monotonic() - began) / done * (steps - done)
                print(f"[{done}/{steps}, {left:.0f} s left] {progress(phase)}", file=sys.stderr, flush=True)


def window(phase: Phase, ports: Ports, clients: Pools, options: argparse.Namespace) -> None:
    begin = time.time() + LEAD_S
    end = begin + options.seconds
    others: list[Future[int]] = []
    for name in phase.disturbances:
        others.append(
            clients.busy.submit(spin, end) if name == BUSY else clients.heavy.submit(disturb, name, ports, end)
        )
    measuring = {way: clients.tiny.submit(tiny, way, ports, begin, options.seconds, options.rate) for way in WAYS}
    for way, client in measuring.items():
        times = client.result()
        phase.times.setdefault(way, []).extend(times)
        phase.medians.setdefault(way, []).append(statistics.median(times))
    phase.requests += sum(each.result() for each in others)
    phase.spans.append((begin, time.time()))


def progress(phase: Phase) -> str:
    return f"{phase.name}: " + "; ".join(f"{way} p50, p99, p99.9, most: {cells(phase.times[way])}" for way in WAYS)


def cells(times: Sequence[float]) -> str:
    """p50, p99, p99.9 and the most, in ms. A percentile is left out where less than five requests were above it."""
    ordered = sorted(times)
    values = [
        f"{quantile(ordered, share) * 1e3:.2f}" if len(ordered) * (1 - share) >= 4.99 else "-"
        for share in (0.5, 0.99, 0.999)
    ]
    return ", ".join([*values, f"{ordered[-1] * 1e3:.1f}"])


def latency_table(every: Sequence[Phase], options: argparse.Namespace) -> list[str]:
    lines = [
        f"{available_cores()} cores, {platform.machine()}, Python {platform.python_version()}; clients and server "
        "share the cores; the clients of tiny requests have the highest priority, if permitted, the disturbances the "
        f"lowest. {options.rate:.0f} tiny requests per second over each protocol, {options.rounds} windows of "
        f"{options.seconds:g} s together; latencies in ms, from when a request was due.",
        "",
        "| beside | HTTP: p50, p99, p99.9, most | gRPC: p50, p99, p99.9, most | its requests/s |",
        "|---|---|---|---|",
    ]
    for phase in every:
        columns = " | ".join(cells(phase.times[way]) for way in WAYS)
        span = len(phase.spans) * (options.seconds + LEAD_S)
        rate = f"{phase.requests / span:.1f}" if phase.requests and phase.name != BUSY else "-"
        lines.append(f"| {phase.name} | {columns} | {rate} |")
    return lines


# ---- What held the loop


COMPUTED_MS = 3.0
_ROWS = 20


@dataclass(frozen=True)
class Hold:
    """A callback that held the event loop: a line of mix_server.py, in milliseconds."""

    at: float
    ms: float
    cpu_ms: float
    process_cpu_ms: float
    gc_ms: float
    callback: str
    place: str
    others: str


def holds_table(every: Sequence[Phase], holds: Sequence[Hold]) -> list[str]:
    """By phase and callback, what computed on the loop; by phase and place, what other threads kept it waiting for."""
    computed: dict[tuple[str, str], list[Hold]] = {}
    waited: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds:
        name = next((each.name for each in every if any(a - LEAD_S <= hold.at <= b for a, b in each.spans)), None)
        if name is None:
            continue
        if hold.cpu_ms >= COMPUTED_MS:
            computed.setdefault((name, hold.callback), []).append(hold)
        elif hold.others and hold.process_cpu_ms >= hold.ms / 2:
            waited.setdefault((name, hold.others), []).append(hold)
    rows = [
        "",
        f"Callbacks in which the event loop's thread computed for more than {COMPUTED_MS:g} ms; the collector's part "
        "is in it (asyncio's own loop, each callback timed):",
        "",
        "| beside | callback | count | CPU: most, median | collector, most | where it mostly was |",
        "|---|---|---|---|---|---|",
    ]
    for (beside, callback), members in _largest(computed, "cpu_ms"):
        cpu = [each.cpu_ms for each in members]
        collector = max(each.gc_ms for each in members)
        rows.append(
            f"| {beside} | `{callback}` | {len(members)} | {max(cpu):.1f}, {statistics.median(cpu):.1f} ms "
            f"| {collector:.1f} ms | {_commonest([each.place for each in members])} |"
        )
    rows += [
        "",
        "Holds in which it did not compute but other threads did, so that it waited for the interpreter's lock, or for "
        "a core:",
        "",
        "| beside | other threads | count | most, median |",
        "|---|---|---|---|",
    ]
    for (beside, others), members in _largest(waited, "ms"):
        length = [each.ms for each in members]
        rows.append(f"| {beside} | {others} | {len(members)} | {max(length):.1f}, {statistics.median(length):.1f} ms |")
    return rows


def _largest(groups: Mapping[tuple[str, str], list[Hold]], name: str) -> list[tuple[tuple[str, str], list[Hold]]]:
    return sorted(groups.items(), key=lambda item: -max(getattr(each, name) for each in item[1]))[:_ROWS]


def _commonest(places: Sequence[str]) -> str:
    seen = [place for place in places if place]
    return max(seen, key=seen.count) if seen else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="disturbances whose names have such a word"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="windows of each phase; default: %(default)s")
    parser.add_argument("--rate", type=float, default=200.0, help="tiny requests a second; default: %(default)s")
    parser.add_argument("--tree", type=Path, help="where modserve is, as build/compiled; default: src")
    parser.add_argument("--explain", action="store_true", help="time the event loop's callbacks, and name the longest")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of modserve serve, last of all")
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/results/tables.md")
    options = parser.parse_args()
    every = phases(options.only)
    with tempfile.TemporaryDirectory(prefix="mix-") as directory:
        with server(Path(directory), options) as ports:
            measure(every, ports, options)
        lines = latency_table(every, options)
        holds = Path(directory) / "holds"
        if options.explain and holds.exists():
            lines += holds_table(every, [Hold(**json.loads(line)) for line in holds.read_text().splitlines()])
    text = "\n".join(lines)
    print(text)
    if options.write:
        put_into_report("mix.py", text)


if __name__ == "__main__":
    main()

"""``modserve bench`` beside NVIDIA's perf_analyzer, against the same server, in turns: do both print the same figures?

    python benchmarks/bench_against_perf_analyzer.py           # prints the table
    python benchmarks/bench_against_perf_analyzer.py --write   # and puts it into benchmarks/results/tables.md

`simple` takes microseconds, so that in a closed loop the clients' own time shows: they share the cores with the server.
`slow`, a model in Python, takes `SLOW_SECONDS`: there both should print the same.

perf_analyzer is where ``scripts/clients`` puts it. TRITON_SERVER_CMD starts a Triton to measure as well (overhead.py).
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import overhead

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / ".venv-clients"
PERF_ANALYZER = CLIENTS / "bin" / "perf_analyzer"
WINDOW_SECONDS = 2.0
SIMPLE, SLOW = "simple", "slow"
SLOW_SECONDS = 0.005
SLOW_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
instance_group { count: 4 kind: KIND_CPU }
"""
SLOW_MODEL = f"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({SLOW_SECONDS})
        arrays = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""


@dataclass(frozen=True)
class Figures:
    """Requests a second, and ms."""

    rate: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Load:
    model: str
    name: str
    protocol: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def loads(concurrencies: Sequence[int], rates: Sequence[int]) -> Iterator[Load]:
    for protocol in ("http", "grpc"):
        for model, number in [(SIMPLE, number) for number in concurrencies] + [(SLOW, 4)]:
            theirs: tuple[str, ...] = (f"--concurrency-range={number}",)
            yield Load(model, f"{number} at a time", protocol, (f"--concurrency={number}",), theirs)
        for rate in rates:
            theirs = (f"--request-rate-range={rate}", "--async")
            yield Load(SIMPLE, f"{rate:,}/s", protocol, (f"--rate={rate}",), theirs)


def write_slow(repository: Path) -> None:
    folder = repository / SLOW
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(SLOW_CONFIG)
    (folder / "1" / "model.py").write_text(SLOW_MODEL)


def ours(port: int, load: Load) -> Figures:
    command = [sys.executable, "-m", "modserve", "bench", load.model, "--url", f"{load.protocol}://127.0.0.1:{port}"]
    command += [*load.ours, f"--window-secs={WINDOW_SECONDS}", "--windows=3", "--json=-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [row] = json.loads(done.stdout)["results"]
    latency = row["latency_ms"]
    return Figures(row["requests_per_second"], latency["p50"], latency["p99"])


def theirs(port: int, load: Load) -> Figures:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    libraries = CLIENTS.glob("lib/python3*/site-packages/nvidia/*/lib")
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        command = [str(PERF_ANALYZER), "-m", load.model, "-u", f"127.0.0.1:{port}", "-i", load.protocol, *load.theirs]
        command += [f"--measurement-interval={WINDOW_SECONDS * 1000:.0f}", "--max-trials=3", "-f", file.name]
        command += ["--stability-percentage=100000"]  # three windows, whatever they say, as above
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        rows = list(csv.DictReader(Path(file.name).read_text().splitlines()))
    if len(rows) != 1:
        raise SystemExit(f"perf_analyzer: {done.stdout[-500:]}{done.stderr[-500:]}")
    [row] = rows
    return Figures(float(row["Inferences/Second"]), float(row["p50 latency"]) / 1000, float(row["p99 latency"]) / 1000)


def middle(figures: Sequence[Figures]) -> Figures:
    return Figures(*(statistics.median(getattr(each, name) for each in figures) for name in ("rate", "p50", "p99")))


def ratio(pairs: Sequence[tuple[Figures, Figures]], name: str) -> str:
    """The median of the ratios of neighbours."""
    return f"{statistics.median(getattr(own, name) / getattr(other, name) for own, other in pairs):.2f}"


def report(arguments: argparse.Namespace) -> str:
    rows = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repository = overhead.write_repository(directory / "onnx")
        write_slow(repository)
        servers = [("modserve", stack.enter_context(overhead.server(repository)))]
        if template := os.environ.get("TRITON_SERVER_CMD"):
            triton = stack.enter_context(overhead.triton(template, repository))
            if triton is None:
                raise SystemExit("TRITON_SERVER_CMD: it did not become ready")
            servers.append(("Triton", triton))
        for load in loads(arguments.concurrency, arguments.rate):
            for name, server in servers:
                port = server.grpc if load.protocol == "grpc" else server.http
                busy = os.getloadavg()[0]
                pairs = [(ours(port, load), theirs(port, load)) for _ in range(arguments.runs)]
                own, other = middle([pair[0] for pair in pairs]), middle([pair[1] for pair in pairs])
                shown = [f"{own.rate:,.0f}", f"{other.rate:,.0f}", ratio(pairs, "rate")]
                shown += [f"{own.p50:.3f}", f"{other.p50:.3f}", ratio(pairs, "p50")]
                shown += [f"{own.p99:.2f}", f"{other.p99:.2f}", ratio(pairs, "p99"), f"{busy:.1f}"]
                protocol = {"http": "HTTP", "grpc": "gRPC"}[load.protocol]
                rows.append(f"| {load.model} | {name} | {protocol} | {load.name} | {' | '.join(shown)} |")
                print(rows[-1], file=sys.stderr, flush=True)
    head = "| model | server | | load | requests/s: bench | perf_analyzer | ratio | p50, ms: bench "
    head += "| perf_analyzer | ratio | p99, ms: bench | perf_analyzer | ratio | load average before |"
    intro = f"{os.cpu_count()} cores, {platform.machine()}, which clients and servers share; medians of "
    intro += f"{arguments.runs} pairs, ratios of neighbouring runs."
    return "\n".join([intro, "", head, "|" + "---|" * (head.count("|") - 1), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put the table into {overhead.REPORT.relative_to(ROOT)}")
    parser.add_argument("--runs", type=int, default=3, help="pairs of runs for each load")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--rate", type=int, nargs="*", default=[1000])
    arguments = parser.parse_args()
    if not PERF_ANALYZER.exists():
        raise SystemExit(f"{PERF_ANALYZER.relative_to(ROOT)} is not there: scripts/clients installs it")
    text = report(arguments)
    print(text)
    if arguments.write:
        overhead.put_into_report(Path(__file__).name, text)


if __name__ == "__main__":
    main()

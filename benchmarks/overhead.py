"""What the server itself costs: requests per second, latency and server CPU a request, beside the bare engine.

    python benchmarks/overhead.py            # prints the report, about four minutes
    python benchmarks/overhead.py --write    # and puts it into docs/performance.md

Needs the programs wrk and h2load (Debian: wrk, nghttp2-client). Machines are noisy: every figure is the median of
several runs, and what is compared is measured in turns in one call.
"""

import argparse
import os
import platform
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import onnxruntime as ort
import orjson
from packaging.requirements import Requirement

import encoder
from modserve.execution.placement import available_cores
from modserve.pb import inference as pb

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "performance.md"
CONNECTIONS = (1, 16, 64)
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What one run of a load generator saw, and what it cost the server."""

    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float


@dataclass(frozen=True)
class ServerProcess:
    pid: int
    http: int
    grpc: int
    metrics: int
    start_seconds: float
    ready_rss_mb: float

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


@contextmanager
def server(repository: Path) -> Iterator[ServerProcess]:
    """A server on free ports, from its start to READY."""
    command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(repository)]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    reading = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        ports: dict[str, int] = {}
        while len(ports) < 3:
            line = process.stdout.readline()
            match = re.match(r"(\w+) listening on .*:(\d+)", line)
            if match:
                ports[match[1]] = int(match[2])
            elif not line:
                raise SystemExit("the server ended before its ports were open")
        while not _ready(ports["HTTP"]):
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        reading.start()
        yield ServerProcess(process.pid, ports["HTTP"], ports["gRPC"], ports["metrics"], seconds, _rss_mb(process.pid))
    finally:
        process.terminate()
        process.wait(timeout=60)
        if reading.is_alive():
            reading.join()
        process.stdout.close()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def _rss_mb(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def install_mb() -> float:
    """The size on disk of modserve and all it depends on, without extras."""
    seen: set[str] = set()
    waiting, size = ["modserve"], 0
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        # An editable install lists no files of its own: those of the source tree are counted instead.
        files = [Path(str(found.locate_file(file))) for file in found.files or ()]
        if name == "modserve":
            files = list((ROOT / "src" / "modserve").rglob("*"))
        size += sum(file.stat().st_size for file in files if file.is_file())
        for text in found.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return size / 1e6


def tensors(rows: int = 1) -> list[dict[str, object]]:
    return [
        {"name": name, "datatype": "INT32", "shape": [rows, 16], "parameters": {"binary_data_size": 64 * rows}}
        for name in ("INPUT0", "INPUT1")
    ]


def http_body(inputs: list[dict[str, object]], data: bytes) -> tuple[bytes, int]:
    """A request body in the binary form, and the length of its JSON."""
    text = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    return text + data, len(text)


def wrk(target: ServerProcess, model: str, body: bytes, json_length: int, connections: int, seconds: int) -> Load:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "request.lua"
        escaped = "".join(f"\\{byte:03d}" for byte in body)
        script.write_text(
            f'wrk.method = "POST"\nwrk.body = "{escaped}"\n'
            f'wrk.headers["Inference-Header-Content-Length"] = "{json_length}"\n'
        )
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds}s",
            "--timeout",
            "60s",
            "--latency",
            "-s",
            str(script),
        ]
        before = target.cpu_seconds()
        text = _run([*command, f"http://127.0.0.1:{target.http}/v2/models/{model}/infer"])
        cpu = target.cpu_seconds() - before
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"wrk saw failures:\n{text}")
    count = int(_find(r"(\d+) requests in", text))
    return Load(
        float(_find(r"Requests/sec:\s+([\d.]+)", text)),
        _microseconds(_find(r"\n\s+50%\s+(\S+)", text)),
        _microseconds(_find(r"\n\s+99%\s+(\S+)", text)),
        cpu / count * 1e6,
    )


def steady_rate(target: ServerProcess, model: str, load: Callable[[int], object], seconds: int) -> float:
    """Inferences per second by the server's own counter, between two ends of executions in the middle of a `load`.

    A load generator does not count what is under way at its end, which is much where executions take long.
    """
    lead = max(2, seconds // 4)
    loading = threading.Thread(target=load, args=(seconds + 2 * lead,))
    loading.start()
    time.sleep(lead)
    first, began = _next_count(target, model)
    time.sleep(seconds)
    last, ended = _next_count(target, model)
    loading.join()
    return (last - first) / (ended - began)


def _next_count(target: ServerProcess, model: str) -> tuple[int, float]:
    """How many inferences were done at the end of the next execution, and when that was."""
    before = _inference_count(target, model)
    while (count := _inference_count(target, model)) == before:
        time.sleep(0.005)
    return count, time.perf_counter()


def _inference_count(target: ServerProcess, model: str) -> int:
    with urllib.request.urlopen(f"http://localhost:{target.http}/v2/models/{model}/stats") as answer:
        return int(orjson.loads(answer.read())["model_stats"][0]["inference_count"])


def h2load(target: ServerProcess, message: bytes, connections: int, requests: int) -> Load:
    with tempfile.TemporaryDirectory() as directory:
        body, log = Path(directory) / "message", Path(directory) / "log"
        body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
        command = ["h2load", "-n", str(requests), "-c", str(connections), "-m", "1", "-d", str(body)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
        before = target.cpu_seconds()
        text = _run([*command, f"http://127.0.0.1:{target.grpc}/{pb.SERVICE}/ModelInfer"])
        cpu = target.cpu_seconds() - before
        times = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    if f" {requests} succeeded" not in text:
        raise SystemExit(f"h2load saw failures:\n{text}")
    rate = float(_find(r"finished in \S+, ([\d.]+) req/s", text))
    return Load(rate, times[len(times) // 2], times[len(times) * 99 // 100], cpu / requests * 1e6)


def _run(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not installed (Debian: apt-get install wrk nghttp2-client)") from None


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"no {pattern!r} in:\n{text}")
    return match[match.lastindex or 0]


def _microseconds(text: str) -> float:
    number = _find(r"^[\d.]+", text)
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[text.removeprefix(number)]


def median(loads: Sequence[Load]) -> Load:
    columns = zip(*((load.per_second, load.p50_us, load.p99_us, load.cpu_us) for load in loads), strict=True)
    return Load(*(statistics.median(column) for column in columns))


def bare_simple(seconds: float) -> float:
    """Microseconds of one run of `simple` in a loop around ONNX Runtime, and nothing else."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    model = ROOT / "model_repository" / "simple" / "1" / "model.onnx"
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feeds = {name: np.ones((1, 16), np.int32) for name in ("INPUT0", "INPUT1")}
    names = ["OUTPUT0", "OUTPUT1"]
    count, end = 0, time.perf_counter() + seconds
    began = time.perf_counter()
    while time.perf_counter() < end:
        for _ in range(100):
            session.run(names, feeds)
        count += 100
    return (time.perf_counter() - began) / count * 1e6


def bare_encoder(model: Path, threads: int, batch: int, sequence: int, seconds: float) -> float:
    """Sequences per second of `threads` callers of one session, each with its own share of the cores."""
    options = ort.SessionOptions()
    share = max(1, available_cores() // threads)
    options.intra_op_num_threads = threads * (share - 1) + 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feeds = {
        "input_ids": np.ones((batch, sequence), np.int64),
        "attention_mask": np.ones((batch, sequence), np.int64),
    }
    session.run(None, feeds)
    counts = [0] * threads
    began = time.perf_counter()
    end = began + seconds

    def call(index: int) -> None:
        while time.perf_counter() < end:
            session.run(None, feeds)
            counts[index] += batch

    callers = [threading.Thread(target=call, args=(index,)) for index in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return sum(counts) / (time.perf_counter() - began)


def overhead_table(runs: int, seconds: int) -> list[str]:
    bare = statistics.median(bare_simple(1.0) for _ in range(3))
    ones = np.ones((1, 16), "<i4").tobytes()
    body, json_length = http_body(tensors(), ones * 2)
    tensor = pb.ModelInferRequest.InferInputTensor
    message = pb.ModelInferRequest(
        model_name="simple",
        inputs=[tensor(name=name, datatype="INT32", shape=[1, 16]) for name in ("INPUT0", "INPUT1")],
        raw_input_contents=[ones, ones],
    ).SerializeToString()
    lines = [
        "| path | connections | requests/s | p50 | p99 | server CPU a request |",
        "|---|---|---|---|---|---|",
        f"| bare ONNX Runtime loop, one thread | - | {1e6 / bare:,.0f} | - | - | {bare:.0f} µs |",
    ]
    with server(ROOT / "model_repository") as target:
        start_seconds, rss = target.start_seconds, target.ready_rss_mb
        paths: list[tuple[str, Callable[[int], Load]]] = [
            ("HTTP, binary tensors", lambda count: wrk(target, "simple", body, json_length, count, seconds)),
            ("gRPC, raw tensors", lambda count: h2load(target, message, count, 2_000 * seconds)),
        ]
        for name, load in paths:
            load(16)  # warm
            for count in CONNECTIONS:
                row = median([load(count) for _ in range(runs)])
                lines.append(
                    f"| {name} | {count} | {row.per_second:,.0f} | {row.p50_us / 1e3:.2f} ms "
                    f"| {row.p99_us / 1e3:.2f} ms | {row.cpu_us:.0f} µs |"
                )
    starts = [start_seconds]
    for _ in range(2):
        with server(ROOT / "model_repository") as target:
            starts.append(target.start_seconds)
    lines += [
        "",
        "| size | measured |",
        "|---|---|",
        f"| start to READY, example repository | {statistics.median(starts):.2f} s |",
        f"| resident memory when READY | {rss:.0f} MB |",
        f"| core install on disk | {install_mb():.0f} MB |",
    ]
    return lines


def engine_table(rounds: int, seconds: int) -> list[str]:
    """An engine-bound model: does the server keep the engine as busy as the best bare loop does?"""
    size = encoder.BERT_BASE
    cores = available_cores()
    with tempfile.TemporaryDirectory() as directory:
        model = encoder.write_repository(Path(directory), size) / "1" / "model.onnx"
        layouts = [(threads, batch) for threads in sorted({1, cores}) for batch in (1, 4, 8, 16)]
        explored = {
            layout: bare_encoder(model, *layout, sequence=size.sequence, seconds=seconds / 3) for layout in layouts
        }
        best = max(explored, key=lambda layout: explored[layout])
        row = np.ones((1, size.sequence), "<i8").tobytes()
        inputs: list[dict[str, object]] = [
            {
                "name": name,
                "datatype": "INT64",
                "shape": [1, size.sequence],
                "parameters": {"binary_data_size": len(row)},
            }
            for name in ("input_ids", "attention_mask")
        ]
        body, json_length = http_body(inputs, row * 2)
        bare, served = [], []
        with server(Path(directory)) as target:
            wrk(target, "encoder", body, json_length, 16, seconds)  # warm
            for _ in range(rounds):
                bare.append(bare_encoder(model, *best, sequence=size.sequence, seconds=seconds))
                served.append(
                    steady_rate(
                        target, "encoder", lambda length: wrk(target, "encoder", body, json_length, 16, length), seconds
                    )
                )
    ratio = statistics.median(mine / theirs for mine, theirs in zip(served, bare, strict=True))
    return [
        f"Transformer encoder, {size.layers} layers, {size.width} wide, sequence {size.sequence}, random weights; "
        "16 clients over HTTP, each with one sequence at a time:",
        "",
        "| | sequences/s |",
        "|---|---|",
        f"| best bare loop ({best[0]} callers, batch {best[1]}) | {statistics.median(bare):.2f} |",
        f"| through the server | {statistics.median(served):.2f} |",
        f"| ratio, median of {rounds} pairs | {ratio:.1%} |",
    ]


def report(arguments: argparse.Namespace) -> str:
    lines = [
        f"{available_cores()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"ONNX Runtime {ort.__version__}; client and server share the cores.",
        "",
    ]
    lines += overhead_table(arguments.runs, arguments.seconds)
    if not arguments.skip_engine:
        lines += ["", *engine_table(arguments.rounds, arguments.engine_seconds)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each load, of which the median counts")
    parser.add_argument("--seconds", type=int, default=4, help="seconds of each load")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of bare loop and server, engine-bound")
    parser.add_argument("--engine-seconds", type=int, default=20, help="seconds of each of these")
    parser.add_argument("--skip-engine", action="store_true", help="leave the engine-bound model out")
    parser.add_argument("--write", action="store_true", help=f"put the report into {REPORT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    text = report(arguments)
    print(text)
    if arguments.write:
        put_into_report("overhead.py", text)


def put_into_report(script: str, text: str) -> None:
    """Replace what stands in docs/performance.md between the two marks of `script`."""
    begin, end = f"<!-- {script} begins -->", f"<!-- {script} ends -->"
    before, found, rest = REPORT.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{REPORT} lacks the marks of {script}")
    REPORT.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    main()

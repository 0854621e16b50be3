"""What the server itself costs: requests per second, latency, server CPU a request and memory, beside the bare engine.

    python benchmarks/overhead.py                     # prints the report, some minutes
    python benchmarks/overhead.py --write             # and puts it into benchmarks/results/tables.md
    python benchmarks/overhead.py --baseline ../old   # another checkout of the source beside this one
    python benchmarks/overhead.py --traffic           # requests that differ as real ones do: a table of its own

Needs ``pip install .[dev]`` and the programs wrk and h2load (Debian: wrk, nghttp2-client). Where the environment
variable TRITON_SERVER_CMD has a command that starts Triton, with ``{repository}``, ``{http_port}``, ``{grpc_port}`` and
``{metrics_port}`` where these belong, Triton is measured beside. Machines are noisy: every figure is the median of
several windows, and the servers that are compared take turns, window by window, in one call.
"""

import argparse
import os
import platform
import re
import shlex
import shutil
import socket
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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
    import orjson
    from onnx import TensorProto, helper

    import encoder
    from modserve.execution.placement import available_cores
    from modserve.form import form
    from modserve.pb import inference as pb
except ModuleNotFoundError as missing:
    raise SystemExit(f"the Python package '{missing.name}' is not installed: pip install '.[dev]'") from None

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "benchmarks" / "results" / "tables.md"
PICTURES = ROOT / "docs" / "performance"
CONNECTIONS = (1, 16, 64)
GRPC_RATE = 20_000
"""h2load counts requests, not seconds: so many for each second of a window.

The first one of a connection waits for TCP and HTTP/2, so they must be far fewer than one in a hundred, or they are the
p99. And the system counts a server's CPU time in hundredths of a second.
"""
STARTS = 5
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What one run of a load generator saw, and what it cost the server."""

    per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    cpu_us: float
    count: int = 0


@dataclass(frozen=True)
class ServerProcess:
    """A running server; what it costs is counted with that of the processes it has started."""

    pid: int
    http: int
    grpc: int
    metrics: int
    start_seconds: float
    ready_rss_mb: float

    def cpu_seconds(self) -> float:
        """A child that ends at this moment is left out."""
        ticks = _cpu_ticks(self.pid)
        for pid in _family(self.pid)[1:]:
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += _cpu_ticks(pid)
        return ticks / _TICK

    def rss_mb(self) -> float:
        return sum(_status_mb(pid, "VmRSS") for pid in _family(self.pid))

    def pss_mb(self) -> float:
        """What processes share counts once."""
        pages = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in _family(self.pid)]
        return sum(float(_find(r"(?m)^Pss:\s+(\d+) kB", page)) for page in pages) / 1024

    def peak_mb(self) -> float:
        """The most of each process, so of several it is an upper bound."""
        return sum(_status_mb(pid, "VmHWM") for pid in _family(self.pid))


def _family(pid: int) -> list[int]:
    """The process and all below it, but for those that end meanwhile."""
    found = [pid]
    for each in found:
        with suppress(FileNotFoundError):
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, task.read_text().split())
    return found


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def _status_mb(pid: int, name: str) -> float:
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


@contextmanager
def server(repository: Path, tree: Path | None = None, options: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """A server on free ports, from its start to READY; of another checkout in the same form, if `tree` is one.

    Its modules' bytecode is kept, as pip keeps that of an installed one.
    """
    command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(repository)]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *options]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    if tree is not None:
        environment["PYTHONPATH"] = str(tree.resolve() / ("build/compiled" if form() == "compiled" else "src"))
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
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
        rss = _status_mb(process.pid, "VmRSS")
        yield ServerProcess(process.pid, ports["HTTP"], ports["gRPC"], ports["metrics"], seconds, rss)
    finally:
        process.terminate()
        process.wait(timeout=60)
        if reading.is_alive():
            reading.join()
        process.stdout.close()


def triton_command(template: str, repository: Path, ports: Sequence[int]) -> list[str]:
    """The words of TRITON_SERVER_CMD, filled in. Raises SystemExit for what cannot be filled in."""
    http_port, grpc_port, metrics_port = ports
    try:
        return [
            word.format(repository=repository, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
            for word in shlex.split(template)
        ]
    except (KeyError, IndexError, ValueError) as error:
        known = "{repository}, {http_port}, {grpc_port} and {metrics_port}"
        raise SystemExit(f"TRITON_SERVER_CMD: {error!r}; the placeholders are {known}") from None


@contextmanager
def triton(template: str, repository: Path, seconds: float = 60.0) -> Iterator[ServerProcess | None]:
    """Triton, from its start to READY; None if it is not ready in time, or ends."""
    ports = _free_ports(3)
    began = time.perf_counter()
    process = subprocess.Popen(
        triton_command(template, repository, ports), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None and not (ready := _ready(ports[0])) and time.perf_counter() < began + seconds:
            time.sleep(0.01)
        if process.poll() is not None or not ready:
            yield None
        else:
            found = ServerProcess(process.pid, ports[0], ports[1], ports[2], time.perf_counter() - began, 0)
            yield replace(found, ready_rss_mb=found.rss_mb())
    finally:
        process.terminate()
        process.wait(timeout=60)


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def tensors(rows: int = 1) -> list[dict[str, object]]:
    return [
        {"name": name, "datatype": "INT32", "shape": [rows, 16], "parameters": {"binary_data_size": 64 * rows}}
        for name in ("INPUT0", "INPUT1")
    ]


def http_body(inputs: list[dict[str, object]], data: bytes) -> tuple[bytes, int]:
    """A request body in the binary form, and the length of its JSON."""
    text = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    return text + data, len(text)


WRK_REPORT = r"""
done = function(summary, latency, requests)
  local at = function(share) return latency:percentile(share) end
  io.write(string.format("percentiles %d %d %d\n", at(50), at(99), at(99.9)))
end
"""


def wrk(
    target: ServerProcess,
    model: str,
    body: bytes,
    json_length: int | None,
    connections: int,
    seconds: int,
    path_end: str = "infer",
) -> Load:
    """Closed-loop clients of HTTP; without `json_length` the body is JSON as a whole."""
    with tempfile.TemporaryDirectory() as directory:
        script, content = Path(directory) / "request.lua", Path(directory) / "body"
        content.write_bytes(body)
        length = "" if json_length is None else f'wrk.headers["Inference-Header-Content-Length"] = "{json_length}"\n'
        script.write_text(
            f'wrk.method = "POST"\nwrk.body = io.open("{content}", "rb"):read("*a")\n'
            f'wrk.headers["Content-Type"] = "application/json"\n{length}{WRK_REPORT}'
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(script)]
        before = target.cpu_seconds()
        text = run_program([*command, f"http://127.0.0.1:{target.http}/v2/models/{model}/{path_end}"])
        return read_wrk(text, target.cpu_seconds() - before)


def read_wrk(text: str, cpu_seconds: float) -> Load:
    """What wrk has printed. Raises SystemExit if requests have failed."""
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"wrk saw failures:\n{text}")
    count = int(_find(r"(\d+) requests in", text))
    p50, p99, p999 = map(float, _find(r"percentiles (\d+ \d+ \d+)", text).split())
    return Load(
        float(_find(r"Requests/sec:\s+([\d.]+)", text)), p50, p99, p999, cpu_seconds / max(1, count) * 1e6, count
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
    """Closed-loop clients over gRPC, each with one call at a time; `message` is that of a ModelInferRequest."""
    with tempfile.TemporaryDirectory() as directory:
        body, log = Path(directory) / "message", Path(directory) / "log"
        body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
        command = ["h2load", "-n", str(requests), "-c", str(connections), "-m", "1", "-d", str(body)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
        before = target.cpu_seconds()
        text = run_program([*command, f"http://127.0.0.1:{target.grpc}/{pb.SERVICE}/ModelInfer"])
        cpu = target.cpu_seconds() - before
        times = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    if f" {requests} succeeded" not in text:
        raise SystemExit(f"h2load saw failures:\n{text}")
    rate = float(_find(r"finished in \S+, ([\d.]+) req/s", text))
    p50, p99, p999 = (quantile(times, share) for share in (0.5, 0.99, 0.999))
    return Load(rate, p50, p99, p999, cpu / requests * 1e6, requests)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values: the one below which this share of them is."""
    return values[min(len(values) - 1, int(len(values) * share))]


def missing_programs(which: Callable[[str], str | None] = shutil.which) -> str:
    """One line that says what to install; empty if all is there."""
    packages = {"wrk": "wrk", "h2load": "nghttp2-client"}
    missing = [name for name in packages if which(name) is None]
    if not missing:
        return ""
    needed = " ".join(packages[name] for name in missing)
    return f"not installed: {', '.join(missing)} (Debian: apt-get install {needed})"


def run_program(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"no {pattern!r} in:\n{text}")
    return match[match.lastindex or 0]


def median(loads: Sequence[Load]) -> Load:
    """The median of each figure, and the sum of the counts."""
    return Load(
        statistics.median(load.per_second for load in loads),
        statistics.median(load.p50_us for load in loads),
        statistics.median(load.p99_us for load in loads),
        statistics.median(load.p999_us for load in loads),
        statistics.median(load.cpu_us for load in loads),
        sum(load.count for load in loads),
    )


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


LARGE = (1, 3, 400, 1000)
"""The shape of an image of 4.8 MB in FP32."""

_PYTHON_MODELS = {
    "simple": (
        'get("INPUT0"), get("INPUT1")',
        '[pb_utils.Tensor("OUTPUT0", tensors[0] + tensors[1]), pb_utils.Tensor("OUTPUT1", tensors[0] - tensors[1])]',
    ),
    "large": ('get("INPUT0"),', '[pb_utils.Tensor("OUTPUT0", tensors[0])]'),
}
"""For a Triton without an engine for ONNX: a model's inputs, and what it gives back."""

_PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            get = lambda name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            tensors = ({inputs})
            responses.append(pb_utils.InferenceResponse({outputs}))
        return responses
"""


def write_repository(directory: Path, python: bool = False) -> Path:
    """`simple` of the example repository, and `large`, which gives back an image; as ONNX files or as Python models."""
    shutil.copytree(ROOT / "model_repository" / "simple", directory / "simple")
    (directory / "large" / "1").mkdir(parents=True)
    tensor = "data_type: TYPE_FP32 dims: [ " + ", ".join(map(str, LARGE)) + " ]"
    (directory / "large" / "config.pbtxt").write_text(
        'name: "large"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 0\n'
        f'input [ {{ name: "INPUT0" {tensor} }} ]\noutput [ {{ name: "OUTPUT0" {tensor} }} ]\n'
    )
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, LARGE) for name in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "large", values[:1], values[1:])
    opset = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), directory / "large" / "1" / "model.onnx")
    if python:
        for name, (inputs, outputs) in _PYTHON_MODELS.items():
            config = directory / name / "config.pbtxt"
            config.write_text(re.sub(r'(?m)^platform: *"[^"]*"', 'backend: "python"', config.read_text()))
            (directory / name / "1" / "model.onnx").unlink()
            (directory / name / "1" / "model.py").write_text(_PYTHON_MODEL.format(inputs=inputs, outputs=outputs))
    return directory


@dataclass
class Contender:
    """A server that is measured, and what was measured of it: by path and connections, one `Load` a window."""

    name: str
    target: ServerProcess
    loads: dict[tuple[str, int], list[Load]] = field(default_factory=dict)
    after_mb: float = 0.0
    """Resident after the large requests."""


@contextmanager
def contenders(arguments: argparse.Namespace, directory: Path) -> Iterator[list[Contender]]:
    """This source, and what it is compared with, all running: those whose turn it is not have nothing to do."""
    with ExitStack() as stack:
        repository = write_repository(directory / "onnx")
        trees = {"modserve": ROOT, "baseline": arguments.baseline} if arguments.baseline else {"modserve": None}
        found = [_contender(stack, name, partial(server, repository, tree)) for name, tree in trees.items()]
        if template := os.environ.get("TRITON_SERVER_CMD"):
            found.append(_triton_contender(stack, template, repository, directory))
        yield found


def _contender(
    stack: ExitStack, name: str, start: Callable[[], AbstractContextManager[ServerProcess | None]]
) -> Contender:
    """Started several times, for a usual time to READY and memory, and left running the last time."""
    starts = []
    for _ in range(STARTS - 1):
        with start() as started:
            starts.append(_ready_again(name, started))
    starts.append(_ready_again(name, stack.enter_context(start())))
    seconds = statistics.median(each.start_seconds for each in starts)
    memory = statistics.median(each.ready_rss_mb for each in starts)
    return Contender(name, replace(starts[-1], start_seconds=seconds, ready_rss_mb=memory))


def _ready_again(name: str, started: ServerProcess | None) -> ServerProcess:
    if started is None:
        raise SystemExit(f"{name} did not become ready again")
    return started


def _triton_contender(stack: ExitStack, template: str, repository: Path, directory: Path) -> Contender:
    """With the same files, or with models in Python where it cannot load those."""
    python = write_repository(directory / "python", python=True)
    for name, models in (("Triton", repository), ("Triton, Python models", python)):
        with triton(template, models) as started:
            if started is None:
                continue
        return _contender(stack, name, partial(triton, template, models))
    raise SystemExit(
        "TRITON_SERVER_CMD: the server did not become ready, neither with ONNX files nor with Python models"
    )


@dataclass(frozen=True)
class Way:
    """A way through the server: `load` makes it busy with so many connections for one window."""

    name: str
    connections: Sequence[int]
    load: Callable[[ServerProcess, int], Load]


def paths(seconds: int) -> list[Way]:
    ones = np.ones((1, 16), "<i4").tobytes()
    body, json_length = http_body(tensors(), ones * 2)
    names = ("INPUT0", "INPUT1")
    text = orjson.dumps(
        {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in names]}
    )
    tensor = pb.ModelInferRequest.InferInputTensor
    message = pb.ModelInferRequest(
        model_name="simple",
        inputs=[tensor(name=name, datatype="INT32", shape=[1, 16]) for name in names],
        raw_input_contents=[ones, ones],
    ).SerializeToString()
    image = np.ones(LARGE, "<f4").tobytes()
    large: dict[str, object] = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": list(LARGE),
        "parameters": {"binary_data_size": len(image)},
    }
    large_body, large_length = http_body([large], image)
    large_message = pb.ModelInferRequest(
        model_name="large",
        inputs=[tensor(name="INPUT0", datatype="FP32", shape=LARGE)],
        raw_input_contents=[image],
    ).SerializeToString()
    return [
        Way(
            "HTTP, binary tensors", CONNECTIONS, lambda to, count: wrk(to, "simple", body, json_length, count, seconds)
        ),
        Way("HTTP, JSON", CONNECTIONS, lambda to, count: wrk(to, "simple", text, None, count, seconds)),
        Way("gRPC, raw tensors", CONNECTIONS, lambda to, count: h2load(to, message, count, GRPC_RATE * seconds)),
        Way(
            LARGE_PATH,
            (LARGE_CONNECTIONS,),
            lambda to, count: wrk(to, "large", large_body, large_length, count, seconds),
        ),
        Way(LARGE_GRPC_PATH, (LARGE_CONNECTIONS,), lambda to, count: h2load(to, large_message, count, 200 * seconds)),
    ]


LARGE_PATH, LARGE_GRPC_PATH = "HTTP, 4.8 MB in and out", "gRPC, 4.8 MB in and out"
LARGE_CONNECTIONS = 4


def measure(servers: Sequence[Contender], ways: Sequence[Way], runs: int, large_requests: int) -> None:
    """Window by window in turns, the first of one round being the last of the next."""
    for way in ways:
        for count in way.connections:
            for each in servers:
                way.load(each.target, count)  # warm
            for run in range(runs):
                for each in servers if run % 2 == 0 else reversed(servers):
                    each.loads.setdefault((way.name, count), []).append(way.load(each.target, count))
    for way in ways:
        for each in servers:
            loads = each.loads[way.name, way.connections[0]]
            while way.name == LARGE_PATH and sum(load.count for load in loads) < large_requests:
                loads.append(way.load(each.target, way.connections[0]))
    for each in servers:
        each.after_mb = each.target.rss_mb()


def loads_table(servers: Sequence[Contender], bare_us: float) -> list[str]:
    lines = [
        "| path | connections | server | requests/s | p50 | p99 | p99.9 | server CPU a request |",
        "|---|---|---|---|---|---|---|---|",
        f"| bare ONNX Runtime loop, one thread | - | - | {1e6 / bare_us:,.0f} | - | - | - | {bare_us:.0f} µs |",
    ]
    for path, count in servers[0].loads:
        for each in servers:
            row = median(each.loads[path, count])
            times = " | ".join(f"{value / 1e3:.2f} ms" for value in (row.p50_us, row.p99_us, row.p999_us))
            lines.append(f"| {path} | {count} | {each.name} | {row.per_second:,.0f} | {times} | {row.cpu_us:,.0f} µs |")
    return lines


def ratio_table(servers: Sequence[Contender]) -> list[str]:
    """The first server's figures over those of each other, window by window; nothing if there is no other."""
    lines: list[str] = []
    mine = servers[0]
    for other in servers[1:]:
        lines += [
            "",
            f"{mine.name} / {other.name}, median of the windows (least to most):",
            "",
            "| path | connections | CPU a request | p99 | requests/s |",
            "|---|---|---|---|---|",
        ]
        for (path, count), loads in mine.loads.items():
            pairs = list(zip(loads, other.loads[path, count], strict=False))
            columns = (
                _ratio([mine_.cpu_us / theirs.cpu_us for mine_, theirs in pairs]),
                _ratio([mine_.p99_us / theirs.p99_us for mine_, theirs in pairs]),
                _ratio([mine_.per_second / theirs.per_second for mine_, theirs in pairs]),
            )
            lines.append(f"| {path} | {count} | {' | '.join(columns)} |")
    return lines


def _ratio(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def memory_table(servers: Sequence[Contender]) -> list[str]:
    lines = [
        "",
        f"| server | start to READY, median of {STARTS} | resident when READY | at the peak "
        "| after the requests of 4.8 MB |",
        "|---|---|---|---|---|",
    ]
    for each in servers:
        target = each.target
        count = sum(load.count for load in each.loads.get((LARGE_PATH, LARGE_CONNECTIONS), ()))
        lines.append(
            f"| {each.name} | {target.start_seconds:.2f} s | {target.ready_rss_mb:.0f} MB | {target.peak_mb():.0f} MB "
            f"| {each.after_mb:.0f} MB ({count:,} of them) |"
        )
    return lines


def overhead_table(arguments: argparse.Namespace) -> list[str]:
    bare = statistics.median(bare_simple(1.0) for _ in range(3))
    with tempfile.TemporaryDirectory() as directory, contenders(arguments, Path(directory)) as servers:
        measure(servers, paths(arguments.seconds), arguments.runs, arguments.large_requests)
        return [*loads_table(servers, bare), *ratio_table(servers), *memory_table(servers)]


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
    lines += overhead_table(arguments)
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
    parser.add_argument("--baseline", type=Path, help="another checkout, whose server is measured beside this one's")
    parser.add_argument("--large-requests", type=int, default=2_000, help="at least so many requests of 4.8 MB")
    parser.add_argument(
        "--traffic",
        nargs="*",
        metavar="KIND",
        help="requests that differ as real ones do, of these kinds (letters: benchmarks/results/tables.md) or all",
    )
    arguments = parser.parse_args()
    if missing := missing_programs():
        raise SystemExit(missing)
    if arguments.baseline and not (arguments.baseline / "src" / "modserve").is_dir():
        raise SystemExit(f"--baseline: {arguments.baseline} has no src/modserve")
    if arguments.traffic is not None:
        import traffic  # which imports this module

        text, mark = traffic.report(arguments), "overhead.py --traffic"
    else:
        text, mark = report(arguments), "overhead.py"
    print(text)
    if arguments.write:
        put_into_report(mark, text)
        if arguments.traffic is not None:
            (PICTURES / "traffic.svg").write_text(traffic.picture(text.splitlines()), encoding="utf-8")


def put_into_report(script: str, text: str, report: Path = REPORT) -> None:
    """Replace what stands in benchmarks/results/tables.md, or in another page, between the two marks of `script`."""
    begin, end = f"<!-- {script} begins -->", f"<!-- {script} ends -->"
    before, found, rest = report.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{report} lacks the marks of {script}")
    report.write_text(f"{before}{begin}\n{text}\n\n{stamp()}\n{end}{after}")


def stamp() -> str:
    """When a table was measured, on which processor, and by which command, which says the form if it is compiled."""
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    compiled = "PYTHONPATH=$(python scripts/compiled_form.py --kept) " if form() == "compiled" else ""
    return f"*{date.today()}, {_processor()}: `{compiled}{shlex.join(words)}`*"


def _processor() -> str:
    with suppress(OSError):
        if line := re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return line[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()

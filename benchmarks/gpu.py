"""What a GPU brings: models on it and on the CPU, one and two instances, tensors on the wire and in shared memory.

    python benchmarks/gpu.py                          # some ten minutes; writes gpu.json and gpu.md
    python benchmarks/gpu.py --output results/h100    # writes results/h100.json and results/h100.md
    python benchmarks/gpu.py --device cpu --small     # without a GPU, to try the benchmark itself

Needs a GPU build of ONNX Runtime (docs/engines/gpu.md), and nvidia-ml-py for the GPU's own figures; TorchScript is
measured where PyTorch can use the GPU. The models are made on the spot. Exit codes: 1 for answers of the GPU that
differ from the CPU's, or models that run elsewhere; 3 where there is no GPU; 4 where the engine cannot use it.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from gpu_clients import Window, WrongResponseError, call, client_processes, exchange, request_bytes, window
from gpu_memory import Gpu, NoGpuError, Region, SystemRegion
from gpu_models import (
    FULL,
    INPUT,
    OUTPUT,
    SMALL,
    BenchmarkModel,
    Sizes,
    Weights,
    difference,
    models,
    write_repository,
)
from gpu_report import Report, Row, faults, line, machine, write

DIFFERENT, NO_GPU, NO_ENGINE = 1, 3, 4
"""Exit codes."""
WIRE, SYSTEM, CUDA = "wire", "system shared memory", "CUDA shared memory"
SHARED = {"input": "benchmark-input", "output": "benchmark-output"}
SAMPLE_S = 0.25
START_S = 300.0
"""PyTorch may compile kernels for a new GPU when it first sees it."""


@dataclass(frozen=True)
class Stage:
    """One server: every model with so many instances of a kind."""

    kind: str
    instances: int
    ways: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.kind.removeprefix('KIND_')} × {self.instances}"


@dataclass(frozen=True)
class Serving:
    http: int
    metrics: int


def stages(device: str) -> list[Stage]:
    """The CPU first: its answers are what the others are compared with."""
    kind, ways = ("KIND_GPU", (WIRE, SYSTEM, CUDA)) if device == "gpu" else ("KIND_CPU", (WIRE, SYSTEM))
    return [Stage("KIND_CPU", 1, (WIRE,)), *(Stage(kind, instances, ways) for instances in (1, 2))]


# ---- The server


@contextmanager
def serving(repository: Path, log: Path) -> Iterator[Serving]:
    """Raises SystemExit with the end of its log if it does not start."""
    command = [sys.executable, "-m", "modserve", "serve", f"--model-repository={repository}", "--allow-client-shm=true"]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--metrics-interval-ms={int(SAMPLE_S * 1e3)}"]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    reading = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        ports: dict[str, int] = {}
        for line in process.stdout:
            if match := re.match(r"(\w+) listening on .*:(\d+)", line):
                ports[match[1]] = int(match[2])
            if len(ports) == 3:
                break
        reading.start()
        if len(ports) < 3 or not _ready(process, ports["HTTP"]):
            raise SystemExit(f"the server has not started:\n{log.read_text(errors='replace')[-2000:]}")
        yield Serving(ports["HTTP"], ports["metrics"])
    finally:
        process.terminate()
        process.wait(60)
        if reading.is_alive():
            reading.join()
        process.stdout.close()


def _ready(process: "subprocess.Popen[str]", port: int) -> bool:
    limit = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < limit:
        try:
            call(port, "/v2/health/ready")
        except WrongResponseError:
            time.sleep(0.05)
        else:
            return True
    return False


class GpuSampler:
    """Reads the server's metrics of GPUs on a thread, as long as it is entered."""

    def __init__(self, metrics_port: int) -> None:
        self._port = metrics_port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._samples: list[Mapping[str, float]] = []

    def __enter__(self) -> "GpuSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._samples.append(gpu_figures(call(self._port, "/metrics").decode()))

    def mean_utilization(self) -> float | None:
        values = [each["nv_gpu_utilization"] for each in self._samples if "nv_gpu_utilization" in each]
        return float(np.mean(values)) if values else None

    def most_memory_mb(self) -> float | None:
        values = [each["nv_gpu_memory_used_bytes"] for each in self._samples if "nv_gpu_memory_used_bytes" in each]
        return max(values) / 1e6 if values else None


def gpu_figures(page: str) -> dict[str, float]:
    """By metric: the largest of all GPUs."""
    figures: dict[str, float] = {}
    for name, value in re.findall(r"(?m)^(nv_gpu_\w+)\{[^}]*\} (\S+)$", page):
        figures[name] = max(float(value), figures.get(name, 0.0))
    return figures


# ---- The ways of tensors


def wire_request(model: BenchmarkModel) -> bytes:
    data = model.request_array().tobytes()
    return _request(model, {"binary_data_size": len(data)}, {"binary_data": True}, data)


def shared_request(model: BenchmarkModel) -> bytes:
    """Of tensors in the regions `SHARED`."""
    place = {"shared_memory_region": SHARED["input"], "shared_memory_byte_size": model.input_bytes}
    target = {"shared_memory_region": SHARED["output"], "shared_memory_byte_size": model.output_bytes}
    return _request(model, place, target, b"")


def _request(
    model: BenchmarkModel, of_input: Mapping[str, object], of_output: Mapping[str, object], data: bytes
) -> bytes:
    head = {
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [1, *model.item], "parameters": of_input}],
        "outputs": [{"name": OUTPUT, "parameters": of_output}],
    }
    text = json.dumps(head).encode()
    return request_bytes(model.name, text + data, len(text))


@contextmanager
def registered(server: Serving, regions: Mapping[str, Region]) -> Iterator[None]:
    """Regions by their names, known to the server."""
    with ExitStack() as stack:
        for name, region in regions.items():
            path = f"/v2/{region.kind}/region/{name}"
            call(server.http, f"{path}/register", region.registration)
            stack.callback(call, server.http, f"{path}/unregister", {})
        yield


@contextmanager
def prepared(
    way: str, model: BenchmarkModel, server: Serving, gpu: Gpu | None
) -> Iterator[tuple[bytes, Region | None]]:
    """A request by one of the ways, and the region where its answer will be."""
    if way == WIRE:
        yield wire_request(model), None
        return
    with ExitStack() as stack:
        regions: dict[str, Region] = {}
        for role, size in (("input", model.input_bytes), ("output", model.output_bytes)):
            region: Region = SystemRegion(size) if gpu is None or way == SYSTEM else gpu.allocate(size)
            stack.callback(region.close)
            regions[SHARED[role]] = region
        regions[SHARED["input"]].write(model.request_array().tobytes())
        stack.enter_context(registered(server, regions))
        yield shared_request(model), regions[SHARED["output"]]


def answer(server: Serving, model: BenchmarkModel, request: bytes, region: Region | None) -> Weights:
    with socket.create_connection(("127.0.0.1", server.http), timeout=300) as connection:
        head, body = exchange(connection, request)
    raw = body[int(head["inference-header-content-length"]) :] if region is None else region.read(0, model.output_bytes)
    return np.frombuffer(raw, np.float32).reshape(1, model.features)


# ---- Measuring


def measure(
    arguments: argparse.Namespace, sizes: Sizes, described: Sequence[BenchmarkModel], gpu: Gpu | None
) -> Report:
    report = Report([], {}, {})
    expected: dict[str, Weights] = {}
    with tempfile.TemporaryDirectory() as home, client_processes(max(arguments.clients)) as pool:
        for number, stage in enumerate(stages(arguments.device)):
            folder = Path(home) / str(number)
            repository = write_repository(folder / "models", described, sizes, stage.kind, stage.instances)
            with serving(repository, folder / "log") as server:
                for model in described:
                    said = json.loads(call(server.http, f"/v2/models/{model.name}/engine"))
                    report.engines[f"{stage.label}, {model.name}"] = said
                    for way in stage.ways:
                        measure_way(arguments, report, expected, stage, way, model, server, gpu, pool)
    return report


def measure_way(
    arguments: argparse.Namespace,
    report: Report,
    expected: dict[str, Weights],
    stage: Stage,
    way: str,
    model: BenchmarkModel,
    server: Serving,
    gpu: Gpu | None,
    pool: ProcessPoolExecutor,
) -> None:
    with prepared(way, model, server, gpu) as (request, region):
        array = answer(server, model, request, region)
        share = difference(expected.setdefault(model.weights, array), array)
        report.differences[f"{stage.label}, {way}, {model.name}"] = share
        for clients in arguments.clients:
            window(pool, server.http, request, clients, arguments.seconds / 4)  # engines adapt to new sizes of batches
            with GpuSampler(server.metrics) as sampler:
                seen = window(pool, server.http, request, clients, arguments.seconds)
            report.rows.append(row(model, stage, way, clients, seen, sampler))
            print(line(report.rows[-1]), file=sys.stderr, flush=True)


def row(model: BenchmarkModel, stage: Stage, way: str, clients: int, seen: Window, sampler: GpuSampler) -> Row:
    figures = seen.requests_per_second, seen.p50_ms, seen.p99_ms
    return Row(model.name, stage.label, way, clients, *figures, sampler.mean_utilization(), sampler.most_memory_mb())


# ---- The command


def torch_serves(device: str) -> bool:
    """Whether PyTorch is there and can use the device."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return device == "cpu" or bool(torch.cuda.is_available())


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--output", type=Path, default=Path("gpu"), help="path of the files, without suffix")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--small", action="store_true", help="models of a few KB")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = arguments_of(argv)
    gpu = None
    if arguments.device == "gpu":
        try:
            gpu = Gpu()
        except NoGpuError as error:
            print(f"no GPU to measure: {error}; --device cpu tries the benchmark without one", file=sys.stderr)
            return NO_GPU
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            text = (
                f"onnxruntime {ort.__version__} has no CUDAExecutionProvider; docs/engines/gpu.md says what to install"
            )
            print(text, file=sys.stderr)
            return NO_ENGINE
    sizes = SMALL if arguments.small else FULL
    report = measure(arguments, sizes, models(sizes, torch=torch_serves(arguments.device)), gpu)
    result: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/gpu.py", *(sys.argv[1:] if argv is None else argv)]),
        "machine": machine(gpu),
    }
    for file in write(arguments.output, result, report):
        print(file)
    problems = faults(report, arguments.device)
    for problem in problems:
        print(problem, file=sys.stderr)
    return DIFFERENT if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""What workers cost and gain: memory of the server, and requests per second by workers.

    python benchmarks/workers.py                       # prints the tables, some 90 seconds
    python benchmarks/workers.py --write               # and puts them into benchmarks/results/tables.md
    python benchmarks/workers.py --workers 1 2 --seconds 1 --rounds 1

Needs `pip install .[dev]`, and the programs wrk and h2load (Debian: wrk, nghttp2-client). modserve is measured compiled
where `--compiled` (default: build/compiled) holds that form. Memory is the proportional set size of /proc, so that what
processes share counts once.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

import process_tree
from modserve.execution.placement import available_cores
from overhead import missing_programs, put_into_report
from side_by_side.dialects import BINARY, GRPC, JSON, V2_BINARY, V2_GRPC, V2_JSON
from side_by_side.loads import Target, load, probe
from side_by_side.models import MODELS, ROOT, write_files, write_repository
from side_by_side.running import free_ports, ready

PAGE = ROOT / "benchmarks" / "results" / "tables.md"
WIDTH = 4096
"""Of the two square FP32 matrices of the large model: 128 MiB."""
WAYS = {(BINARY, "simple"): V2_BINARY, (GRPC, "simple"): V2_GRPC, (JSON, "mlp"): V2_JSON}
"""Protocols and models. 784 numbers as JSON (`mlp`) cost the server much and the client little: clients leave the
workers nearly all of the cores."""
READY_S = 60.0


@dataclass(frozen=True)
class Serving:
    pid: int
    http: int
    grpc: int

    @property
    def memory_mb(self) -> float:
        """Of the workers and, if there are several, of the supervisor."""
        return process_tree.pss_mb(self.pid)


@contextmanager
def serving(repository: Path, workers: int, tree: Path) -> Iterator[Serving]:
    """modserve from `tree`, once all workers are ready."""
    http, grpc, metrics = free_ports(3)
    command = [sys.executable, "-m", "modserve", "serve", f"--model-repository={repository}", f"--workers={workers}"]
    command += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(tree)},
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + READY_S
        while not ready(http):
            if process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"the server has not started: {' '.join(command)}")
            time.sleep(0.02)
        yield Serving(process.pid, http, grpc)
    finally:
        process_tree.end(process)


# ---- Memory


def large_model() -> onnx.ModelProto:
    """Two products of a row with a matrix."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((random.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32), f"weight{number}")
        for number in range(2)
    ]
    nodes = [
        helper.make_node("MatMul", ["INPUT", "weight0"], ["middle"]),
        helper.make_node("MatMul", ["middle", "weight1"], ["OUTPUT"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("INPUT", "OUTPUT")]
    graph = helper.make_graph(nodes, "large", tensors[:1], tensors[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _version(repository: Path) -> Path:
    version = repository / "large" / "1"
    version.mkdir(parents=True)
    return version


def _write_none(repository: Path) -> None:
    repository.mkdir()


def _write_onnx(repository: Path) -> None:
    onnx.save(large_model(), _version(repository) / "model.onnx")


def _write_external(repository: Path) -> None:
    onnx.save(large_model(), _version(repository) / "model.onnx", save_as_external_data=True, location="weights")


def _write_ir(repository: Path) -> None:
    file = _version(repository) / "model.xml"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "model.onnx"
        onnx.save(large_model(), source)
        openvino.save_model(openvino.convert_model(source), file, compress_to_fp16=False)


REPOSITORIES: dict[str, Callable[[Path], None]] = {
    "no model": _write_none,
    "ONNX Runtime, weights in the model's file": _write_onnx,
    "ONNX Runtime, external data": _write_external,
    "OpenVINO, IR": _write_ir,
}


def memory_table(home: Path, counts: Sequence[int], tree: Path) -> list[str]:
    lines = ["| MB | " + " | ".join(map(_workers, counts)) + " |", "|---" + "|--:" * len(counts) + "|"]
    for number, (name, write) in enumerate(REPOSITORIES.items()):
        repository = home / f"memory{number}"
        write(repository)
        cells = []
        for workers in counts:
            say(f"memory: {name}, {_workers(workers)}")
            with serving(repository, workers, tree) as server:
                cells.append(f"{server.memory_mb:,.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


# ---- Requests


def rate_table(options: argparse.Namespace, home: Path, tree: Path) -> list[str]:
    """Servers with each number of workers run all the time, and take turns window by window."""
    models, counts = [MODELS[name] for name in dict.fromkeys(name for _, name in WAYS)], options.workers
    write_files(home / "files", models)
    repository = write_repository(home / "models", home / "files", models)
    lines = ["| way | model | connections | " + " | ".join(map(_workers, counts)) + " |"]
    lines.append("|---" * (len(counts) + 3) + "|")
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(repository, workers, tree)) for workers in counts]
        response = _response_bytes(servers[0])
        for (way, model), dialect in WAYS.items():
            request = dialect.write(MODELS[model])
            targets = [Target(each.pid, each.grpc if way == GRPC else each.http, way, response) for each in servers]
            for count in options.connections:
                seen: list[list[tuple[float, float]]] = [[] for _ in servers]
                near = [probe(target, request, count) if way == GRPC else 0.0 for target in targets]
                for number in range(options.rounds):
                    order = list(range(len(servers)))
                    for index in order if number % 2 == 0 else order[::-1]:
                        window = load(targets[index], request, count, options.seconds, near[index])
                        if window.errors:
                            raise SystemExit(f"{way}: {window.errors} requests have failed")
                        seen[index].append((window.per_second, window.cpu_us))
                cells = [
                    f"{statistics.median(rate for rate, _ in each):,.0f}/s, "
                    f"{statistics.median(cpu for _, cpu in each):,.0f} µs"
                    for each in seen
                ]
                say(f"{way}, {model}, {count} connections: {'; '.join(cells)}")
                lines.append(f"| {way} | `{model}` | {count} | {' | '.join(cells)} |")
    return lines


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _response_bytes(server: Serving) -> int:
    """The length of a right response's message over gRPC."""
    import grpc

    request = V2_GRPC.write(MODELS["simple"])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(request.path, request_serializer=None, response_deserializer=None)
        return len(call(request.body, timeout=10.0))


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def report(options: argparse.Namespace) -> str:
    tree = options.compiled.resolve() if options.compiled.is_dir() else ROOT / "src"
    form = "compiled" if options.compiled.is_dir() else "interpreted"
    with tempfile.TemporaryDirectory(prefix="workers-") as directory:
        home = Path(directory)
        loads = rate_table(options, home, tree)
        memory = memory_table(home, options.workers, tree)
    shared = f"{available_cores()} cores, which clients and servers share"
    windows = f"medians of {options.rounds} windows of {options.seconds} s"
    megabytes = 2 * WIDTH * WIDTH * 4 // 2**20
    lines = [
        f"Requests/s, and CPU of the server for each; {form}, {shared}; {windows}:",
        "",
        *loads,
        "",
        f"Memory (proportional set size) with no model, and with one of {megabytes} MiB:",
        "",
        *memory,
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--connections", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--seconds", type=int, default=2, help="of each window; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="windows of each cell; default: %(default)s")
    parser.add_argument("--compiled", type=Path, default=ROOT / "build" / "compiled", help="modserve's compiled form")
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/results/tables.md")
    options = parser.parse_args()
    if missing := missing_programs():
        raise SystemExit(missing)
    text = report(options)
    print(text)
    if options.write:
        put_into_report("workers.py", text, PAGE)


if __name__ == "__main__":
    main()

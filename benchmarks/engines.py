"""How fast each engine runs the same model: in a bare loop, through the server, and with more and more clients.

    python benchmarks/engines.py                  # prints the report; some 40 minutes
    python benchmarks/engines.py --write          # and puts it, its figures (JSON) and its picture into the docs
    python benchmarks/engines.py --only loops --models encoder --seconds 2
    python benchmarks/engines.py --only precisions    # real networks at fp32, bf16 and int8; see precisions.py

Two text encoders with random weights, the same for all engines: `encoder` (4 layers, 256 wide) and `bert` (BERT base).
Every engine has a server of its own with one model, whose threads are all cores. The servers take turns, window by
window, so that what disturbs the machine disturbs all of them. Needs wrk, and the packages openvino and torch.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

import overhead
import precisions
from encoder import BERT_BASE, EncoderSize, write_model
from encoder_torch import write_torchscript
from line_chart import Lines, draw
from modserve.execution.placement import available_cores
from overhead import ROOT, Load, ServerProcess
from real_encoder import MIXED, Ids

PICTURE = ROOT / "docs" / "performance" / "engines.svg"
FIGURES = ROOT / "benchmarks" / "results" / "engines.json"
LONGEST = 128
SMALL = EncoderSize(layers=4, width=256, heads=4, feed_forward=1024, sequence=LONGEST)
SIZES: Mapping[str, EncoderSize] = {"encoder": SMALL, "bert": BERT_BASE}
CLIENTS = (1, 2, 4, 8, 16, 32)
SUMMARY_CLIENTS = (1, 8, 32)
BUSY = 16
"""The clients of the comparison with a bare loop."""
MOST_ROWS = 16
TEXTS = 256
PADDINGS = {"client": f"clients pad to {LONGEST}", "server": "the server pads"}


@dataclass(frozen=True)
class Variant:
    """An engine with a precision, as a model's configuration asks for it."""

    name: str
    backend: str
    filename: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    engine: str = ""
    """In engine_loop.py; empty: it has no loop to be compared with."""
    precision: str = "fp32"
    busy: Mapping[str, str] = field(default_factory=dict)
    """More parameters for a server that is always busy, which the comparison with a loop is about."""
    instances: int = 0
    """0: as many as the backend makes by itself."""


_STREAMS = {"NUM_STREAMS": str(available_cores())}
EAGER, ORT, AUTO = "PyTorch eager fp32", "ONNX Runtime fp32", "auto, tolerance 0.05"
VARIANTS = (
    Variant(EAGER, "pytorch", "model.pt", {"DISABLE_OPTIMIZED_EXECUTION": "true"}, "pytorch"),
    Variant("PyTorch bf16", "pytorch", "model.pt", {"PRECISION": "bf16"}, "pytorch", "bf16"),
    Variant(ORT, "onnxruntime", "model.onnx", {}, "onnxruntime"),
    Variant("OpenVINO fp32", "openvino", "model.onnx", {"INFERENCE_PRECISION_HINT": "f32"}, "openvino", busy=_STREAMS),
    Variant(
        "OpenVINO bf16",
        "openvino",
        "model.onnx",
        {"INFERENCE_PRECISION_HINT": "bf16"},
        "openvino",
        "bf16",
        _STREAMS,
    ),
    Variant(AUTO, "auto", "model.onnx", {"tolerance": "0.05"}),
)

CONFIG = """
backend: "{backend}"
default_model_filename: "{filename}"
max_batch_size: {rows}
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output {{ name: "embedding" data_type: TYPE_FP32 dims: [ {width} ] }}
dynamic_batching {{ }}
parameters {{ key: "padding.axis.input_ids" value {{ string_value: "0" }} }}
parameters {{ key: "padding.mask" value {{ string_value: "attention_mask" }} }}
parameters {{ key: "padding.multiple_of" value {{ string_value: "8" }} }}
"""


ONE_THREAD: Mapping[str, Mapping[str, str]] = {
    "onnxruntime": {"intra_op_thread_count": "1"},
    "pytorch": {"INTRA_OP_THREAD_COUNT": "1"},
    "openvino": {"INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1"},
}


@dataclass
class Served:
    model: str
    variant: Variant
    server: ServerProcess
    file: Path


@dataclass(frozen=True)
class Point:
    """One window: a model on an engine, with so many clients."""

    model: str
    engine: str
    padding: str
    clients: int
    texts_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Of the server's processes, for a text."""


def write_repository(directory: Path, name: str, variant: Variant, files: Mapping[str, Path]) -> Path:
    """A repository with the one model `name`; returns the model's file."""
    folder = directory / name / "1"
    folder.mkdir(parents=True)
    size = SIZES[name]
    text = CONFIG.format(backend=variant.backend, filename=variant.filename, rows=MOST_ROWS, width=size.width)
    for key, value in variant.parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    if variant.instances:
        text += f"instance_group {{ count: {variant.instances} }}\n"
    (directory / name / "config.pbtxt").write_text(text)
    file = folder / variant.filename
    os.link(files[variant.filename], file)
    return file


@contextmanager
def serving(models: Sequence[str], variants: Sequence[Variant]) -> Iterator[list[Served]]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = []
        for model in models:
            files = {name: home / f"{model}-{name}" for name in ("model.onnx", "model.pt")}
            write_model(files["model.onnx"], SIZES[model], seed=0)
            write_torchscript(files["model.pt"], SIZES[model], seed=0)
            for number, variant in enumerate(variants):
                repository = home / f"{model}-{number}"
                file = write_repository(repository, model, variant, files)
                served.append(Served(model, variant, stack.enter_context(overhead.server(repository)), file))
        yield served


def bodies(model: str, sizes: Sequence[int], padded_to: int | None) -> list[tuple[bytes, int]]:
    """A request for each text of so many tokens: as it is, for the server to pad, or padded by the client."""
    random = np.random.default_rng(1)
    requests = []
    for size in sizes:
        ids = random.integers(0, SIZES[model].vocabulary, size)
        tensors: dict[str, Ids] = {"input_ids": ids}
        if padded_to is not None:
            mask = np.ones(size, np.int64)
            tensors = {
                name: np.pad(each, (0, padded_to - size)) for name, each in {**tensors, "attention_mask": mask}.items()
            }
        inputs: list[dict[str, object]] = [
            {
                "name": name,
                "datatype": "INT64",
                "shape": [1, len(each)],
                "parameters": {"binary_data_size": each.nbytes},
            }
            for name, each in tensors.items()
        ]
        requests.append(overhead.http_body(inputs, b"".join(each.tobytes() for each in tensors.values())))
    return requests


_SCRIPT = """
local requests, number = {}, 0
init = function(args)
  for index = 1, COUNT do
    local headers = { ["Content-Type"] = "application/json" }
    local file = io.open("FOLDER/" .. index, "rb")
    headers["Inference-Header-Content-Length"] = file:read("*l")
    requests[index] = wrk.format("POST", nil, headers, file:read("*a"))
    file:close()
  end
end
request = function()
  number = number % #requests + 1
  return requests[number]
end
done = function(summary, latency, requests)
  local at = function(share) return latency:percentile(share) end
  io.write(string.format("percentiles %d %d %d\\n", at(50), at(99), at(99.9)))
end
"""


def load(target: Served, folder: Path, count: int, clients: int, seconds: int) -> Load:
    """Closed-loop clients, which take the `count` requests in `folder` in turn."""
    script = folder / "requests.lua"
    script.write_text(_SCRIPT.replace("COUNT", str(count)).replace("FOLDER", str(folder)))
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "120s", "-s", str(script)]
    before = target.server.cpu_seconds()
    url = f"http://127.0.0.1:{target.server.http}/v2/models/{target.model}/infer"
    text = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    return overhead.read_wrk(text, target.server.cpu_seconds() - before)


def write_bodies(folder: Path, requests: Sequence[tuple[bytes, int]]) -> None:
    folder.mkdir()
    for number, (body, json_length) in enumerate(requests, 1):
        (folder / str(number)).write_bytes(f"{json_length}\n".encode() + body)


def window(target: Served, folder: Path, count: int, clients: int, seconds: int) -> tuple[float, Load]:
    """Texts a second by the server's own counter, between two ends of executions; and what the clients saw."""
    loads: list[Load] = []

    def run(length: int) -> None:
        loads.append(load(target, folder, count, clients, length))

    rate = overhead.steady_rate(target.server, target.model, run, seconds)
    return rate, loads[0]


# ---- Against a bare loop


@contextmanager
def bare(variant: Variant, model: Path, threads: int, callers: int, batch: int) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(Path(__file__).with_name("engine_loop.py")), variant.engine, variant.precision]
    command += [str(model), f"--callers={callers}", f"--batch={batch}", f"--sequence={LONGEST}", f"--threads={threads}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def looped(process: "subprocess.Popen[str]", seconds: float) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def loops_table(options: argparse.Namespace) -> str:
    """The server against the best of several bare loops, with texts of full length."""
    cores = available_cores()
    lines = [
        f"Texts of {LONGEST} tokens; {BUSY} clients over HTTP, compared with the best of several bare loops (callers × "
        f"batch); {options.rounds} pairs of {options.seconds} s. With {cores} threads, the server shares the cores "
        "with its clients, and the loop does not; OpenVINO has a stream per core (`NUM_STREAMS`), as a busy server "
        "should. With one thread, the clients and the server's event loop have a core of their own.",
        "",
        "| model | threads | engine | best loop | texts/s in the loop | through the server | median (least, most) |",
        "|---|---|---|---|---|---|---|",
    ]
    compared = [each for each in VARIANTS if each.engine]
    alone: dict[tuple[str, int, str], float] = {}
    for threads, variants in {
        cores: [replace(each, parameters={**each.parameters, **each.busy}) for each in compared],
        1: [
            replace(each, parameters={**each.parameters, **ONE_THREAD[each.backend]}, instances=1) for each in compared
        ],
    }.items():
        with serving(options.models, variants) as served:
            for target in served:
                row, alone[target.model, threads, target.variant.name] = compared_with_loops(target, threads, options)
                print(row, file=sys.stderr, flush=True)
                lines.append(row)
    lines += ["", "The fastest loop, relative to the loops of two common engines:", ""]
    lines += [f"| model | threads | fastest loop | relative to {EAGER} | relative to {ORT} |", "|---|---|---|---|---|"]
    for model in options.models:
        for threads in dict.fromkeys((cores, 1)):
            rates = {name: rate for (*key, name), rate in alone.items() if key == [model, threads]}
            fastest = max(rates, key=rates.__getitem__)
            shares = [f"{rates[fastest] / rates[other]:.2f}" for other in (EAGER, ORT)]
            lines.append(f"| {model} | {threads} | {fastest} | {' | '.join(shares)} |")
    return "\n".join(lines)


def compared_with_loops(target: Served, threads: int, options: argparse.Namespace) -> tuple[str, float]:
    """A row of the table, and the texts a second of the best loop."""
    # No more texts at a time than the clients have.
    layouts = [
        (callers, batch) for callers in sorted({1, threads}) for batch in (1, 4, 8, 16) if callers * batch <= BUSY
    ]
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "requests"
        write_bodies(folder, bodies(target.model, [LONGEST], LONGEST))
        load(target, folder, 1, BUSY, options.seconds)
        rates = {}
        for layout in layouts:
            with bare(target.variant, target.file, threads, *layout) as process:
                looped(process, 0.5)
                rates[layout] = looped(process, options.seconds / 2)
        best = max(rates, key=rates.__getitem__)
        pairs = []
        with bare(target.variant, target.file, threads, *best) as process:
            looped(process, 0.5)
            for _ in range(options.rounds):
                alone = looped(process, options.seconds)
                pairs.append((window(target, folder, 1, BUSY, options.seconds)[0], alone))
    ratios = [mine / theirs for mine, theirs in pairs]
    loop = statistics.median(theirs for _, theirs in pairs)
    row = (
        f"| {target.model} | {threads} | {target.variant.name} | {best[0]} × {best[1]} "
        f"| {loop:.1f} "
        f"| {statistics.median(mine for mine, _ in pairs):.1f} "
        f"| {statistics.median(ratios):.1%} ({min(ratios):.1%}, {max(ratios):.1%}) |"
    )
    return row, loop


# ---- Against the number of clients


def measure(options: argparse.Namespace) -> list[Point]:
    sizes = MIXED.lengths(TEXTS).tolist()
    points = []
    with tempfile.TemporaryDirectory() as directory, serving(options.models, VARIANTS) as served:
        folders = {}
        for model in options.models:
            for padding in PADDINGS:
                folders[model, padding] = Path(directory) / f"{model}-{padding}"
                padded_to = LONGEST if padding == "client" else None
                write_bodies(folders[model, padding], bodies(model, sizes, padded_to))
        for target in served:  # warm, and time for the batcher to learn
            for padding in PADDINGS:
                load(target, folders[target.model, padding], TEXTS, BUSY, 2 * options.seconds)
        for model in options.models:
            for clients in CLIENTS:
                for padding in PADDINGS:
                    for target in (each for each in served if each.model == model):
                        rate, seen = window(target, folders[model, padding], TEXTS, clients, options.seconds)
                        point = Point(
                            model,
                            target.variant.name,
                            padding,
                            clients,
                            round(rate, 2),
                            round(seen.p50_us / 1e3, 2),
                            round(seen.p99_us / 1e3, 2),
                            round(seen.cpu_us / 1e3, 3),
                        )
                        points.append(point)
                        print(point, file=sys.stderr, flush=True)
    return points


def curves_table(points: Sequence[Point], models: Sequence[str]) -> str:
    sizes = MIXED.lengths(TEXTS)
    lines = [
        f"{_machine()}, PyTorch {version('torch')}. {TEXTS} texts of {sizes.min()} to {sizes.max()} tokens, "
        f"log-normal, the mean is {sizes.mean():.0f}; clients over HTTP in a closed loop. Texts/s, and below them the "
        "median and the 99th percentile of the latency in ms.",
    ]
    for model in models:
        for padding, words in PADDINGS.items():
            mine = {(p.engine, p.clients): p for p in points if (p.model, p.padding) == (model, padding)}
            lines += [
                "",
                f"`{model}`, {words}:",
                "",
                f"| clients | {' | '.join(map(str, CLIENTS))} |",
                "|---" * (len(CLIENTS) + 1) + "|",
            ]
            for variant in VARIANTS:
                cells = []
                for clients in CLIENTS:
                    point = mine[variant.name, clients]
                    cells.append(f"{point.texts_per_second:.4g}<br>{point.p50_ms:.3g}, {point.p99_ms:.3g}")
                lines.append(f"| {variant.name} | {' | '.join(cells)} |")
    lines += ["", *ratios(points, models)]
    return "\n".join(lines)


def curves_summary(points: Sequence[Point], models: Sequence[str]) -> str:
    """The part of the curves that benchmarks/results/tables.md shows: rates with few, some and the most clients."""
    first, *_ = curves_table(points, models).splitlines()
    columns = [(padding, clients) for padding in PADDINGS for clients in SUMMARY_CLIENTS]
    lines = [
        first.replace("Texts/s, and below them the median and the 99th percentile of the latency in ms.", "Texts/s."),
        "",
        "| model | engine | "
        + " | ".join(f"{PADDINGS[padding]}, {_clients(count)}" for padding, count in columns)
        + " |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for model in models:
        rates = {(p.engine, p.padding, p.clients): p.texts_per_second for p in points if p.model == model}
        for variant in VARIANTS:
            cells = [f"{rates[variant.name, *column]:.4g}" for column in columns]
            lines.append(f"| {model} | {variant.name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *ratios(points, models)])


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count > 1)}"


def ratios(points: Sequence[Point], models: Sequence[str]) -> list[str]:
    """How much faster the measured choice is than two common engines."""
    lines = [
        "| texts/s of `auto` relative to | " + " | ".join(_clients(count) for count in CLIENTS) + " |",
        "|---" * (len(CLIENTS) + 1) + "|",
    ]
    for model in models:
        for other in (EAGER, ORT):
            rates = {
                (p.engine, p.clients): p.texts_per_second for p in points if (p.model, p.padding) == (model, "client")
            }
            cells = [f"{rates[AUTO, clients] / rates[other, clients]:.2f}" for clients in CLIENTS]
            lines.append(f"| {other}, `{model}`, clients pad | {' | '.join(cells)} |")
    return lines


def picture(points: Sequence[Point], models: Sequence[str]) -> str:
    def panel(model: str, padding: str, title: str, value: str) -> Lines:
        series = {
            variant.name: [
                getattr(point, value)
                for point in points
                if (point.model, point.padding, point.engine) == (model, padding, variant.name)
            ]
            for variant in VARIANTS
        }
        return Lines(f"{model}: {title}", series)

    rows = [
        [
            panel(model, "client", f"texts/s, {PADDINGS['client']}", "texts_per_second"),
            panel(model, "server", f"texts/s, {PADDINGS['server']}", "texts_per_second"),
            panel(model, "server", "p99 in ms, the server pads", "p99_ms"),
        ]
        for model in models
    ]
    return draw(rows, [str(clients) for clients in CLIENTS], "clients")


def _machine() -> str:
    """And the versions of two engines."""
    engines = f"ONNX Runtime {version('onnxruntime')}, OpenVINO {version('openvino')}"
    return f"{available_cores()} cores, {platform.machine()}, {_flags()}; {engines}"


def _flags() -> str:
    """What this processor has for reduced precisions."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown instructions"
    have = [
        name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "avx512_vnni", "avx_vnni") if f" {name}" in text
    ]
    return ", ".join(have)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["loops", "curves", "precisions"], help="one part alone")
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--seconds", type=int, default=3, help="of each window")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of a bare loop and the server")
    parser.add_argument("--write", action="store_true", help="put the report into benchmarks/results/tables.md")
    options = parser.parse_args()
    if missing := overhead.missing_programs():
        raise SystemExit(missing)
    if options.only in (None, "precisions"):
        text = precisions.tables(options.rounds, _machine())
        print(text)
        if options.write:
            overhead.put_into_report("engines.py precisions", text)
    if options.only in (None, "curves"):
        points = measure(options)
        text = curves_table(points, options.models)
        print(text)
        if options.write:
            FIGURES.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
            PICTURE.write_text(picture(points, options.models))
            link = f"![Texts a second and latency of each engine](../../docs/performance/{PICTURE.name})"
            overhead.put_into_report("engines.py curves", f"{link}\n\n{curves_summary(points, options.models)}")
    if options.only in (None, "loops"):
        text = loops_table(options)
        print(text)
        if options.write:
            overhead.put_into_report("engines.py loops", text)


if __name__ == "__main__":
    main()

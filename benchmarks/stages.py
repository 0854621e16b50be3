"""What each microsecond of a request's CPU is spent on: samples of a server under load, by the stage that they are in.

    python benchmarks/stages.py            # some three minutes, and as many more the first time, for compiling
    python benchmarks/stages.py --write    # and puts the table into benchmarks/results/tables.md

Needs wrk, h2load and ``perf`` (Debian: linux-perf), which must be allowed to look at processes of one's own
(kernel.perf_event_paranoid at most 1). The compiled form is built once more in build/symbols, with the names of its
functions. A sample in the kernel belongs to the system call, any other to the innermost compiled function: what the
interpreter does for that function counts as its own. The model is `simple`, which ONNX Runtime runs on the event loop.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import overhead
from overhead import ROOT, Load, ServerProcess, Way, put_into_report, server, write_repository

sys.path.insert(0, str(ROOT / "scripts"))
import compiled_form

FORM = ROOT / "build" / "symbols"
CONNECTIONS = 16
_SMALL_PATHS = 3
"""Of `overhead.paths`: the others are of large tensors."""
_STACK_BYTES = 16384
_SAMPLES_A_SECOND = 499

KERNEL = (
    ("kernel: receiving", ("__x64_sys_read", "ksys_read", "__x64_sys_recv", "__sys_recv")),
    ("kernel: sending", ("__x64_sys_write", "ksys_write", "__x64_sys_send", "__sys_send", "__sys_writev", "do_writev")),
    ("kernel: waiting for events", ("do_epoll_wait", "do_epoll_pwait")),
)
"""Stages, and functions of the kernel of which a stack has one."""
OTHER_KERNEL = "kernel: the rest"
ENGINE = "engine (ONNX Runtime, NumPy)"
EVENT_LOOP = "event loop (uvloop, libuv)"
INTERPRETED = "interpreted Python"
PACKAGES = {
    "frontends.http2": "HTTP/2 frames, header blocks, windows",
    "frontends.grpc": "gRPC calls",
    "frontends": "HTTP heads, bodies, responses",
    "protocol": "tensors and messages on the wire",
    "core.wire": "tensors and messages on the wire",
    "core.statistics": "statistics",
    "core": "request, response, tensors",
    "scheduling": "queue and batch",
    "execution": "running the batch",
    "observability": "logs",
    "repository": "which version",
    "backends": "the engine's side of the server",
}
"""Stages by the package of a compiled module: the longest that fits counts."""


def short_names(modules: Sequence[str]) -> dict[str, str]:
    """Modules by the ends of their names that tell them apart, as mypyc writes them in symbols."""
    names: dict[str, list[str]] = {}
    for module in modules:
        parts = f"modserve.{module}".split(".")
        for start in range(len(parts)):
            names.setdefault("___".join(parts[start:]), []).append(module)
    return {name: owners[0] for name, owners in names.items() if len(owners) == 1}


def stage(frames: Sequence[tuple[str, str]], modules: Mapping[str, str]) -> str:
    """Of a stack of functions and their files, the innermost first."""
    functions = [function for function, _ in frames]
    if frames and "kernel" in frames[0][1]:
        for name, calls in KERNEL:
            if any(function.startswith(calls) for function in functions):
                return name
        return OTHER_KERNEL
    for function, file in frames:
        if "onnxruntime" in file or "numpy" in file:
            return ENGINE
        if function.startswith("_PyEval_EvalFrame"):
            return INTERPRETED
        if function.startswith(("CPyDef_", "CPyPy_")):
            return _of_module(function.partition("_")[2], modules)
    return EVENT_LOOP if any("uvloop" in file for _, file in frames) else INTERPRETED


def _of_module(symbol: str, modules: Mapping[str, str]) -> str:
    parts = symbol.split("___")
    for end in range(len(parts), 0, -1):
        module = modules.get("___".join(parts[:end]))
        if module is not None:
            while module:
                if module in PACKAGES:
                    return PACKAGES[module]
                module = module.rpartition(".")[0]
    return INTERPRETED


def stacks(text: str) -> Iterator[list[tuple[str, str]]]:
    """The samples in what ``perf script`` prints: functions and files, the innermost first."""
    for sample in text.split("\n\n"):
        frames = []
        for line in sample.splitlines()[1:]:
            _, _, rest = line.strip().partition(" ")
            function, _, file = rest.rpartition(" (")
            frames.append((function, file.rstrip(")")))
        if frames:
            yield frames


def sampled(target: ServerProcess, way: Way, seconds: int) -> tuple[Load, Counter[str]]:
    """What a load saw, and how many samples were taken in each stage meanwhile."""
    modules = short_names(compiled_form.modules().compiled)
    with tempfile.TemporaryDirectory() as directory:
        data = str(Path(directory) / "perf.data")
        record = ["perf", "record", "-q", "-F", str(_SAMPLES_A_SECOND), "--call-graph", f"dwarf,{_STACK_BYTES}"]
        recording = subprocess.Popen([*record, "-o", data, "-p", str(target.pid), "--", "sleep", str(seconds + 2)])
        load = way.load(target, CONNECTIONS)
        if recording.wait():
            raise SystemExit("perf could not take samples: see what it said above")
        script = ["perf", "script", "--no-inline", "-F", "tid,ip,sym,dso", "-i", data]
        text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    return load, Counter(stage(frames, modules) for frames in stacks(text))


def table(columns: Mapping[str, tuple[Load, Counter[str]]]) -> list[str]:
    """Microseconds a request: a row for each stage, the most expensive first."""
    rows = Counter[str]()
    costs = {}
    for name, (load, samples) in columns.items():
        total = sum(samples.values())
        costs[name] = {each: load.cpu_us * count / total for each, count in samples.items()}
        rows.update(costs[name])
    lines = ["| µs a request | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for each, _ in rows.most_common():
        cells = [f"{costs[name][each]:.1f}" if costs[name].get(each, 0) >= 0.05 else "" for name in columns]
        if any(cells):
            lines.append(f"| {each} | " + " | ".join(cells) + " |")
    totals = [f"**{load.cpu_us:.1f}**" for load, _ in columns.values()]
    return [*lines, "| **in all** | " + " | ".join(totals) + " |"]


def build() -> Path:
    """The compiled form with its symbols."""
    compiled_form.LINK_OPTIONS = ()
    return compiled_form.make(target=FORM)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=int, default=8, help="of each load")
    options.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    arguments = options.parse_args()
    if missing := overhead.missing_programs():
        raise SystemExit(missing)
    os.environ["PYTHONPATH"] = str(build())
    with tempfile.TemporaryDirectory() as directory:
        repository = write_repository(Path(directory))
        with server(repository) as target:
            for way in overhead.paths(1)[:_SMALL_PATHS]:
                way.load(target, CONNECTIONS)
            ways = overhead.paths(arguments.seconds)[:_SMALL_PATHS]
            columns = {way.name: sampled(target, way, arguments.seconds) for way in ways}
    conditions = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, compiled form; "
        f"{CONNECTIONS} connections, {sum(sum(samples.values()) for _, samples in columns.values())} samples."
    )
    lines = [conditions, "", *table(columns)]
    print("\n".join(lines))
    if arguments.write:
        put_into_report("stages.py", "\n".join(lines))


if __name__ == "__main__":
    main()

"""What a start takes: its time and memory, and which packages they go to, up to READY with the model `simple`.

    python benchmarks/start.py                                  # of the source, or of what PYTHONPATH names
    python benchmarks/start.py --before ../other-checkout/src   # beside another source, or another compiled form
    python benchmarks/start.py --modules 30                     # and the modules that take most
    python benchmarks/start.py --write                          # into benchmarks/results/tables.md

Where TRITON_SERVER_CMD has a command that starts Triton, as in overhead.py, its starts take turns with ours.

Linux only. Three kinds of starts take turns: plain ones for the totals, some under ``python -X importtime``, and some
in which resident memory is read before and after each module. What modules import counts for the imported ones. Tracing
slows imports down, most of all small modules: compare rows, and take totals from the plain starts.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import overhead
import process_tree

EXAMPLE = overhead.ROOT / "model_repository" / "simple"
SERVE = ["serve", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--model-repository"]
SHOWN_MB, SHOWN_MS = 0.5, 5.0
"""A package has a row of its own if it takes so much of either."""
STANDARD, OTHERS = "Python's library, the rest", "other packages"

# Told apart by threads: engines are imported on a loading thread while the ports open on the main one.
_MEMORY = r"""
import importlib.machinery, json, runpy, sys, threading

def resident():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss"))

class Loader:
    def __init__(self, loader, name):
        self.loader, self.name = loader, name
    def __getattr__(self, name):
        return getattr(self.loader, name)
    def measured(self, step, argument):
        inner = local.__dict__.setdefault("inner", [0])
        before = resident()
        inner.append(0)
        try:
            return step(argument)
        finally:
            added = resident() - before
            print(json.dumps([self.name, added - inner.pop()]), file=record, flush=True)
            inner[-1] += added
    def create_module(self, spec):
        return self.measured(self.loader.create_module, spec)
    def exec_module(self, module):
        return self.measured(self.loader.exec_module, module)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, name)
        return spec

local = threading.local()
record = open(sys.argv.pop(1), "w")
print(json.dumps(["", resident()]), file=record, flush=True)
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), Finder)
runpy.run_module("modserve", run_name="__main__", alter_sys=True)
"""


@dataclass(slots=True)
class Starts:
    """What was measured of one source, with an entry for each start."""

    folder: Path | None
    """What comes first on PYTHONPATH; None for the environment's own."""
    ready_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    bare_mb: list[float] = field(default_factory=list)
    """The interpreter before the first module."""
    ms: list[dict[str, float]] = field(default_factory=list)
    """By module; so are `mb`."""
    mb: list[dict[str, float]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        first = {} if self.folder is None else {"PYTHONPATH": str(self.folder.resolve())}
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **first}

    def plain(self, repository: Path) -> None:
        began = time.perf_counter()
        with self._loaded("-m", "modserve", *SERVE, str(repository)) as pid:
            self.ready_s.append(time.perf_counter() - began)
            self.cpu_s.append(process_tree.cpu_seconds(pid))
            self.resident_mb.append(process_tree.rss_mb(pid))

    def timed(self, repository: Path) -> None:
        with tempfile.NamedTemporaryFile("r") as log:
            with self._loaded("-X", "importtime", "-m", "modserve", *SERVE, str(repository), log=log.name):
                pass
            self.ms.append(dict(import_times(log.read())))

    def weighed(self, repository: Path) -> None:
        with tempfile.NamedTemporaryFile("r") as record:
            with self._loaded("-c", _MEMORY, record.name, *SERVE, str(repository)):
                pass
            rows = [json.loads(line) for line in record]
        sizes: dict[str, float] = defaultdict(float)
        for module, kilobytes in rows:
            sizes[module] += kilobytes / 1024
        self.bare_mb.append(sizes.pop(""))
        self.mb.append(sizes)

    @contextmanager
    def _loaded(self, *words: str, log: str = os.devnull) -> Iterator[int]:
        """The process id of a server that has loaded its models; its standard error goes to the file `log`."""
        with open(log, "w") as errors:
            process = subprocess.Popen(
                [sys.executable, *words], stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environment()
            )
        assert process.stdout is not None
        try:
            if not any(line.startswith("Try it") for line in process.stdout):
                raise SystemExit("the server ended before its models were loaded")
            yield process.pid
        finally:
            process.terminate()
            process.communicate()


def import_times(report: str) -> Iterator[tuple[str, float]]:
    """Modules, and the milliseconds that each took without what it imported."""
    for match in re.finditer(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", report, re.MULTILINE):
        yield match[2], int(match[1]) / 1e3


def medians(starts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for start in starts for name in start}
    return {name: statistics.median(start.get(name, 0.0) for start in starts) for name in names}


def package(module: str) -> str:
    """Extension modules belong to what they are for: ``_ssl`` to ``ssl``."""
    top = module.partition(".")[0]
    plain = top.removeprefix("_")
    return plain if top in sys.stdlib_module_names and plain in sys.stdlib_module_names else top


def by_package(modules: Mapping[str, float], shown: Iterable[str] = ()) -> dict[str, float]:
    """The sums of packages; those that are not `shown`, if any are, go to `STANDARD` and `OTHERS`."""
    sums: dict[str, float] = defaultdict(float)
    for module, value in modules.items():
        name = package(module)
        if shown and name not in shown:
            name = STANDARD if name in sys.stdlib_module_names else OTHERS
        sums[name] += value
    return sums


def table(sources: Sequence[Starts]) -> list[str]:
    """A row for each package, and the totals; of two sources, each cell has both figures."""
    times, sizes = [medians(each.ms) for each in sources], [medians(each.mb) for each in sources]
    shown = {name for each in times for name, value in by_package(each).items() if value >= SHOWN_MS}
    shown |= {name for each in sizes for name, value in by_package(each).items() if value >= SHOWN_MB}
    ms, mb = [by_package(each, shown) for each in times], [by_package(each, shown) for each in sizes]
    count = [by_package(dict.fromkeys(each, 1.0), shown) for each in times]
    names = sorted({name for each in (*ms, *mb) for name in each}, key=lambda name: -mb[0].get(name, 0.0))
    lines = ["| what is imported | modules | time | resident memory |", "|---|---|---|---|"]
    for name in sorted(names, key=lambda name: name in (STANDARD, OTHERS)):
        cells = [_cell([each.get(name, 0.0) for each in values]) for values in (count, ms, mb)]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} ms | {cells[2]} MB |")
    totals = [sum(each.values()) for each in count], [sum(each.values()) for each in ms]
    lines.append(
        f"| all modules | {_cell(totals[0])} | {_cell(totals[1])} ms | {_cell([sum(m.values()) for m in mb])} MB |"
    )
    bare = [statistics.median(each.bare_mb) for each in sources]
    whole = [statistics.median(each.resident_mb) for each in sources]
    rest = [total - start - sum(sizes.values()) for total, start, sizes in zip(whole, bare, mb, strict=True)]
    lines.append(f"| the interpreter, before the first module | | | {_cell(bare)} MB |")
    lines.append(f"| all else: the model, threads, ports, caches | | | {_cell(rest)} MB |")
    return [
        *lines,
        "",
        f"READY after {_cell([statistics.median(each.ready_s) for each in sources], 2)} s, "
        f"with {_cell([statistics.median(each.cpu_s) for each in sources], 2)} s of CPU time and "
        f"{_cell(whole)} MB of resident memory; medians of {len(sources[0].ready_s)} starts without tracing.",
    ]


def _cell(values: Sequence[float], digits: int = 1) -> str:
    """The figures of the sources, the earlier one first."""
    whole = all(value == int(value) for value in values)
    return " → ".join(f"{value:.0f}" if whole else f"{value:.{digits}f}" for value in reversed(values))


def heaviest(starts: Starts, count: int) -> list[str]:
    ms, mb = medians(starts.ms), medians(starts.mb)
    names = sorted(ms.keys() | mb.keys(), key=lambda name: ms.get(name, 0) / 10 + mb.get(name, 0), reverse=True)
    return [f"{name:60} {ms.get(name, 0):7.1f} ms {mb.get(name, 0):7.2f} MB" for name in names[:count]]


def tritons_start(repository: Path) -> list[overhead.ServerProcess]:
    """A start of Triton's; none without TRITON_SERVER_CMD. Raises SystemExit if it does not become ready."""
    template = os.environ.get("TRITON_SERVER_CMD")
    if not template:
        return []
    with overhead.triton(template, repository) as found:
        if found is None:
            raise SystemExit("TRITON_SERVER_CMD: the server did not become ready")
        return [found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a folder with another modserve, which is measured beside")
    parser.add_argument("--runs", type=int, default=5, help="starts of each kind, of which the median counts")
    parser.add_argument("--modules", type=int, default=0, help="also print so many modules that take most")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    if arguments.before and not (arguments.before / "modserve").is_dir():
        raise SystemExit(f"--before: {arguments.before} has no package modserve")
    tritons: list[overhead.ServerProcess] = []
    sources = [Starts(None), *([Starts(arguments.before)] if arguments.before else [])]
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        shutil.copytree(EXAMPLE, repository / "simple")
        for run in range(arguments.runs + 1):  # the first one writes bytecode
            for each in sources if run % 2 == 0 else reversed(sources):
                for step in (each.plain, each.timed, each.weighed):
                    step(repository)
            tritons += tritons_start(repository)
            if run == 0:
                tritons.clear()
                sources = [Starts(each.folder) for each in sources]
    lines = [f"{platform.machine()}, Python {platform.python_version()}.", "", *table(sources)]
    if tritons:
        seconds, size = (
            statistics.median(getattr(each, name) for each in tritons) for name in ("start_seconds", "ready_rss_mb")
        )
        times = statistics.median(sources[0].ready_s) / seconds
        lines += [
            "",
            f"Triton in the same turns: READY after {seconds:.2f} s with {size:.1f} MB; ours {times:.1f} times that.",
        ]
    print("\n".join([*lines, "", *heaviest(sources[0], arguments.modules)]))
    if arguments.write:
        overhead.put_into_report("start.py", "\n".join(lines))


if __name__ == "__main__":
    main()

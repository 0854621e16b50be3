"""What each extra costs: megabytes on disk, seconds to install, and seconds until its engine can load a model.

    python benchmarks/extras.py                      # prints the table; it downloads several GB
    python benchmarks/extras.py --cpu torch==2.13.0  # with the CPU build of PyTorch: the words for which pip takes it
    python benchmarks/extras.py --write              # and puts it into docs/engines.md
    python benchmarks/extras.py --only openvino

Each extra is installed by pip into a virtual environment of its own. Time depends on the network and on what pip has in
its cache; the size does not.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from overhead import ROOT

PAGE = ROOT / "docs" / "engines.md"
ENGINES = {"": "onnxruntime", "openvino": "openvino", "torch": "pytorch", "tensorflow": "tensorflow"} | {
    "genai": "openvino_genai",
    "trees": "fil",
    "sklearn": "sklearn",
    "mlflow": "mlflow",
}
"""Extra → the backend that it is for."""

_LOAD = """
import time
from modserve.backends.registry import BackendRegistry
before = time.perf_counter()
BackendRegistry().get({backend!r})
print(time.perf_counter() - before)
"""
_MARKS = "<!-- extras.py begins -->", "<!-- extras.py ends -->"


def megabytes(directory: Path) -> float:
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir()) / 1e6


def measure(extra: str, directory: Path, pins: list[str]) -> tuple[float, float, float]:
    """Megabytes, seconds to install, seconds to import the engine (the median of three, after the first)."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    empty = megabytes(directory)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    began = time.perf_counter()
    subprocess.run([*pip, f"{ROOT}[{extra}]" if extra else str(ROOT), *pins], check=True)
    seconds = time.perf_counter() - began
    loads = [_load_seconds(directory, ENGINES[extra]) for _ in range(4)]
    return megabytes(directory) - empty, seconds, statistics.median(loads[1:])


def _load_seconds(directory: Path, backend: str) -> float:
    command = [str(directory / "bin" / "python"), "-c", _LOAD.format(backend=backend)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory).stdout)


def table(extras: list[str], pins: list[str]) -> str:
    lines = [
        "| install | on disk | of it, the extra | pip takes | the engine is imported in |",
        "|---|---|---|---|---|",
    ]
    core = 0.0
    builds = [(extra, "", list[str]()) for extra in extras]
    if "torch" in extras:
        at = extras.index("torch")
        builds[at : at + 1] = [("torch", ", the CPU build", pins)] if pins else []
        builds.insert(at + bool(pins), ("torch", ", the CUDA build, which pip takes on Linux", []))
    for extra, build, more_words in builds:
        with tempfile.TemporaryDirectory() as directory:
            size, install, load = measure(extra, Path(directory) / "environment", more_words)
        core = core or size
        name = f"`[{extra}]`{build}" if extra else "`modserve`"
        more = f"{size - core:.0f} MB" if extra else "–"
        lines.append(f"| {name} | {size:.0f} MB | {more} | {install:.0f} s | {load:.2f} s |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[extra for extra in ENGINES if extra], help="this extra beside the core")
    parser.add_argument(
        "--cpu", action="append", default=[], help="words for pip that make it take PyTorch's CPU build"
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = ["", options.only] if options.only else [extra for extra in ENGINES if extra in ("", *known)]
    text = table(extras, options.cpu)
    print(text)
    if options.write:
        begin, end = _MARKS
        page = PAGE.read_text("utf-8")
        if not re.search(f"{begin}.*{end}", page, re.DOTALL):
            raise SystemExit(f"{PAGE} lacks the marks of extras.py")
        before, _, rest = page.partition(begin)
        PAGE.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", "utf-8")


if __name__ == "__main__":
    main()

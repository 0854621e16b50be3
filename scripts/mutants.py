"""Mutation testing: whether the unit, product and fuzz tests notice faults in the source.

    scripts/mutants 200 7    # 200 mutants by the seed 7: the same each time for the same source

A mutant is modserve with one comparison, sign, `and`, `or`, `not`, or number changed. It is killed if a test fails, or
does not end. The others survive: each wants a test, or shows code that nothing needs. `mutant_sites.py` has what is
changed, and what stays as it is. Mutants of lines that these tests run only in other processes, or not at all, are
listed as unreached, and not counted.

Each mutant runs the test files that reach its line, in a copy of the source: those of its package first, then the
fastest. Which file reaches which lines is measured once, and kept in `build/mutants` under a digest of the source and
the test: a quarter of an hour of CPU for all files.
"""

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import queue
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import pytest
from mutant_sites import Site, code_lines, mutate, sites

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "mutants"
SUITES = ("product", "unit", "fuzz")
ELSEWHERE = ("tests/product/wire/", "tests/fuzz/test_endless_arrays.py")
"""Tests of processes of their own."""
LIBRARIES = ("fastapi", "google.protobuf", "grpc", "ml_dtypes", "numpy", "orjson", "rich", "uvloop")
"""Modules that take long to import: processes for tests are forked when these are there."""
JOBS = 2
_UNUSED = ("cacheprovider", "hypothesispytest", "xdist")
PYTEST = (*(f"-pno:{plugin}" for plugin in _UNUSED), "-mnot slow", "-Wignore::pytest.PytestAssertRewriteWarning")
MEASURE_SECONDS = 1800
TEST_SECONDS = 60
"""A test that takes longer has met an endless loop. Without mutants, those not marked `slow` take at most a few."""

Copies: TypeAlias = queue.SimpleQueue[Path]


@dataclass(frozen=True)
class Mutant:
    site: Site
    replacement: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.site.file}:{self.site.line}  {self.before}  →  {self.after}"


@dataclass(frozen=True)
class Reach:
    """Record what a test file runs without mutants: lines by file of the source."""

    test: str
    seconds: float
    lines: Mapping[str, frozenset[int]]


def chosen(sources: Mapping[str, bytes], number: int, seed: int) -> list[Mutant]:
    """So many mutants of some files, the same for the same files and the same seed."""
    every = [site for file, source in sorted(sources.items()) for site in sites(file, source)]
    rng = random.Random(seed)
    mutants = []
    for site in rng.sample(every, min(number, len(every))):
        source, replacement = sources[site.file], rng.choice(site.replacements)
        first = source.rfind(b"\n", 0, site.start) + 1
        last = source.find(b"\n", site.end)
        rows = [source[first:last], source[first : site.start] + replacement.encode() + source[site.end : last]]
        mutants.append(Mutant(site, replacement, *(" ".join(row.decode().split()) for row in rows)))
    return mutants


def record_reach(test: str, source: Path, target: Path) -> int:
    """Run a test file in this process, and write to `target` which lines it has run."""
    prefix = f"{source}{os.sep}"
    left: dict[int, tuple[CodeType, set[int]]] = {}  # functions by id, and which of their lines have not run yet
    reached: dict[str, set[int]] = {}

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if (known := left.get(id(code))) is None:
            ours = code.co_filename.startswith(prefix)
            known = left[id(code)] = code, {line for *_, line in code.co_lines() if line is not None} if ours else set()
        return step if known[1] else None  # a function that has run whole costs little

    def step(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno in (lines := left[id(frame.f_code)][1]):
            lines.discard(frame.f_lineno)
            reached.setdefault(frame.f_code.co_filename.removeprefix(prefix), set()).add(frame.f_lineno)
        return step

    class Trace:
        """A plugin that has the rest of pytest, which is not modserve, run at full speed."""

        def pytest_collection(self) -> None:
            threading.settrace(enter)
            sys.settrace(enter)

    began = time.monotonic()
    status = pytest.main([*PYTEST, "-q", test], plugins=[Trace()])
    sys.settrace(None)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return status
    lines = {file: sorted(numbers) for file, numbers in reached.items()}
    target.write_text(json.dumps({"seconds": time.monotonic() - began, "lines": lines}))
    return 0


def project_copy(folder: Path) -> Path:
    """Make a project of the same files but for a source of its own, which is returned."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("src", "build"):
            (folder / path.name).symlink_to(path)
    return shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))


@contextlib.contextmanager
def borrowed(copies: Copies) -> Iterator[Path]:
    """A copy of the source that nobody else uses meanwhile."""
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def run(source: Path, seconds: float, work: Callable[..., int], *given: Any) -> tuple[int | None, str]:
    """Call a function in a process with the modserve of a folder.

    Returns what the function returns, None if that took too long, and what it has printed. The process is forked, since
    the imports of other libraries take longer than most files of tests.
    """
    with tempfile.TemporaryFile() as output:
        if not (process := os.fork()):
            status = 1
            try:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                sys.stdout = sys.stderr = os.fdopen(1, "w")
                threading.current_thread().name = "MainThread"
                os.chdir(source.parent)
                sys.path[:0] = paths = [str(source), str(source.parent / "tests")]
                os.environ["PYTHONPATH"] = os.pathsep.join(paths)
                os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(source / ".hypothesis")
                status = work(*given)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        descriptor = os.pidfd_open(process)
        ended, _, _ = select.select([descriptor], [], [], seconds)
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # with what its tests have started
        _, status = os.waitpid(process, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status) if ended else None, output.read().decode(errors="replace")


def test_files() -> Iterator[str]:
    """The test files of the suites that run in one process, relative to the project."""
    for suite in SUITES:
        for path in sorted((ROOT / "tests" / suite).rglob("test_*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(ELSEWHERE):
                yield name


def base_digest(sources: Mapping[str, bytes]) -> bytes:
    """A digest of all that the reach of a test file depends on, but for that file."""
    digest = hashlib.sha256()
    for file, source in sorted(sources.items()):
        digest.update(file.encode() + source)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not path.name.startswith("test_"):
            digest.update(path.read_bytes())
    return digest.digest()


def measured(test: str, files: Set[str], copies: Copies, base: bytes, cache: Path = CACHE) -> Reach | None:
    """Return what a test file reaches of some files, from the cache or by running it; None if it fails."""
    kept = cache / f"{hashlib.sha256(base + test.encode() + (ROOT / test).read_bytes()).hexdigest()[:24]}.json"
    if not kept.exists():
        made = kept.with_suffix(f".{os.getpid()}")
        with borrowed(copies) as source:
            status, output = run(source, MEASURE_SECONDS, record_reach, test, source, made)
        if status:
            print(f"left out, since it fails without mutants: {test} (status {status})\n{output[-1000:]}", flush=True)
            return None
        made.rename(kept)
    found = json.loads(kept.read_text())
    lines = {file: frozenset(lines) for file, lines in found["lines"].items() if file in files}
    return Reach(test, found["seconds"], lines)


def fate(mutant: Mutant, reaches: Sequence[Reach], copies: Copies) -> str:
    """Run a mutant in the tests that reach it: "killed" or "survived", the mutant, and by which test."""
    package = mutant.site.file.split("/")[1]
    tests = sorted(reaches, key=lambda reach: (reach.test.split("/")[2] != package, reach.seconds))
    limits = ["-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [*PYTEST, *limits, "-x", "-v", "--tb=no", *(reach.test for reach in tests)]
    seconds = 2 * TEST_SECONDS + 10 * sum(reach.seconds for reach in tests)
    with borrowed(copies) as source:
        path = source / mutant.site.file
        text = path.read_bytes()
        compiled = Path(importlib.util.cache_from_source(str(path)))  # of two texts of one second, Python knows one
        path.write_bytes(mutate(text, mutant.site, mutant.replacement))
        compiled.unlink(missing_ok=True)
        try:
            status, output = run(source, seconds, pytest.main, command)
        finally:
            path.write_bytes(text)
            compiled.unlink(missing_ok=True)
    if status == 0:
        return f"survived  {mutant}  ({len(tests)} test files)"
    [*_, last] = re.findall(r"^(\S+::\S+)", output, re.MULTILINE) or ["when tests are collected"]
    return f"killed    {mutant}  ({last}{', which does not end' if status is None or 'Timeout (' in output else ''})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, help="how many mutants")
    parser.add_argument("seed", type=int, help="which ones")
    arguments = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    CACHE.mkdir(parents=True, exist_ok=True)
    paths = sorted((ROOT / "src").rglob("*.py"))
    sources = {path.relative_to(ROOT / "src").as_posix(): path.read_bytes() for path in paths}
    mutants = chosen(sources, arguments.number, arguments.seed)
    files = {mutant.site.file for mutant in mutants}
    base = base_digest(sources)
    copies: Copies = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        for job in range(JOBS):
            copies.put(project_copy(Path(folder).resolve() / str(job)))
        reaches = list(filter(None, pool.map(lambda test: measured(test, files, copies, base), test_files())))
        futures = []
        for mutant in mutants:
            site = mutant.site
            line = site.line if site.line in code_lines(sources[site.file]) else site.statement
            if reaching := [reach for reach in reaches if line in reach.lines.get(site.file, ())]:
                futures.append(pool.submit(fate, mutant, reaching, copies))
            else:
                print(f"unreached {mutant}", flush=True)
        killed = 0
        for future in futures:
            print(result := future.result(), flush=True)
            killed += result.startswith("killed")
    unreached = arguments.number - len(futures)
    print(f"{killed} of {len(futures)} killed ({killed / max(len(futures), 1):.0%}), {unreached} not reached")
    return 0 if killed == len(futures) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What clients may send, of any kind, is taken or told to be wrong: by decoders on their own, without a server.

Every kept input runs each time; then each target is fuzzed with some thousand inputs, from the same seed each time.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import fuzz_target
import growth_of_memory
import mutations
import pytest
import targets


class Run(NamedTuple):
    """How the fuzzing of a target ended, what it printed, and the inputs that failed."""

    status: int
    output: str
    failed: list[bytes]


SECONDS = 2
MOST_INPUTS = 2000
"""For each target. `scripts/fuzz` has no such bound, and lets an interpreted target show what an input reaches."""
SEED = 1
HANGS = 300.0
"""Seconds after which a process is taken to hang; on a busy machine it may wait long for its turn."""
SLOW = 1.0
"""Seconds of CPU for one kept input; they take milliseconds."""

KEPT = [(name, file) for name in targets.NAMES for file in targets.corpus(name)]


@pytest.mark.parametrize(("name", "file"), KEPT, ids=[f"{name}-{file}" for name, file in KEPT])
def test_kept_inputs(name: str, file: str) -> None:
    data = targets.corpus(name)[file]
    took = SLOW
    for _ in range(3):  # what the machine takes for itself may be counted too, but hardly each time
        began = time.thread_time()
        error = targets.run(name, data)
        took = min(took, time.thread_time() - began)
        if took < SLOW:
            break
    assert took < SLOW
    # The names of files tell what is in them: valid requests, from which fuzzing starts, and mistakes.
    assert (error is not None) == file.startswith("wrong_"), error


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    """A copy: pytest changes its own at each test. A process that starts meanwhile would read memory that is gone."""
    return dict(os.environ)


def measured_growth(environment: Mapping[str, str]) -> Mapping[str, int]:
    """Bytes each target has kept."""
    command = [sys.executable, growth_of_memory.__file__]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=HANGS)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Two processes at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def growth(pool: ThreadPoolExecutor, environment: Mapping[str, str]) -> Future[Mapping[str, int]]:
    return pool.submit(measured_growth, environment)


@pytest.fixture(scope="module")
def runs(
    pool: ThreadPoolExecutor,
    growth: Future[Mapping[str, int]],
    environment: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Future[Mapping[str, Run]]:
    """All targets being fuzzed, from when their growth begins to be measured."""
    folder = tmp_path_factory.mktemp("targets")
    for name in targets.NAMES:
        (folder / name).mkdir()

    def fuzz() -> Mapping[str, Run]:
        words = [",".join(targets.NAMES), str(SECONDS), str(SEED), str(MOST_INPUTS), str(folder)]
        command = [sys.executable, str(Path(fuzz_target.__file__)), *words]
        subprocess.run(command, env=environment, check=True, timeout=HANGS)
        return {name: run_of(folder / name) for name in targets.NAMES}

    return pool.submit(fuzz)


def run_of(folder: Path) -> Run:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Run(int(files.pop("status")), files.pop("output").decode(errors="replace"), list(files.values()))


@pytest.mark.parametrize("name", targets.NAMES)
@pytest.mark.usefixtures("runs")
def test_no_growth_of_memory(name: str, growth: Future[Mapping[str, int]]) -> None:
    """Hundreds of requests of all kinds leave hardly more behind than as many before them."""
    assert growth.result()[name] < 25_000


@pytest.mark.parametrize("name", targets.NAMES)
def test_fuzzing(name: str, runs: Future[Mapping[str, Run]]) -> None:
    run = runs.result()[name]
    assert run.status == 0, f"{run.failed}\n{run.output[-6000:]}"
    assert not run.failed


def test_unguided_fuzzing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way without atheris."""
    monkeypatch.chdir(tmp_path)
    assert fuzz_target.unguided("http_json", 0.2, SEED) >= 20


@pytest.mark.parametrize("name", targets.NAMES)
def test_mutations_get_further_than_noise(name: str) -> None:
    """Of the variations some are still valid, and some are not."""
    kept = list(targets.corpus(name).values())
    outcomes = {targets.run(name, mutations.mutated(name, kept[seed % len(kept)], seed)) is None for seed in range(200)}
    assert outcomes == {True, False}

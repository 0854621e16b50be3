"""The seconds of files of tests: what is measured, what counts as slower, and the ledger."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import file_seconds
from file_seconds import Seconds

HEAD = "file\tsuite\tCPU seconds\tseconds\n"
FILES = {
    "tests/some/test_burns.py": """
import subprocess, sys
import pytest

@pytest.fixture(scope="module")
def process():
    program = "import time\\nwhile time.process_time() < 1.2: pass"
    running = subprocess.Popen([sys.executable, "-c", program])
    yield running
    running.wait()

def test_first(process): pass
def test_second(process): pass
""",
    "tests/some/test_quick.py": "def test_it(): pass\n",
    "tests/some/test_waits.py": "import select\ndef test_it(): select.select([], [], [], 1.1)\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_run_writes_the_seconds_of_its_files(tmp_path: Path) -> None:
    """A process counts for the file that waits for it. Files run in processes of pytest-xdist."""
    ledger = "tests/seconds.tsv"
    write(tmp_path, {"pytest.ini": "[pytest]\n", **FILES, ledger: HEAD + "tests/some/test_burns.py\tsome\t0.1\t0.1\n"})
    environment = {**os.environ, "PYTHONPATH": str(Path(file_seconds.__file__).parent)}
    words = ["-p", "file_seconds", "-p", "no:cacheprovider", "-n", "2", "--write-seconds", "tests"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = file_seconds.parse((tmp_path / ledger).read_text())
    assert rows.keys() == {"tests/some/test_burns.py", "tests/some/test_waits.py"}
    assert rows["tests/some/test_burns.py"].cpu >= 1.2
    waits = rows["tests/some/test_waits.py"]
    assert waits.cpu < 1.0
    assert waits.elapsed >= 1.1


def test_rows_of_other_files_stay_and_those_of_files_that_are_gone_go(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    ledger = tmp_path / "tests" / "seconds.tsv"
    ledger.write_text(f"{HEAD}tests/some/gone.py\tsome\t9.0\t9.0\ntests/some/test_waits.py\tsome\t2.0\t3.0\n")
    measured = {"tests/some/test_quick.py": Seconds(0.2, 0.9), "tests/some/test_burns.py": Seconds(5.0, 6.0)}
    file_seconds.write(measured, ledger)
    rows = "tests/some/test_burns.py\tsome\t5.0\t6.0\ntests/some/test_waits.py\tsome\t2.0\t3.0\n"
    assert ledger.read_text() == HEAD + rows


def test_what_counts_as_slower() -> None:
    before = {name: Seconds(cpu, 1.0) for name, cpu in (("a", 10.0), ("b", 10.0), ("c", 1.0), ("d", 1.0))}
    measured = {
        name: Seconds(cpu, 99.0) for name, cpu in (("a", 12.9), ("b", 13.1), ("c", 2.9), ("d", 9.0), ("new", 2.1))
    }
    lines = file_seconds.slower(measured, before)
    assert [line.split() for line in lines] == [
        ["1.0", "s", "->", "9.0", "s", "d"],
        ["10.0", "s", "->", "13.1", "s", "b"],
        ["0.0", "s", "->", "2.1", "s", "new"],
    ]


def test_the_files_that_take_longest_come_first(tmp_path: Path) -> None:
    write(tmp_path, {"tests/seconds.tsv": f"{HEAD}tests/waits.py\tsome\t0.1\t9.0\ntests/burns.py\tsome\t5.0\t5.0\n"})
    config: Any = SimpleNamespace(rootpath=tmp_path)
    names = ["tests/new.py::test_a", "tests/burns.py::test_a", "tests/waits.py::test_b", "tests/waits.py::test_a"]
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    file_seconds.longest_first(items, config)
    assert [item.nodeid for item in items] == [names[2], names[3], names[1], names[0]]

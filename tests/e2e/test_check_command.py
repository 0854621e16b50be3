"""``modserve check`` as a process: exit codes, and JSON that another program reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from repositories import EXAMPLES, copy_example

PRINTING = """\
import os

import triton_python_backend_utils as pb_utils

print("printed by the model")
os.write(1, b"written by the model")


class TritonPythonModel:
    def execute(self, requests):
        return []
"""
PRINTING_CONFIG = """\
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def check(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command, run in a folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")}
    command = [sys.executable, "-m", "modserve", "check", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [[], ["--load"]], ids=["checked", "loaded"])
def test_all_is_well(tmp_path: Path, options: list[str]) -> None:
    run = check(tmp_path, str(EXAMPLES), *options)
    end = "loaded: no problems" if options else "checked: no problems (files read, nothing loaded; --load loads)"
    assert (run.returncode, run.stdout) == (0, f"5 models {end}\n"), run.stderr


def test_a_problem(tmp_path: Path) -> None:
    copy_example(tmp_path / "models", "simple", "copied")
    config = tmp_path / "models" / "copied" / "config.pbtxt"
    config.write_text('name: "simple"\n' + 'backend: "onnxruntime"\n')
    run = check(tmp_path, "models")
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith("models/copied/config.pbtxt:1:1: error: unexpected directory name 'copied'")


def test_what_models_print_is_no_part_of_the_json(tmp_path: Path) -> None:
    (tmp_path / "models" / "printing" / "1").mkdir(parents=True)
    (tmp_path / "models" / "printing" / "1" / "model.py").write_text(PRINTING)
    (tmp_path / "models" / "printing" / "config.pbtxt").write_text(PRINTING_CONFIG)
    run = check(tmp_path, "models", "--load", "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert (report["ok"], report["loaded"], [model["name"] for model in report["models"]]) == (True, True, ["printing"])


def test_it_cannot_be_checked(tmp_path: Path) -> None:
    run = check(tmp_path, "nosuch")
    assert (run.returncode, run.stdout) == (2, "")
    assert "cannot read model repository" in run.stderr

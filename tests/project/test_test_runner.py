"""`scripts/test`: what runs in which form, with programs that only say that they ran, and a failure if one fails."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = '#!/bin/sh\necho "{0} $TESTED_FORM $@" >>ran\ncase "{0} $TESTED_FORM $*" in *"$FAILS"*) exit 1 ;; esac\n'
PROGRAMS = {
    ".venv/bin/python": "python",
    ".venv-tensorflow/bin/python": "tensorflow-python",
    **{f"scripts/{name}": name for name in ("check", "clients", "compile", "tensorflow")},
}
PARTS = ("check", "compile", "clients", "tests/fuzz", "tests/project", "tests/e2e", "tests/engines")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for place, name in PROGRAMS.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(PROGRAM.format(name))
        (tmp_path / place).chmod(0o755)
    for name in ("scripts/test", "scripts/environment", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    script = tmp_path / "scripts" / "test"  # Debian's packages are not to be installed
    script.write_text(re.sub(r"(?m)^programs\(\) \{$", "programs() {\n  return 0", script.read_text()))
    words = ["bash", "-c", "source scripts/environment; requirements_key"]
    key = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / ".venv" / f"installed[dev]-{key}").touch()
    return tmp_path


def ran(checkout: Path, *options: str, fails: str = "nothing") -> tuple[int, list[str]]:
    """The status, and what was run: program, form and arguments."""
    done = subprocess.run(
        ["scripts/test", *options], cwd=checkout, env={**os.environ, "FAILS": fails, "TESTED_FORM": ""}
    )
    return done.returncode, sorted((checkout / "ran").read_text().splitlines())


def of_form(lines: list[str], form: str) -> str:
    return " ".join(line for line in lines if line.startswith(f"python {form} "))


def test_each_unit_runs_in_one_form_or_in_both(checkout: Path) -> None:
    status, lines = ran(checkout, "--all")
    assert status == 0
    compiled, interpreted = of_form(lines, "compiled"), of_form(lines, "interpreted")
    folders = [f"tests/unit/{name}" for name in ("core", "scheduling", "text")]
    for name in folders:
        assert f" {name} " in compiled
        assert f"--ignore={name} " in interpreted
    for name in ("tests/fuzz", "tests/e2e", "tests/attack", "tests/deploy", "tests/engines"):
        assert f" {name} " in f"{compiled} "
        assert f" {name} " not in interpreted
    assert " tests/unit/models " in compiled
    assert "=tests/unit/models" not in interpreted
    assert " tests/project " in interpreted
    assert "not slow" not in " ".join(lines)
    (checkout / "ran").unlink()
    status, lines = ran(checkout, "--both")
    assert status == 0
    assert of_form(lines, "compiled") == compiled
    assert "--ignore" not in of_form(lines, "interpreted")
    assert " tests/unit tests/fuzz " in of_form(lines, "interpreted")


def test_without_options_what_is_slow_and_the_project_are_left_out(checkout: Path) -> None:
    status, lines = ran(checkout)
    assert status == 0
    tests = [line for line in lines if " -m pytest " in line]
    assert len(tests) == 4
    assert all(" -m not slow " in line for line in tests)
    assert not [line for line in lines if "tests/project" in line or "tensorflow" in line]


@pytest.mark.parametrize("part", [*PARTS, "tensorflow  ", "tests/tensorflow"])
def test_a_part_that_fails_fails_the_run(checkout: Path, part: str) -> None:
    status, lines = ran(checkout, "--all", fails=part)
    assert status != 0
    assert any(part in line for line in lines)

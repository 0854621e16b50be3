"""The packages that `scripts/release` builds of this tree: the same bytes each time, the right files, and a server."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest
import release_check
import release_packages
from release_packages import Packages

ROOT = Path(__file__).parents[2]
SECONDS = 1_795_000_000
"""In place of the time of a commit."""


def checkout(folder: Path) -> Path:
    """The files of this working tree that git has or would take."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    source = checkout(tmp_path_factory.mktemp("source") / "modserve")
    return release_packages.build(source, tmp_path_factory.mktemp("packages"), SECONDS)


def test_built_again_elsewhere_and_later_they_are_the_same_bytes(packages: Packages, tmp_path: Path) -> None:
    source = checkout(tmp_path / "another-name")
    for path in source.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(path.stat().st_mode & 0o700)
    again = release_packages.build(source, tmp_path / "packages", SECONDS)
    assert again.archive.name == packages.archive.name
    assert again.archive.read_bytes() == packages.archive.read_bytes()
    assert again.wheel.name == packages.wheel.name
    assert again.wheel.read_bytes() == packages.wheel.read_bytes()


def test_the_archive_has_what_the_wheel_is_built_from_and_no_more(packages: Packages) -> None:
    with tarfile.open(packages.archive) as archive:
        names = [Path(name).parts[1:] for name in archive.getnames()]
    assert {parts[0] for parts in names} == {
        "src",
        "model_repository",
        "protos",
        "hatch_build.py",
        "scripts",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "NOTICE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert [parts for parts in names if parts[0] == "scripts"] == [("scripts", "compiled_form.py")]


def test_the_wheel_has_the_source_and_the_examples(packages: Packages) -> None:
    names = set(zipfile.ZipFile(packages.wheel).namelist())
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "modserve").rglob("*.py")}
    assert source <= names
    assert "modserve/example_models/simple/1/model.onnx" in names
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


@pytest.fixture(scope="module")
def programs(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel, which uses the packages of the one that runs the tests."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(environment / "bin" / "python")]
    release_check.run(*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(packages.wheel))
    [site] = environment.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")  # they come after the wheel's
    return environment / "bin"


def test_the_wheel_serves(programs: Path, packages: Packages) -> None:
    release_check.serve(programs, packages.wheel.name.split("-")[1], "interpreted")


def test_a_wheel_of_another_form_or_without_its_models_is_refused(programs: Path, packages: Packages) -> None:
    version = packages.wheel.name.split("-")[1]
    with pytest.raises(RuntimeError, match=r"prints 'modserve \S+ \(interpreted\)', not 'modserve \S+ \(compiled\)'"):
        release_check.serve(programs, version, "compiled")
    [models] = programs.parent.glob("lib/python*/site-packages/modserve/example_models")
    hidden = models.with_name("hidden")
    models.rename(hidden)
    try:
        with pytest.raises(RuntimeError, match="the server ended:"):
            release_check.serve(programs, version, "interpreted")
    finally:
        hidden.rename(models)

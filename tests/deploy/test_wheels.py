"""The wheels of `scripts/wheels`: the one for this machine is built, installed and served; of the others, the names."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import compiled_form
import numpy
import pytest
from server_process import LOADED, started
from wire import Ask, Input, binary_outputs, http_infer, ints

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
PLATFORMS = ("manylinux_x86_64", "manylinux_aarch64", "macosx_arm64")
SECONDS = 900
"""For a build without the object files of an earlier one, on a machine that does other things as well."""


def run(*command: str | Path) -> str:
    pipe = subprocess.PIPE
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, timeout=SECONDS, cwd=ROOT
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_matrix() -> None:
    names = run("scripts/wheels", "--list").split()
    assert names == [f"{python}-{platform}" for platform in PLATFORMS for python in PYTHONS]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    run("scripts/wheels", str(folder))
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel, which uses the packages of the one that runs the tests."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(environment / "bin" / "python")]
    run(*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel))
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")  # they come after the wheel's
    return environment / "bin"


def test_the_wheel_has_each_module_that_is_compiled(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    libraries = {name.partition(".")[0] for name in names if name.endswith(".so")}
    listed = compiled_form.source_files(compiled_form.modules().compiled)
    assert {name.removesuffix(".py") for name in listed} <= libraries
    assert compiled_form.RECORD in names
    assert set(listed) <= set(names), "the source stays, for tracebacks and for what checks the form"


def test_the_wheel_serves_the_compiled_form(programs: Path) -> None:
    environment = {"PYTHONPATH": ""}
    version = subprocess.run([programs / "modserve", "--version"], env=environment, capture_output=True, text=True)
    assert version.stdout.endswith(" (compiled)\n"), version.stderr
    program = [str(programs / "modserve"), "serve", "--example"]
    with started(environment=environment, program=program) as server:
        server.wait_for(LOADED)
        assert server.wait_for(r"modserve\.cli: modserve \S+, (\w+)")[1] == "compiled"
        inputs = tuple(Input(f"INPUT{index}", "INT32", (1, 16), ints(*range(16))) for index in range(2))
        answer = http_infer(server.http_port, Ask(inputs, model="simple"))
        assert binary_outputs(answer)["OUTPUT0"] == ints(*range(0, 32, 2))
        server.stop()

"""A fresh clone, from its first start to the compiled form, and what stands in the way of that form.

The clone has the files of this working tree, committed or not. Its environment uses the packages of the environment
that runs the tests, as one in which everything is installed. Of the list of modules to compile, a few are left, which
mypyc and the compiler make in seconds: `scripts/test` itself compiles them all.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
from pages import alike, blocks, steps
from server_process import LOADED, ServerProcess, started
from wire import HOST, Ask, Input, binary_outputs, http_infer, ints

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLAIN = {"PYTHONPATH": ""}
"""Without the form that the tests themselves may run in."""
NO_COMPILER = {**PLAIN, "CC": "/nonexistent/cc"}
BROKEN_COMPILER = {**PLAIN, "CC": shutil.which("false") or "false"}
COMPILED = ("core.requests.request_ids", "core.tensors.dtypes", "core.tensors.tensor")
SECONDS = 900
"""For the whole build, on a machine with no cache that does other things as well."""
FORM = r"modserve\.cli: modserve \S+, (\w+)"
LATER = r"serving the interpreted form; one core now makes the compiled one, .*\(build/compile\.log\): a later start"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an environment in which everything is installed, and nothing built."""
    place = tmp_path_factory.mktemp("clone") / "modserve"
    run("git", "clone", "--quiet", str(ROOT), str(place))
    changed = run("git", "-C", str(ROOT), "ls-files", "-z", "--modified", "--others", "--exclude-standard")
    for name in filter(None, changed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
        else:
            (place / name).unlink(missing_ok=True)
    listed = r"(?s)(?<=\ncompiled = \[\n).*?(?=\n\])"
    project = place / "pyproject.toml"
    project.write_text(re.sub(listed, ", ".join(map(json.dumps, COMPILED)), project.read_text(), count=1))
    run(sys.executable, "-m", "venv", "--without-pip", str(place / ".venv"))
    [packages] = (place / ".venv").glob("lib/python*/site-packages")
    (packages / "clone.pth").write_text(f"{place / 'src'}\n{Path(numpy.__file__).parents[1]}\n")
    programs = tomllib.loads((place / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in programs.items():  # as pip writes them
        module, _, function = entry.partition(":")
        file = place / ".venv" / "bin" / name
        file.write_text(
            f"#!{place}/.venv/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        file.chmod(0o755)
    key = run("bash", "-c", f"source {place}/scripts/environment; requirements_key").strip()
    for extra in ("", "[dev]"):
        (place / ".venv" / f"installed{extra}-{key}").touch()
    return place


def run(*command: str, environment: dict[str, str] = PLAIN) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def serving(clone: Path, environment: dict[str, str] = PLAIN) -> Iterator[ServerProcess]:
    """`scripts/serve`, whose models are loaded."""
    with started(environment=environment, program=[str(clone / "scripts" / "serve")]) as server:
        server.wait_for(LOADED)
        yield server
        server.stop()


def infer(server: ServerProcess) -> None:
    inputs = tuple(Input(f"INPUT{index}", "INT32", (1, 16), ints(*range(16))) for index in range(2))
    answer = http_infer(server.http_port, Ask(inputs, model="simple"))
    assert answer.status == 200, answer.body
    assert binary_outputs(answer)["OUTPUT0"] == ints(*range(0, 32, 2))


def built(clone: Path) -> str:
    """Waits for the build in the background, which locks its log, and returns that."""
    log = clone / "build" / "compile.log"
    run("flock", "--timeout", str(SECONDS), str(log), "true")
    return log.read_text()


def version(clone: Path, environment: dict[str, str] = NO_COMPILER) -> str:
    """What a start serves now; it builds nothing."""
    return run(str(clone / "scripts" / "serve"), "--version", environment=environment).split()[-1]


def forms(clone: Path) -> list[str]:
    return [path.name for path in (clone / "build" / "forms").glob("*")]


def test_the_start_as_the_readme_has_it(clone: Path) -> None:
    """Its first two blocks: a clone that starts, and commands in another terminal, which print what is shown."""
    begin, _, _ = (clone / "README.md").read_text().partition("\n## ")
    start, terminal = (steps(block) for block in list(blocks(begin))[:2])
    assert [step.command for step in start] == ["git clone <this repository> modserve && cd modserve", "scripts/serve"]
    assert any(step.command.startswith("modserve ") for step in terminal)
    with started(environment=NO_COMPILER, program=[str(clone / start[1].command)]) as server:
        server.wait_for(LOADED)
        printed = in_a_terminal(clone, [step.command for step in terminal], server)
        for step, text in zip(terminal, printed, strict=True):
            assert alike(text, step.shown or ""), f"$ {step.command}\n{text}\nbut shown is:\n{step.shown}"
        server.stop()


def in_a_terminal(clone: Path, commands: Sequence[str], server: ServerProcess) -> list[str]:
    """What each command prints in one shell, in the folder of the clone; no other environment is active."""
    folders = [folder for folder in os.environ["PATH"].split(":") if not (Path(folder) / "modserve").exists()]
    there = {"PATH": ":".join(folders), "MODSERVE_URL": f"http://{HOST}:{server.http_port}"}
    mark = "--- the next command"
    lines = [f"cd {shlex.quote(str(clone))}", *(f"{command}\necho '{mark}'" for command in commands)]
    printed = run("bash", "-ec", "\n".join(lines), environment={**PLAIN, **there})
    return printed.split(f"{mark}\n")[:-1]


def test_without_a_compiler_the_source_is_served(clone: Path) -> None:
    with serving(clone, NO_COMPILER) as server:
        assert "there is no C compiler (Debian: gcc libc6-dev)" in server.log
        assert server.wait_for(FORM)[1] == "interpreted"
        infer(server)
    assert not (clone / "build").exists()


def test_a_tree_that_cannot_be_written_to_is_served_from_its_source(clone: Path) -> None:
    (clone / "build").write_text("no folder can be made here")
    try:
        with serving(clone) as server:
            assert "serving the interpreted form; the compiled one cannot be made: [Errno 17] File exists" in server.log
            infer(server)
    finally:
        (clone / "build").unlink()


def test_a_broken_compiler_leaves_the_source_served(clone: Path) -> None:
    with serving(clone, BROKEN_COMPILER) as server:
        server.wait_for(LATER)
        log = built(clone)
        infer(server)
    assert "the C compiler failed; it said why above" in log
    assert "mypyc took" not in log, "it is tried before what takes long"
    assert forms(clone) == []
    assert version(clone) == "(interpreted)"


def test_the_first_start_compiles_for_the_second(clone: Path) -> None:
    """Two starts at once, of which one compiles; both serve meanwhile."""
    with serving(clone) as first, serving(clone) as second:
        for server in (first, second):
            server.wait_for(LATER)
            assert server.wait_for(FORM)[1] == "interpreted"
            infer(server)
        log = built(clone)
    assert log.count("compiling ") == 1
    assert "compiled in " in log
    [form] = forms(clone)
    with serving(clone) as server:
        assert server.wait_for(FORM)[1] == "compiled"
        assert "serving the interpreted form" not in server.log
        infer(server)
    assert version(clone) == "(compiled)"
    assert version(clone, {**PLAIN, "MODSERVE_COMPILED": "0"}) == "(interpreted)"
    assert forms(clone) == [form]


def test_the_form_of_another_commit_is_not_used(clone: Path) -> None:
    """After the test above, which leaves a form."""
    [form] = forms(clone)
    package = clone / "build" / "forms" / form / "modserve"
    compiled = sorted(json.loads((package / "compiled.json").read_text()))
    source = clone / "src" / compiled[0]
    text = source.read_text()
    source.write_text(f"{text}# another commit\n")
    try:
        assert version(clone) == "(interpreted)"
    finally:
        source.write_text(text)
    assert version(clone) == "(compiled)"
    # A copy of which only the extension modules are old, such as a build folder that was put together by hand.
    mixed = clone / "build" / "mixed"
    shutil.copytree(package.parent, mixed)
    (mixed / compiled[0]).write_text(f"{text}# another commit\n")
    done = subprocess.run(
        [str(clone / ".venv" / "bin" / "python"), "-m", "modserve", "--version"],
        env={**os.environ, "PYTHONPATH": str(mixed)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the compiled form was made of another {compiled[0]}" in done.stderr

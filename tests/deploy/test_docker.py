"""The Dockerfile, read and not built, and its entry point, run with a modserve that only prints its arguments."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "deploy" / "docker" / "entrypoint.sh"
DEFAULT = ["serve", "--model-repository=/models"]


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    flags: dict[str, str]
    text: str


def parse(dockerfile: str) -> list[Instruction]:
    """Comments out, continued lines joined, leading --flags apart. Here-documents are not understood."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, _, text = line.strip().partition(" ")
        flags = {}
        while match := re.match(r"\s*--([a-z-]+)=(\S+)\s+", text):
            flags[match[1]] = match[2]
            text = text[match.end() :]
        found.append(Instruction(name, flags, text.strip()))
    return found


def stages_of(instructions: list[Instruction]) -> list[list[Instruction]]:
    stages: list[list[Instruction]] = []
    for instruction in instructions:
        if instruction.name == "FROM":
            stages.append([])
        stages[-1].append(instruction)
    return stages


INSTRUCTIONS = parse((ROOT / "Dockerfile").read_text())
FINAL = stages_of(INSTRUCTIONS)[-1]


def final(name: str) -> Instruction:
    (found,) = [instruction for instruction in FINAL if instruction.name == name]
    return found


def words(exec_form: str) -> list[str]:
    """A shell form is no JSON, and fails here."""
    found = json.loads(exec_form)
    assert found
    assert all(isinstance(word, str) for word in found)
    return [str(word) for word in found]


def copied_from_context() -> list[str]:
    return [
        source
        for instruction in INSTRUCTIONS
        if instruction.name == "COPY" and "from" not in instruction.flags
        for source in instruction.text.split()[:-1]
    ]


def ignored(path: str, patterns: list[str]) -> bool:
    """Docker's rule: the last pattern that matches the path or one of its parents decides."""
    parts = path.split("/")
    candidates = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    verdict = False
    for pattern in patterns:
        expression = ""
        for token in re.findall(r"\*\*/|\*|\?|[^*?]+", pattern.removeprefix("!").strip("/")):
            expression += {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}.get(token, re.escape(token))
        if any(re.fullmatch(expression, candidate) for candidate in candidates):
            verdict = not pattern.startswith("!")
    return verdict


def ignore_patterns() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


# --- the Dockerfile ---------------------------------------------------------------------------------------------------


def test_parser_joins_lines_and_takes_flags_apart() -> None:
    text = '# a\nFROM x AS y\nCOPY --from=a --chmod=755 b \\\n  # why\n  c\n\nCMD ["d"]\n'
    assert parse(text) == [
        Instruction("FROM", {}, "x AS y"),
        Instruction("COPY", {"from": "a", "chmod": "755"}, "b    c"),
        Instruction("CMD", {}, '["d"]'),
    ]


def test_every_stage_starts_from_a_fixed_release_or_an_earlier_stage() -> None:
    known: set[str] = set()
    for stage in stages_of(INSTRUCTIONS):
        image, _, name = stage[0].text.partition(" AS ")
        assert image in known or image == "python:3.11-slim-bookworm"
        known.add(name)


def test_user_is_a_number_and_not_root() -> None:
    uid, gid = final("USER").text.split(":")
    assert int(uid) > 0
    assert int(gid) > 0
    (account,) = [i.text for i in FINAL if i.name == "RUN" and "useradd" in i.text]
    assert f"groupadd --gid {gid} " in account
    assert f"useradd --uid {uid} --gid {gid} " in account


def test_nothing_runs_or_is_copied_after_the_user_is_set() -> None:
    names = [instruction.name for instruction in FINAL]
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])


def test_processes_start_without_a_shell() -> None:
    (destination,) = [i.text.split()[-1] for i in FINAL if i.name == "COPY" and "entrypoint.sh" in i.text]
    assert words(final("ENTRYPOINT").text) == [destination]
    assert words(final("CMD").text) == DEFAULT
    assert words(final("HEALTHCHECK").text.removeprefix("CMD"))


def test_exposed_ports_are_the_servers_defaults() -> None:
    assert final("EXPOSE").text.split() == ["8000", "8001", "8002"]


def test_root_file_system_may_be_read_only() -> None:
    assert "PYTHONDONTWRITEBYTECODE=1" in " ".join(i.text for i in FINAL if i.name == "ENV")
    compiled = " ".join(i.text for i in INSTRUCTIONS if i.name == "RUN" and "compileall" in i.text)
    assert "/usr/local/lib/python3.11" in compiled
    assert "/opt/modserve" in compiled
    assert not [i for i in INSTRUCTIONS if i.name == "VOLUME"]


def test_image_has_the_compiled_form_and_no_compiler() -> None:
    with_compiler = []
    for first, *rest in stages_of(INSTRUCTIONS):
        runs = " ".join(i.text for i in rest if i.name == "RUN")
        if re.search(r"apt-get install [^&]*\bgcc\b", runs):
            assert "MODSERVE_COMPILED=1 pip wheel " in runs
            with_compiler.append(first.text.partition(" AS ")[2])
    assert with_compiler == [i.flags["from"] for i in FINAL if "from" in i.flags]
    assert FINAL[0].text not in with_compiler


def test_image_answers_to_the_name_of_tritonserver() -> None:
    (link,) = re.findall(r"ln -s (\S+) (\S+)", " ".join(i.text for i in FINAL if i.name == "RUN"))
    assert link == ("/opt/modserve/bin/modserve", "/usr/local/bin/tritonserver")


def test_labels_and_build_arguments() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', final("LABEL").text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["title"] == project["name"]
    assert labels["description"] == project["description"]
    assert labels["licenses"] == project["license"]
    arguments = {i.text.partition("=")[0] for i in FINAL if i.name == "ARG"}
    assert set(re.findall(r"\$\{(\w+)\}", final("LABEL").text)) == arguments


@pytest.mark.parametrize("source", copied_from_context())
def test_copied_paths_exist_and_reach_the_builder(source: str) -> None:
    path = ROOT / source
    assert path.exists()
    inside = (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    files = [path] if path.is_file() else list(inside)
    assert files
    for file in files:
        assert not ignored(file.relative_to(ROOT).as_posix(), ignore_patterns()), file


def test_build_has_what_the_wheel_is_made_of() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hatch = pyproject["tool"]["hatch"]
    needed = [
        "pyproject.toml",
        pyproject["project"]["readme"],
        *pyproject["project"]["license-files"],
        hatch["version"]["path"],
        *hatch["build"]["targets"]["wheel"]["packages"],
        "model_repository",  # hatch_build.py
    ]
    sources = copied_from_context()
    assert [path for path in needed if path not in sources and path.split("/")[0] not in sources] == []


@pytest.mark.parametrize(
    "path",
    [
        ".git/HEAD",
        ".venv/bin/python",
        "tests/deploy/test_docker.py",
        "examples/README.md",
        "deploy/k8s/service.yaml",
        "src/modserve/__pycache__/cli.cpython-311.pyc",
        "src/modserve/cli.pyc",
    ],
)
def test_everything_else_stays_out(path: str) -> None:
    assert ignored(path, ignore_patterns())


def test_the_last_ignore_pattern_that_matches_decides() -> None:
    assert not ignored("a/b/c", ["*", "!a"])
    assert ignored("a/b/c", ["*", "!a", "**/c"])
    assert ignored("ab", ["a?"])
    assert not ignored("x/ab", ["a*"])


@pytest.mark.parametrize("script", [i.text for i in INSTRUCTIONS if i.name == "RUN"] + [ENTRYPOINT.read_text()])
def test_shell_parses(script: str) -> None:
    done = subprocess.run(["/bin/sh", "-n"], input=script, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


COMPILES = [i.text for i in INSTRUCTIONS if i.name == "RUN" and "compileall" in i.text and "/opt/modserve" in i.text]


@pytest.mark.parametrize(("broken", "code"), [("torch", 0), ("modserve", 1)])
def test_bytecode_of_others_may_not_compile_and_ours_must(tmp_path: Path, broken: str, code: int) -> None:
    (step,) = COMPILES
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("modserve", "torch"):
        (packages / name).mkdir(parents=True)
        (packages / name / "whole.py").write_text("x = 1\n")
    (packages / broken / "later.py").write_text("def f[T: int, ](x) -> 1 2\n")
    command = re.sub(r"\bpython -m", f"{shlex.quote(sys.executable)} -m", step).replace("/opt/modserve", str(tmp_path))
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert sorted(path.parts[-3] for path in packages.rglob("whole.*.pyc")) == ["modserve", "torch"]


# --- the requirements -------------------------------------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def listed(directory: Path, extras: str) -> subprocess.CompletedProcess[str]:
    """What the step of the Dockerfile lists."""
    (run,) = [i.text for i in INSTRUCTIONS if i.name == "RUN" and "requirements.py" in i.text]
    command = run.partition("&&")[0].replace("python", shlex.quote(sys.executable), 1)
    for file in ("pyproject.toml", "requirements.lock", "deploy/docker/requirements.py"):
        (directory / Path(file).name).write_bytes((ROOT / file).read_bytes())
    environment = {**os.environ, "EXTRAS": extras}
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )


def test_requirements_are_those_of_the_project_and_its_extras(tmp_path: Path) -> None:
    for extras, expected in (
        ("remote", EXTRAS["remote"]),
        ("", []),
        ("redis openvino", EXTRAS["redis"] + EXTRAS["openvino"]),
        ("all", list(dict.fromkeys(line for name in parts_of_all() for line in EXTRAS[name]))),
    ):
        assert listed(tmp_path, extras).returncode == 0
        assert (tmp_path / "requirements.txt").read_text().splitlines() == [*PROJECT["dependencies"], *expected]
    failed = listed(tmp_path, "nosuch")
    assert failed.returncode == 1
    assert "there is no extra 'nosuch'; there are: examples, openvino, " in failed.stderr


def test_versions_are_those_of_the_lock_and_files_are_compared_with_it_where_they_can_be(tmp_path: Path) -> None:
    """PyTorch's index has other files, and so has what is not in the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    for extras, whole in (
        ("remote", True),
        ("redis openvino sklearn trees otel", True),
        ("all", False),
        ("gpu", False),
    ):
        assert listed(tmp_path, extras).returncode == 0
        constraints = (tmp_path / "constraints.txt").read_text()
        assert constraints.splitlines() == pins(lock)
        hashes = (tmp_path / "hashes.txt").read_text().split()
        assert hashes == (re.findall(r"--hash=(\S+)", lock) if whole else [])


def wheel(folder: Path, name: str, requires: str = "") -> str:
    """A wheel with nothing in it but its metadata; its hash."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{info}/{file}", text)
        archive.writestr(f"{info}/RECORD", "".join(f"{info}/{file},,\n" for file in (*files, "RECORD")))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_pip_installs_by_the_step_and_files_of_other_hashes_fail_it(tmp_path: Path) -> None:
    """A requirement names a range, and what it requires itself is not listed at all: the lock has both."""
    (tmp_path / "wheels").mkdir()
    hashes = {"first": wheel(tmp_path / "wheels", "first", "Requires-Dist: second\n")}
    hashes["second"] = wheel(tmp_path / "wheels", "second")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["first>=1"]\n[project.optional-dependencies]\n'
    )
    (tmp_path / "requirements.py").write_bytes((ROOT / "deploy/docker/requirements.py").read_bytes())
    venv.create(tmp_path / "environment", symlinks=True, with_pip=True)
    (step,) = [i.text for i in INSTRUCTIONS if i.name == "RUN" and "requirements.py" in i.text]
    variables = {
        "PATH": f"{tmp_path / 'environment' / 'bin'}:/usr/bin:/bin",
        "EXTRAS": "",
        "PIP_ARGS": f"--no-index --find-links {tmp_path / 'wheels'}",
    }

    def run() -> subprocess.CompletedProcess[str]:
        locked = [f"{name}==1.0 \\\n    --hash=sha256:{digest}\n" for name, digest in hashes.items()]
        (tmp_path / "requirements.lock").write_text("".join(locked))
        command = ["/bin/sh", "-c", step]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)

    done = run()
    assert done.returncode == 0, done.stderr
    site = next((tmp_path / "environment").glob("lib/python*/site-packages"))
    assert {path.name for path in site.glob("*-1.0.dist-info")} == {"first-1.0.dist-info", "second-1.0.dist-info"}
    for path in site.glob("*-1.0.dist-info"):
        shutil.rmtree(path)
    hashes["second"] = "0" * 64
    done = run()
    assert done.returncode == 1
    assert "second-1.0-py3-none-any.whl is not the file of the lock" in done.stderr
    assert "first" not in done.stderr


def pins(lock: str) -> list[str]:
    return [line.removesuffix(" \\") for line in lock.splitlines() if "==" in line and "--hash" not in line]


def parts_of_all() -> list[str]:
    (line,) = EXTRAS["all"]
    return line.removeprefix("modserve[").removesuffix("]").split(",")


def test_all_is_all_that_goes_together() -> None:
    servers = {"openvino", "torch", "trees", "sklearn", "mlflow", "remote", "redis"}
    assert servers <= set(parts_of_all())
    assert not {"gpu", "tensorflow", "dev", "docs", "examples"} & set(parts_of_all())
    assert parts_of_all() == sorted(parts_of_all())


def test_the_default_image_is_slim_and_reads_buckets() -> None:
    arguments = dict(i.text.split("=", 1) for i in INSTRUCTIONS if i.name == "ARG" and "=" in i.text)
    assert arguments["EXTRAS"] == "remote"
    assert arguments["PIP_ARGS"] == '""'


# --- the entry point --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ran:
    returncode: int
    lines: list[str]
    same_process: bool


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory for PATH with commands that print their name, process id and arguments, and exit with 7."""
    for name in ("modserve", "python"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$$"\necho {name}\nfor word; do echo "$word"; done\nexit 7\n')
        program.chmod(0o755)
    return tmp_path


def run_entrypoint(programs: Path, *arguments: str, **environment: str) -> Ran:
    process = subprocess.Popen(
        [str(ENTRYPOINT), *arguments],
        env={"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(timeout=60)
    pid, *lines = output.splitlines() or [""]
    return Ran(process.returncode, lines, pid == str(process.pid))


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        (["--model-repository=/models"], ["modserve", "--model-repository=/models"]),
        (["--model-repository", "/my models"], ["modserve", "--model-repository", "/my models"]),
        (["-h"], ["modserve", "-h"]),
        (["serve", "--model-repository", "/m"], ["modserve", "serve", "--model-repository", "/m"]),
        (["tritonserver", "--model-repository=/m"], ["modserve", "--model-repository=/m"]),
        (["tritonserver"], ["modserve"]),
        (["modserve", "serve", "--model-repository=/m"], ["modserve", "serve", "--model-repository=/m"]),
        (["python", "-V"], ["python", "-V"]),
        ([], ["modserve", *DEFAULT]),
    ],
)
def test_entrypoint_runs(programs: Path, arguments: list[str], ran: list[str]) -> None:
    # The same process, because signals must reach the server itself.
    assert run_entrypoint(programs, *arguments) == Ran(7, ran, same_process=True)


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ([], ["modserve", "serve"]),
        (DEFAULT, ["modserve", "serve"]),  # Vertex AI starts the image's own command
        (["serve"], ["modserve", "serve"]),  # so does SageMaker start every image
        (["serve", "--model-repository=/m"], ["modserve", "serve", "--model-repository=/m"]),
    ],
)
def test_on_a_platform_the_image_names_no_repository(programs: Path, arguments: list[str], ran: list[str]) -> None:
    assert run_entrypoint(programs, *arguments, MODSERVE_PLATFORM="vertex") == Ran(7, ran, same_process=True)


def test_entrypoint_refuses_a_command_that_does_not_exist(programs: Path) -> None:
    assert run_entrypoint(programs, "sevre").returncode == 127


# --- the health check -------------------------------------------------------------------------------------------------


class Server(HTTPServer):
    status = 200
    asked: str | None = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked = self.path
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


def check_health(port: int) -> int:
    command = words(final("HEALTHCHECK").text.removeprefix("CMD"))
    assert command[0] == "python"
    assert "127.0.0.1:8000/" in command[-1]
    assert "timeout=4)" in command[-1]
    # The server here is this process, which may stand still for longer than a server should.
    arguments = [word.replace(":8000/", f":{port}/").replace("timeout=4)", "timeout=25)") for word in command[1:]]
    # A proxy where nothing listens: asking through it would fail.
    environment = {**os.environ, "HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, timeout=60).returncode


def test_health_check_asks_whether_the_server_lives(server: Server) -> None:
    assert check_health(server.server_port) == 0
    assert server.asked == "/v2/health/live"


def test_health_check_fails_on_an_error(server: Server) -> None:
    server.status = 400
    assert check_health(server.server_port) == 1


def test_health_check_fails_where_nothing_listens() -> None:
    with socket.socket() as bound:  # and never listening
        bound.bind(("127.0.0.1", 0))
        assert check_health(bound.getsockname()[1]) == 1

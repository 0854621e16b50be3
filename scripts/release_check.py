"""A package of a release, tried as a user would: installed into an environment of its own, and served."""

import json
import os
import re
import subprocess
import sys
import venv
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

SECONDS = 300.0
"""For each command, and for the server."""
_PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
_ROW = list(range(16))
_TENSORS = [{"name": f"INPUT{index}", "datatype": "INT32", "shape": [1, 16], "data": _ROW} for index in range(2)]
_SUM = [2 * number for number in _ROW]


def install(package: Path | str, folder: Path, constraints: Path) -> Path:
    """Install a package, with what it requires in the versions of `constraints`; the folder of its programs.

    `package` is a file, which extras in brackets may follow.

    Raises RuntimeError if that fails, or if what is installed does not go together.
    """
    venv.create(folder, symlinks=True)  # without pip: the environment has the package and what it requires
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
    run(*pip, "install", "--quiet", "--no-compile", "--constraint", str(constraints), str(package))
    run(*pip, "check")
    return folder / "bin"


def serve(programs: Path, version: str, form: str) -> None:
    """``modserve --version``, then the example models are served, one of them answers, and SIGTERM ends the server.

    `form` is ``compiled`` or ``interpreted``. Raises RuntimeError for what is not as it should be.
    """
    program = str(programs / "modserve")
    line = run(program, "--version").strip()
    if line != f"modserve {version} ({form})":
        raise RuntimeError(f"{program} --version prints '{line}', not 'modserve {version} ({form})'")
    command = [program, "serve", "--example", *_PORTS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=_environment()) as server:
        assert server.stdout is not None
        try:
            log, port = [], 0
            for line in server.stdout:
                log.append(line)
                if match := re.match(r"HTTP listening on \S+:(\d+)$", line):
                    port = int(match[1])
                if line.startswith("Try it:"):
                    break
            else:
                raise RuntimeError("the server ended:\n" + "".join(log))
            infer(port)
        finally:
            server.terminate()
            server.stdout.read()
            server.wait(SECONDS)
    if server.returncode:
        raise RuntimeError(f"{program} serve ended with status {server.returncode} after SIGTERM")


def infer(port: int, host: str = "127.0.0.1") -> None:
    """One inference of the example model ``simple``. Raises RuntimeError for another answer than the right one."""
    with closing(HTTPConnection(host, port, timeout=SECONDS)) as connection:
        body = json.dumps({"inputs": _TENSORS})
        connection.request("POST", "/v2/models/simple/infer", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    outputs = json.loads(text).get("outputs", []) if response.status == 200 else []
    if [each["data"] for each in outputs if each["name"] == "OUTPUT0"] != [_SUM]:
        raise RuntimeError(f"the model 'simple' answered {response.status} {text}")


def run(*command: str) -> str:
    """What a command prints. Raises RuntimeError with it if the command fails."""
    done = subprocess.run(
        command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Without what would bring in another modserve, or options of its own."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and "MODSERVE_" not in name}
    return {**own, "MODSERVE_COMPILED": "0"}

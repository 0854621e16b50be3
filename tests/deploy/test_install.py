"""``pip install`` of modserve and of Triton's client into one environment, in either order: both work there.

What is installed is a wheel, which has the example models in it. It is pure Python, with the requirements of the
compiled one, which `test_wheels.py` serves: without object files of an earlier build, that would take minutes to make.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SECONDS = 300.0
"""For each command; all of it together takes half a minute, or much longer where the packages come from afar."""

CLIENT = "tritonclient[all]"
CALLS = """
import contextlib, re, subprocess, sys
import numpy as np
import tritonclient.grpc, tritonclient.http

command = [sys.executable, "-m", "modserve", "serve", "--example"]
command += [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    log, ports = [], {}
    for line in server.stdout:
        log.append(line)
        if found := re.match(r"(HTTP|gRPC) listening on \\S+:(\\d+)$", line):
            ports[found[1]] = int(found[2])
        if line.startswith("Try it:"):
            break
    else:
        sys.exit("the server ended:\\n" + "".join(log))
    for module, name in ((tritonclient.http, "HTTP"), (tritonclient.grpc, "gRPC")):
        with contextlib.closing(module.InferenceServerClient(f"127.0.0.1:{ports[name]}")) as client:
            assert client.is_server_ready()
            inputs = [module.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in range(2)]
            for each in inputs:
                each.set_data_from_numpy(np.full((1, 16), 21, np.int32))
            assert (client.infer("simple", inputs).as_numpy("OUTPUT0") == 42).all()
finally:
    server.terminate()
    server.stdout.read()
sys.exit(server.wait(20))
"""


def run(*command: str | Path, **environment: str) -> None:
    # The modserve that was installed is tested, not one that PYTHONPATH may name.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    pipe = subprocess.PIPE
    done = subprocess.run(
        command, env=variables, stdout=pipe, stderr=pipe, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"


def wheel(folder: Path) -> str:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, MODSERVE_COMPILED="0")
    [path] = folder.iterdir()
    return str(path)


def install_and_serve(environment: Path, packages: list[str]) -> None:
    """Each package by a command of its own, as people do."""
    venv.create(environment, symlinks=True)  # without pip, which takes longer than what it is for
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    for package in packages:
        run(*pip, "install", "--quiet", "--no-compile", package)
    run(*pip, "check")
    run(python, "-c", CALLS)


def test_beside_tritons_client(tmp_path: Path) -> None:
    server = wheel(tmp_path / "wheel")
    orders = {"server first": [server, CLIENT], "client first": [CLIENT, server]}
    with ThreadPoolExecutor(len(orders)) as threads:
        list(threads.map(lambda name: install_and_serve(tmp_path / name.replace(" ", "-"), orders[name]), orders))

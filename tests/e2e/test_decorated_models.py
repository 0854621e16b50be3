"""Functions and classes as models: on the command line, in a program, and in a repository, as the page on them says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_here import serving_here
from server_process import LOADED, Server, started
from wire import http

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python-models.md"
STREAMING = """
import asyncio
from collections.abc import AsyncIterator


@modserve.model
async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0.01)
        yield word
"""

PROGRAM = """
import modserve
import numpy as np


@modserve.model(inputs={"x": ("FP32", [2])}, outputs={"y": ("FP32", [2])}, isolation="thread")
def halve(x):
    return x / 2


async def main() -> None:
    async with modserve.InferenceServer(modserve.Settings(python_model=halve)) as server:
        response = await server.infer("halve", {"x": np.array([2, 4], np.float32)})
        print(response.outputs["y"].array)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
"""

NAMES = ("double", "sentiment", "colours", "shout", "count", "words", "Scale")

RAISING = """
import os
import modserve


@modserve.model
def careful(text: str) -> str:
    if text == "refused":
        raise modserve.InvalidInputError("no such word")
    if text == "crash":
        os.abort()
    raise KeyError(text)
"""


def blocks() -> list[str]:
    """The Python of the section on functions."""
    section = PAGE.read_text("utf-8").partition("\n## Functions\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def call(server: Server, model: str, *inputs: tuple[str, str, list[int], list[Any]]) -> dict[str, Any]:
    body = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "data": data} for name, datatype, shape, data in inputs
        ]
    }
    answer = http(server.http_port, "POST", f"/v2/models/{model}/infer", json.dumps(body).encode())
    assert answer.status == 200, answer.body
    return {each["name"]: each["data"] for each in answer.json["outputs"]}


def failed(server: Server, model: str, text: str) -> tuple[int, str]:
    answer = http(server.http_port, "POST", f"/v2/models/{model}/generate", json.dumps({"text": text}).encode())
    return answer.status, answer.json["error"]


def streamed(server: Server, model: str, **inputs: Any) -> list[Any]:
    answer = http(server.http_port, "POST", f"/v2/models/{model}/generate_stream", json.dumps(inputs).encode())
    return [json.loads(line)["output"] for line in re.findall(r"^data: (.*)$", answer.body.decode(), re.MULTILINE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the page's functions in `functions.py`, and a program in `program.py`."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions.py").write_text("\n\n".join([*blocks(), STREAMING]))
    (folder / "program.py").write_text(PROGRAM)
    (folder / "raising.py").write_text(RAISING)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    places = [f"{folder}/functions.py:{name}" for name in NAMES]
    with serving_here(options=[*places, f"three={folder}/functions.py:Scale"]) as running:
        yield running


def test_the_functions_of_the_page(server: Server) -> None:
    assert call(server, "double", ("points", "FP32", [1, 3], [1, 2, 3])) == {"output": [2, 4, 6]}
    assert call(server, "sentiment", ("text", "BYTES", [1], ["a!"])) == {"label": ["calm"], "score": [0.5]}
    threshold = ("threshold", "FP64", [1], [0.4])
    assert call(server, "sentiment", ("text", "BYTES", [1], ["a!"]), threshold)["label"] == ["excited"]
    image = ("image", "UINT8", [1, 2, 3], [1, 2, 3, 3, 4, 5])
    assert call(server, "colours", image) == {"mean": [2, 3, 4], "size": [1, 2]}
    assert call(server, "shout", ("texts", "BYTES", [2, 1], ["a", "b"])) == {"output": ["A", "B"]}
    for scale in ("Scale", "three"):
        assert call(server, scale, ("x", "FP32", [2, 1], [1, 2])) == {"output": [3, 6]}


def test_streams(server: Server) -> None:
    assert streamed(server, "count", upto=3) == [0, 1, 2]
    assert streamed(server, "words", text="one two") == ["one", "two"]


def test_what_clients_see_of_the_models(server: Server) -> None:
    config = http(server.http_port, "GET", "/v2/models/Scale/config").json
    assert (config["backend"], config["max_batch_size"]) == ("python", 16)
    assert config["instance_group"][0]["count"] == 2
    assert "dynamic_batching" in config
    metadata = http(server.http_port, "GET", "/v2/models/sentiment").json
    assert [each["name"] for each in metadata["outputs"]] == ["label", "score"]


def test_a_program(folder: Path) -> None:
    result = subprocess.run([sys.executable, folder / "program.py"], capture_output=True, text=True, check=True)
    assert result.stdout == "[1. 2.]\n"


def test_a_script_whose_function_runs_in_a_process(folder: Path) -> None:
    (folder / "script.py").write_text((folder / "program.py").read_text().replace(', isolation="thread"', ""))
    result = subprocess.run([sys.executable, folder / "script.py"], capture_output=True, text=True, check=True)
    assert result.stdout == "[1. 2.]\n"


def test_type_checkers_understand_functions_and_program(folder: Path) -> None:
    """Strictly, but for the functions without hints that the page has, too."""
    options = ["--strict", "--allow-untyped-defs", "--config-file=", "--follow-imports=silent"]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "functions.py", "program.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


def test_in_a_repository_and_beside_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "double" / "1").mkdir(parents=True)
    (tmp_path / "double" / "1" / "model.py").write_text(blocks()[0])
    with serving_here(tmp_path, options=[f"{folder}/functions.py:shout"]) as server:
        assert call(server, "double", ("points", "FP32", [1, 3], [1, 2, 3])) == {"output": [2, 4, 6]}
        assert call(server, "shout", ("texts", "BYTES", [1, 1], ["a"])) == {"output": ["A"]}


def test_errors_of_functions_and_the_end_of_a_worker(folder: Path, tmp_path: Path) -> None:
    with started(options=[f"{folder}/raising.py:careful"], environment={"TMPDIR": str(tmp_path)}) as server:
        server.wait_for(LOADED)
        assert failed(server, "careful", "refused") == (400, "no such word")
        assert failed(server, "careful", "x") == (500, "KeyError: 'x'\n\nAt:\n  raising.py(12): careful\n")
        status, text = failed(server, "careful", "crash")
        assert (status, "SIGABRT" in text) == (503, True)
        server.stop(errors=["Traceback", "SIGABRT"])
        assert list(tmp_path.iterdir()) == []


def test_under_a_supervisor_and_in_mode_explicit(folder: Path) -> None:
    options = [f"{folder}/functions.py:count", "--supervise", "--model-control-mode=explicit"]
    with started(options=options) as server:
        server.wait_for(LOADED)
        assert streamed(server, "count", upto=2) == [0, 1]
        assert http(server.http_port, "POST", "/v2/repository/models/count/unload").status == 200
        assert http(server.http_port, "POST", "/v2/repository/models/count/load").status == 200
        assert streamed(server, "count", upto=1) == [0]
        server.stop()

"""What a server refuses to load: links out of the repository, wrong digests, code; and what it says of it."""

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from repositories import EXAMPLES, copy_example, write_identity
from server_here import serving_here, started_here
from server_process import Server, eventually
from wire import http

PROGRAM = b"""\
import pathlib

pathlib.Path(__file__).with_name("ran").touch()


class TritonPythonModel:
    def execute(self, requests):
        return []
"""
LINES = """\
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
NOT_LOADED = "is not loaded"


def index(server: Server) -> dict[str, tuple[str, str]]:
    """State and reason by model."""
    rows = http(server.http_port, "POST", "/v2/repository/index", b"{}").json
    return {row["name"]: (row.get("state", ""), row.get("reason", "")) for row in rows}


def load(server: Server, name: str, **parameters: Any) -> tuple[int, str]:
    body = json.dumps({"parameters": parameters}).encode()
    response = http(server.http_port, "POST", f"/v2/repository/models/{name}/load", body)
    return response.status, response.body.decode()


def write_sums(model: Path) -> None:
    """A list of the digests that the files of a model have now."""
    files = [each for each in sorted(model.rglob("*")) if each.is_file() and each.name != "SHA256SUMS"]
    lines = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  ./{each.relative_to(model)}\n" for each in files)
    (model / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with a good model, a link to another one outside, and a program."""
    models = tmp_path / "models"
    copy_example(models, "simple", "simple")
    copy_example(tmp_path / "outside", "simple", "linked")
    (models / "linked").symlink_to(tmp_path / "outside" / "linked")
    (models / "lines" / "1").mkdir(parents=True)
    (models / "lines" / "config.pbtxt").write_text(LINES)
    (models / "lines" / "1" / "model.py").write_bytes(PROGRAM)
    return models


def test_links_and_code(models: Path) -> None:
    with serving_here(models, options=["--deny-code"], errors=[NOT_LOADED]) as server:
        states = index(server)
    assert states["simple"] == ("READY", "")
    state, reason = states["linked"]
    assert state == "UNAVAILABLE"
    assert f"'{models}/linked' is a link out of the model repository, to '{models.parent}/outside/linked'." in reason
    assert "start the server with --allow-outside-symlinks" in reason
    state, reason = states["lines"]
    assert state == "UNAVAILABLE"
    assert "since the server runs with --deny-code: a Python model is a program" in reason
    assert not (models / "lines" / "1" / "ran").exists()


def test_links_and_code_are_allowed(models: Path) -> None:
    (models.parent / "current").symlink_to(models)
    with serving_here(models.parent / "current", options=["--allow-outside-symlinks"]) as server:
        assert {state for state, _ in index(server).values()} == {"READY"}
    assert (models / "lines" / "1" / "ran").exists()


def test_calls_that_load_models_keep_the_rules(models: Path) -> None:
    write_identity(models, "other")
    options = ["--deny-code", "--model-control-mode=explicit"]
    with serving_here(models, options=options, errors=[NOT_LOADED]) as server:
        assert load(server, "simple")[0] == 200
        config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
        status, text = load(server, "linked", config=config)
        assert status == 400
        assert "is a link out of the model repository" in text
        encoded = base64.b64encode(PROGRAM).decode()
        python = json.dumps(
            {
                "backend": "python",
                "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
                "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
            }
        )
        status, text = load(server, "simple", config=python, **{"file:1/model.py": encoded})
        assert status == 400
        assert "since the server runs with --deny-code: a Python model is a program" in text
        assert index(server)["simple"][0] == "READY"  # with what it had


def test_digests(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("good", "damaged", "without"):
        copy_example(models, "simple", name)
    write_sums(models / "good")
    write_sums(models / "damaged")
    weights = models / "damaged" / "1" / "model.onnx"
    with weights.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    options = ["--require-digests", "--model-control-mode=poll", "--repository-poll-secs=1"]
    with serving_here(models, options=options, errors=[NOT_LOADED]) as server:
        states = index(server)
        assert states["good"] == ("READY", "")
        state, reason = states["damaged"]
        assert state == "UNAVAILABLE"
        assert f"mismatched SHA256 of '{weights}': expected " in reason
        state, reason = states["without"]
        assert state == "UNAVAILABLE"
        assert "there is no SHA256 digest of: 1/model.onnx, config.pbtxt" in reason
        shutil.copy(EXAMPLES / "simple" / "1" / "model.onnx", weights)
        write_sums(models / "without")
        eventually(lambda: {state for state, _ in index(server).values()} == {"READY"})
        (models / "good" / "1" / "model.onnx").write_bytes(b"not what it was")
        eventually(lambda: "mismatched SHA256" in server.log.partition("READY")[2])
        response = http(server.http_port, "GET", "/v2/models/good/versions/1/ready")
        assert response.status == 200, "what serves goes on"


def test_a_worker_that_is_started_again_runs_no_other_program(tmp_path: Path) -> None:
    models = tmp_path / "models"
    program = (
        b"import os\n\n\nclass TritonPythonModel:\n    def execute(self, requests):\n        os._exit(1)\n"
        b"# the text that the list is about\n"
    )
    (models / "lines" / "1").mkdir(parents=True)
    (models / "lines" / "config.pbtxt").write_text(LINES)
    (models / "lines" / "1" / "model.py").write_bytes(program)
    write_sums(models / "lines")
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    with serving_here(models, errors=["lines"]) as server:
        (models / "lines" / "1" / "model.py").write_bytes(program.replace(b"_exit(1)", b"_exit(2)"))
        assert http(server.http_port, "POST", "/v2/models/lines/infer", body).status == 503
        server.wait_for("mismatched SHA256 of .*model.py")
        assert http(server.http_port, "GET", "/v2/models/lines/ready").status == 400


def test_one_file_with_a_list_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = Path(shutil.copy(EXAMPLES / "simple" / "1" / "model.onnx", folder / "sums.onnx"))
    with started_here(options=[str(file), "--require-digests"]) as server:
        server.wait(1, errors=[NOT_LOADED, "no model has loaded"])
        assert "there is no SHA256 digest of: 1/sums.onnx" in server.log
        assert f"cd {folder} && find" in server.log
    write_sums(folder)
    with serving_here(options=[str(file), "--require-digests"]) as server:
        assert index(server)["sums"] == ("READY", "")

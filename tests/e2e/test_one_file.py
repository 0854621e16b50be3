"""``modserve serve model.onnx``: models without a repository, as people start them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from command_here import run_here
from repositories import EXAMPLES, copy_example, write_identity
from server_here import serving_here
from server_process import eventually, serving
from terminal_process import at_terminal
from wire import http

SIMPLE = EXAMPLES / "simple" / "1" / "model.onnx"
REQUEST = json.dumps(
    {
        "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))},
            {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16},
        ]
    }
).encode()


def outputs(port: int, model: str) -> dict[str, list[int]]:
    response = http(port, "POST", f"/v2/models/{model}/infer", REQUEST)
    assert response.status == 200, response.body
    return {each["name"]: each["data"] for each in response.json["outputs"]}


def refused(*words: str, folder: Path) -> str:
    """What the command says on standard error of words that name no model."""
    run = run_here("serve", *words, folder=folder)
    assert (run.returncode, run.stdout) == (2, ""), run
    return run.stderr


def failed(*words: str, folder: Path, code: int = 2) -> str:
    """What a server says on standard error that does not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")}
    command = [sys.executable, "-m", "modserve", "serve", *words]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == code, run.stderr
    assert code == 1 or not run.stdout
    return run.stderr


@pytest.mark.parametrize("options", [(), ("--workers=2",)], ids=["one process", "workers"])
def test_a_file_a_directory_and_a_repository(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = Path(shutil.copy(SIMPLE, tmp_path / "sums.onnx"))
    copy_example(tmp_path, "simple", "directory")
    write_identity(tmp_path / "models", "identity")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = [str(file), f"other={file}", str(tmp_path / "directory"), *options]
    with serving(tmp_path / "models", options=words, environment={"TMPDIR": str(temporary)}) as server:
        server.wait_for("^sums +1 +READY")
        for model in ("sums", "other", "directory"):
            assert outputs(server.http_port, model)["OUTPUT0"] == [number + 1 for number in range(16)]
        names = {entry["name"] for entry in http(server.http_port, "POST", "/v2/repository/index", b"{}").json}
        assert names == {"sums", "other", "directory", "identity"}
        assert f"'{file}' is model 'sums', version 1, of backend 'onnxruntime'" in server.log
    assert list(temporary.glob("modserve-*/*/1")) == []


def test_a_file_that_changes_is_loaded_again(tmp_path: Path) -> None:
    file = Path(shutil.copy(SIMPLE, tmp_path / "sums.onnx"))
    changed = onnx.load(file)
    for node in changed.graph.node:  # sums and differences change places
        node.op_type = {"Add": "Sub", "Sub": "Add"}.get(node.op_type, node.op_type)
    onnx.save(changed, tmp_path / "new")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = [str(file), "--model-control-mode=poll", "--repository-poll-secs=1"]
    with serving(options=options, environment={"TMPDIR": str(temporary)}) as server:
        port = server.http_port
        server.wait_for("^sums +1 +READY")
        assert outputs(port, "sums")["OUTPUT0"][0] == 1
        os.utime(tmp_path / "new")  # later than the first file, however coarse the clock of the file system
        (tmp_path / "new").rename(file)
        eventually(lambda: outputs(port, "sums")["OUTPUT0"][0] == -1)
        eventually(lambda: len(list(temporary.glob("modserve-*/sums/1"))) == 1)
        file.unlink()
        eventually(lambda: http(port, "GET", "/v2/models/sums/ready").status == 400)
        eventually(lambda: not list(temporary.glob("modserve-*/sums/1")))


def test_a_file_is_loaded_by_name_in_mode_explicit(tmp_path: Path) -> None:
    file = Path(shutil.copy(SIMPLE, tmp_path / "sums.onnx"))
    with serving_here(options=[str(file), "--model-control-mode=explicit"]) as server:
        port = server.http_port
        server.wait_for("^sums +1 +READY")
        assert http(port, "POST", "/v2/repository/models/sums/unload", b"{}").status == 200
        assert http(port, "POST", "/v2/repository/models/sums/load", b"{}").status == 200
        assert outputs(port, "sums")["OUTPUT1"][0] == -1


def test_what_is_no_model(tmp_path: Path) -> None:
    copy_example(tmp_path / "models", "simple", "simple")
    (tmp_path / "weights.safetensors").touch()
    (tmp_path / "train.py").write_text("import pathlib\npathlib.Path('trained').touch()\ndef predict(x): ...\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "cancer.txt").write_text("tree\nversion=v4\n")
    shutil.copy(SIMPLE, tmp_path / "simple.onnx")
    said = {
        "absent.onnx": f"there is no file '{tmp_path}/absent.onnx'",
        "weights.safetensors": "is a file of weights without the model's graph",
        "train.py": f"'{tmp_path}/train.py' defines no model, and is not run: expected a class TritonPythonModel",
        "cancer.txt": "; with this ending, models are called model.txt; 'modserve engines' lists the formats",
        "empty": "is not a model: no engine recognises a file in it by its name",
        "models": f"'{tmp_path}/models' is a repository, with models in it: modserve serve --model-repository",
        "x=models/simple": "is called 'simple' after its directory, not 'x'",
    }
    for word, text in said.items():
        assert text in refused(word, folder=tmp_path)
    assert not (tmp_path / "trained").exists()
    assert "two models are called 'simple'" in refused("simple.onnx", "models/simple", folder=tmp_path)
    assert "Unexpected argument: nothing" in failed("nothing", folder=tmp_path)


@pytest.mark.parametrize("option", ["--workers=1", "--workers=2", "--supervise=true"])
def test_nothing_that_could_be_served(tmp_path: Path, option: str) -> None:
    """It ends; nobody could make it serve anything."""
    (tmp_path / "bad.py").write_text("class TritonPythonModel: ...\n\n\nraise RuntimeError('no such device')\n")
    text = failed("bad.py", "--http-port=0", "--grpc-port=0", "--metrics-port=0", option, folder=tmp_path, code=1)
    assert "no such device" in text
    assert "no model has loaded, so there is nothing to serve, and the server ends" in text


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("broken.onnx", "no graph", "failed to load model 'broken' from '{}'"),
        ("raises.py", "class TritonPythonModel:\n    pass\n\nraise ValueError(1)\n", "{}(4): <module>"),
    ],
)
def test_errors_name_the_file_itself(tmp_path: Path, name: str, content: str, place: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    log = failed(str(file), "--http-port=0", "--grpc-port=0", "--metrics-port=0", folder=tmp_path, code=1)
    assert place.format(file) in log
    assert "/modserve-" not in log


def test_a_repository_of_which_nothing_is_served_says_so(tmp_path: Path) -> None:
    write_identity(tmp_path, "identity")
    (tmp_path / "identity" / "config.pbtxt").write_text("nonsense")
    with serving_here(tmp_path, errors=["identity"]) as server:
        server.wait_for("^No model has loaded: nothing is served. Ctrl-C ends the server")
        assert http(server.http_port, "GET", "/v2/health/live").status == 200


@pytest.mark.parametrize("option", ["--workers=1", "--workers=2", "--supervise=true"])
def test_a_terminal_that_closes_ends_its_server(tmp_path: Path, option: str) -> None:
    words = ["serve", str(SIMPLE), "--http-port=0", "--grpc-port=0", "--metrics-port=0", option]
    with at_terminal(words) as terminal:
        terminal.expect("Try it:")
        assert terminal.hang_up() == 0


def test_a_server_with_a_log_file_outlives_its_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["serve", str(SIMPLE), "--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--log-file={log}"]
    with at_terminal(words) as terminal:
        terminal.expect("Try it:")
        terminal.process.send_signal(signal.SIGHUP)
        eventually(lambda: "SIGHUP: the log file was opened anew" in log.read_text())
        assert terminal.process.poll() is None


def test_nohup(tmp_path: Path) -> None:
    """SIGHUP is ignored when it starts."""
    words = ["serve", str(SIMPLE), "--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with at_terminal(words) as terminal:
            terminal.expect("Try it:")
            terminal.process.send_signal(signal.SIGHUP)
            terminal.expect("SIGHUP: the log goes to standard error")
            assert terminal.process.poll() is None
    finally:
        signal.signal(signal.SIGHUP, before)

"""``modserve tune`` with servers of its own: it tries, recommends, and changes no file of the user's."""

import re
from pathlib import Path

import pytest
from server_process import serving

from modserve.commands import terminal
from modserve.commands.tune.repository import model_repository

CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
parameters { key: "execute_delay_ms" value { string_value: "50" } }
"""
QUICK = ["--window-secs=0.2", "--warm-up-secs=0.05", "--windows=3", "--window-requests=5", "--stability=10000"]


def test_a_model_that_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many configurations are tried in the time depends on the machine; the unit tests know what is the best."""
    repository = tmp_path / "models"
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    output, page = tmp_path / "new" / "slow" / "config.pbtxt", tmp_path / "report.html"
    output.parent.mkdir(parents=True)
    words = ["slow", f"--model-repository={repository}", "--goal-ms=400", "--percentile=80", "--budget-secs=8"]
    words += [f"--output={output}", f"--html={page}", *QUICK]
    code = terminal.run("tune", words)
    text = capsys.readouterr().out
    assert code == 0, text
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before
    assert output.read_text().startswith("# The configuration of model 'slow' that 'modserve tune' recommends")
    assert re.search(r"^current +current.* +[\d.]+/s at p80 [\d.]+ ms$", text, re.MULTILINE), text
    assert page.read_text().count("<svg") >= 2
    (output.parent / "1").mkdir()
    assert terminal.run("check", [str(output.parents[1])]) == 0


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("tune", ["m", f"--model-repository={tmp_path}", "--goal-ms=10"]) == 2
    assert "model 'm' does not exist in" in capsys.readouterr().err


def test_the_repository_is_that_of_the_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "of the server"
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with serving(repository) as server:
        monkeypatch.setenv("MODSERVE_URL", f"http://localhost:{server.http_port}")
        assert model_repository("slow", "") == repository
        assert terminal.run("tune", ["sloww", "--goal-ms=10"]) == 2
    said = capsys.readouterr().err
    assert f"model 'sloww' does not exist in '{repository}', the current folder, 'models' or 'model_repository'" in said


def test_a_model_that_does_not_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"nonsense")
    assert terminal.run("tune", ["m", f"--model-repository={tmp_path}", "--goal-ms=10"]) == 1
    assert "the model does not load" in capsys.readouterr().err

"""``modserve init``: what it writes has no problems and serves; nothing is written over."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from mistakes import EXAMPLES
from onnx import TensorProto, helper

from kept_logging import untouched_logging
from modserve import InferenceServer, Settings, cli
from modserve.core.tensors.tensor import Array

pytestmark = pytest.mark.usefixtures(untouched_logging.__name__)

ONNX = EXAMPLES / "simple" / "1" / "model.onnx"
X = np.array([[1, 2, 3]], np.float32)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


async def served(repository: str, model: str, inputs: dict[str, Array]) -> dict[str, Array]:
    async with InferenceServer(Settings(model_repository=(repository,))) as server:
        response = await server.infer(model, inputs)
        return {name: tensor.array for name, tensor in response.outputs.items()}


PYTHON = ["1/model.py", "README.md", "config.pbtxt"]
WRITTEN = {
    "python": [f"m/{file}" for file in PYTHON],
    "function": ["m/1/model.py", "m/README.md"],
    "ensemble": [
        "m/README.md",
        "m/config.pbtxt",
        *(f"m_{step}/{file}" for step in ("first", "second") for file in ("1/model.py", "config.pbtxt")),
    ],
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_template_has_no_problems(kind: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "m", "--from", kind]) == 0
    assert files(here / "models") == WRITTEN[kind]
    output = capsys.readouterr().out
    assert "wrote models/m/README.md" in output
    assert "modserve serve --model-repository models" in output
    assert "curl localhost:8000/v2/models/m/infer" in output
    assert "@" not in "".join(
        path.read_text() for path in (here / "models").rglob("*") if path.suffix in (".md", ".pbtxt")
    )
    assert cli.main(["check", "models"]) == 0
    assert "no problems" in capsys.readouterr().out


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_template_serves(kind: str) -> None:
    assert cli.main(["init", "m", "--from", kind]) == 0
    [output] = asyncio.run(served("models", "m", {"x": X})).values()
    assert output.tolist() == ([[1, 2, 3]] if kind == "ensemble" else [[2, 4, 6]])


def test_a_model_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "adder", "--from", str(ONNX), "--model-repository=mine"]) == 0
    assert files(here / "mine") == ["adder/1/model.onnx", "adder/config.pbtxt"]
    text = (here / "mine" / "adder" / "config.pbtxt").read_text()
    assert text.startswith("# The configuration of model 'adder', made from model.onnx by 'modserve init'.")
    said = capsys.readouterr().out
    assert "\n  modserve bench adder\n" in said
    assert "\nthen call it:\n  modserve infer adder --sample\n" in said
    assert cli.main(["check", "mine"]) == 0
    ones = np.ones((1, 16), np.int32)
    response = asyncio.run(served("mine", "adder", {"INPUT0": ones, "INPUT1": ones}))
    assert response["OUTPUT0"].tolist() == [[2] * 16]


def test_a_model_file_whose_data_is_too_long_to_show(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "large.onnx").write_bytes(onnx_identity([1, 3, 224, 224]))
    assert cli.main(["init", "large", "--from", "large.onnx"]) == 0
    assert (
        "\nthen call it:\n  modserve infer large @picture.jpg    # yours; or --sample in place of it\n"
        in capsys.readouterr().out
    )


def onnx_identity(shape: list[int]) -> bytes:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "large", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def test_weights_beside_a_file_come_with_it(here: Path) -> None:
    shutil.copy(ONNX, here / "net.onnx")
    for name in ("net.onnx.data", "net.txt", "other.onnx"):
        (here / name).write_bytes(b"weights")
    assert cli.main(["init", "net", "--from", "net.onnx"]) == 0
    assert files(here / "models") == ["net/1/net.onnx", "net/1/net.onnx.data", "net/config.pbtxt"]
    assert 'default_model_filename: "net.onnx"' in (here / "models" / "net" / "config.pbtxt").read_text()


@pytest.mark.parametrize("source", ["python", "function", "ensemble", str(ONNX)])
def test_nothing_is_written_over(source: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken_name = "m_second" if source == "ensemble" else "m"
    (here / "models" / taken_name).mkdir(parents=True)
    (here / "models" / taken_name / "mine.txt").write_text("mine")
    assert cli.main(["init", "m", "--from", source]) == 1
    assert f"'models/{taken_name}' already exists" in capsys.readouterr().err
    assert files(here / "models") == [f"{taken_name}/mine.txt"]


def test_a_file_that_is_no_model_leaves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken.onnx").write_bytes(b"nonsense")
    assert cli.main(["init", "m", "--from", "broken.onnx"]) == 1
    assert "modserve: " in capsys.readouterr().err
    assert files(here) == ["broken.onnx"]
    assert not (here / "models" / "m").exists()


MISTAKES = {
    "no source": (["m"], "the following arguments are required: --from"),
    "another kind": (
        ["m", "--from", "pyton"],
        "file 'pyton' does not exist, and is none of python, function, ensemble",
    ),
    "a path for a name": (["a/b", "--from", "python"], "'a/b' is not a valid model name"),
    "a hidden name": ([".a", "--from", "python"], "'.a' is not a valid model name"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_wrong_command_line(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, text = MISTAKES[case]
    assert cli.main(["init", *words]) == 2
    assert text in capsys.readouterr().err
    assert files(here) == []

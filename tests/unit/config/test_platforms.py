"""Which backend a model is for, and what follows from it."""

from pathlib import Path

import pytest

from modserve import config
from modserve.config import FORMATS

# Configuration → backend, platform, default_model_filename.
WRITTEN = {
    'backend: "onnxruntime"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'platform: "onnxruntime_onnx"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'platform: "pytorch_libtorch"': ("pytorch", "pytorch_libtorch", "model.pt"),
    'platform: "torch_aoti"': ("pytorch", "torch_aoti", "model.pt2"),
    'platform: "libtorch"': ("pytorch", "libtorch", "model.pt"),
    'backend: "pytorch"': ("pytorch", "pytorch_libtorch", "model.pt"),
    'platform: "tensorrt_plan"': ("tensorrt", "tensorrt_plan", "model.plan"),
    'platform: "tensorflow_graphdef"': ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    'backend: "python"': ("python", "", "model.py"),
    'backend: "openvino"': ("openvino", "", "model.xml"),
    'backend: "mine"': ("mine", "", ""),
    'backend: "mine" default_model_filename: "x.onnx"': ("mine", "", "x.onnx"),
    'default_model_filename: "resnet.onnx"': ("onnxruntime", "onnxruntime_onnx", "resnet.onnx"),
    'backend: "onnxruntime" default_model_filename: "weights.bin"': ("onnxruntime", "onnxruntime_onnx", "weights.bin"),
    'default_model_filename: "weights.bin"': ("", "", "weights.bin"),
    'platform: "ensemble"': ("", "ensemble", ""),
    'platform: "caffe"': ("", "caffe", ""),
    "": ("", "", ""),
}


@pytest.mark.parametrize(("text", "expected"), WRITTEN.items())
def test_written(text: str, expected: tuple[str, str, str]) -> None:
    draft = config.parse(text, Path("repository/foo/config.pbtxt"), "foo")
    found = draft.identified

    assert (found.backend, found.platform, found.default_model_filename) == expected
    assert draft.backend == expected[0]
    assert found.name == "foo"


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.filename)
def test_found_in_a_version_directory(tmp_path: Path, row: tuple[str, str, str]) -> None:
    filename, backend, platform = row
    for file in ("notes/model.onnx", "2/readme.txt", f"10/{filename}"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    found = config.read(tmp_path / "config.pbtxt", "foo").identified

    assert (found.backend, found.platform, found.default_model_filename) == (backend, platform, filename)


def test_a_written_backend_chooses_among_the_files(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    (tmp_path / "1" / "model.pt2").touch()
    found = config.parse('backend: "pytorch"', tmp_path / "config.pbtxt", "foo").identified

    assert (found.platform, found.default_model_filename) == ("torch_aoti", "model.pt2")


def test_a_file_called_like_a_version_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").touch()

    assert config.read(tmp_path / "config.pbtxt", "foo").backend == ""


def test_the_model_name_is_the_last_resort() -> None:
    found = config.read(Path("nowhere/delay.identity/config.pbtxt"), "delay.identity").identified

    assert (found.backend, found.platform, found.default_model_filename) == ("identity", "", "model.identity")


def test_the_draft_keeps_what_was_written() -> None:
    draft = config.parse('backend: "python"', Path("foo/config.pbtxt"), "foo")

    assert draft.identified.name == "foo"
    assert draft.message.name == ""

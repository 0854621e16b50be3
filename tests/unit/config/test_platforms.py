"""Which backend a model is for, and what follows from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from modserve import config
from modserve.config import FORMATS, PLATFORMS, backend_names
from modserve.config.features.directory import BACKENDS, ModelFormat

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
    'backend: "onnx_runtime"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'backend: "ONNXRuntime"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'backend: "onnx"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'backend: "onnxruntime_onnx"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'backend: "torchscript"': ("pytorch", "pytorch_libtorch", "model.pt"),
    'backend: "libtorch"': ("pytorch", "libtorch", "model.pt"),
    'backend: "torch-aoti"': ("pytorch", "torch_aoti", "model.pt2"),
    'backend: "tf"': ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    'backend: "keras"': ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    'backend: "tensorflow_graphdef"': ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    'backend: "graphdef"': ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    'backend: "tf" platform: "tensorflow_graphdef"': ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    'backend: "tensorrt_plan"': ("tensorrt", "tensorrt_plan", "model.plan"),
    'platform: "TensorFlow_SavedModel"': ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    'platform: "onnx"': ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    'platform: "openvino"': ("openvino", "", "model.xml"),
    'backend: "onnxruntim"': ("onnxruntim", "", ""),
    'backend: "onnxruntim" default_model_filename: "resnet.onnx"': ("onnxruntime", "onnxruntime_onnx", "resnet.onnx"),
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
def test_found_in_a_version_directory(tmp_path: Path, row: ModelFormat) -> None:
    filename, backend, platform = row.filename, row.backend, row.platform
    files = ["notes/model.onnx", "2/readme.txt", f"10/{filename}", *([f"10/{row.beside}"] if row.beside else [])]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found = config.read(tmp_path / "config.pbtxt", "foo").identified

    assert (found.backend, found.platform, found.default_model_filename) == (backend, platform, filename)


@pytest.mark.parametrize("text", ["", 'backend: "openvino_genai"'])
def test_files_with_any_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "1").mkdir()
    for file in ("b-00001.gguf", "a.gguf", "readme.md"):
        (tmp_path / "1" / file).touch()
    found = config.parse(text, tmp_path / "config.pbtxt", "foo").identified

    assert (found.backend, found.platform, found.default_model_filename) == ("openvino_genai", "", "a.gguf")


def test_an_openvino_model_generates_text_if_its_detokenizer_is_there(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "openvino_model.xml").touch()
    assert config.read(tmp_path / "config.pbtxt", "foo").backend == "openvino"
    (tmp_path / "1" / "openvino_detokenizer.xml").touch()
    assert config.read(tmp_path / "config.pbtxt", "foo").backend == "openvino_genai"


def test_the_name_of_such_a_file_alone_says_less(tmp_path: Path) -> None:
    text = 'default_model_filename: "openvino_model.xml"'
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "openvino_model.xml").touch()
    assert config.parse(text, tmp_path / "config.pbtxt", "foo").backend == "openvino"
    (tmp_path / "1" / "openvino_detokenizer.xml").touch()
    assert config.parse(text, tmp_path / "config.pbtxt", "foo").backend == "openvino_genai"


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


def notes(text: str, directory: Path, backends: frozenset[str] = BACKENDS) -> list[tuple[tuple[str | int, ...], str]]:
    draft = replace(config.parse(text, directory / "config.pbtxt", "foo"), backends=backends)
    return draft.notes


def test_another_name_is_noted(tmp_path: Path) -> None:
    assert notes('backend: "onnx_runtime"', tmp_path) == [
        (("backend",), "backend 'onnx_runtime' of model 'foo' is another name of backend 'onnxruntime'")
    ]
    assert notes('platform: "torch"', tmp_path) == [
        (("platform",), "platform 'torch' of model 'foo' is another name of backend 'pytorch'")
    ]
    assert notes('backend: "onnxruntime"', tmp_path) == []
    assert notes('platform: "ensemble"', tmp_path) == []
    assert notes("", tmp_path) == []


def test_a_misspelt_backend_is_taken_by_the_file_that_is_there(tmp_path: Path) -> None:
    for file in ("model.savedmodel", "model.onnx"):
        (tmp_path / "1" / file).mkdir(parents=True)
    assert notes('backend: "onnxruntim"', tmp_path) == [
        (
            ("backend",),
            "backend 'onnxruntim' of model 'foo' is taken for 'onnxruntime', since the model's file is one of backend "
            "'onnxruntime'",
        )
    ]
    assert notes('backend: "pytorc"', tmp_path) == []
    assert notes('backend: "dali"', tmp_path) == []


def test_a_backend_of_that_very_name_stays(tmp_path: Path) -> None:
    assert notes('backend: "onnx"', tmp_path, BACKENDS | {"onnx"}) == []
    assert notes('backend: "onnxruntim"', tmp_path, BACKENDS | {"onnxruntim"}) == []
    assert notes('backend: "keras"', tmp_path, frozenset({"onnxruntime"})) == []


def test_a_name_that_says_what_the_file_is(tmp_path: Path) -> None:
    message = config.parse('backend: "lightgbm"', tmp_path / "config.pbtxt", "foo").identified
    assert (message.backend, message.parameters["model_type"].string_value) == ("fil", "lightgbm")
    text = 'backend: "lightgbm" parameters { key: "model_type" value { string_value: "treelite_checkpoint" } }'
    message = config.parse(text, tmp_path / "config.pbtxt", "foo").identified
    assert message.parameters["model_type"].string_value == "treelite_checkpoint"


@pytest.mark.parametrize("name", sorted(backend_names.OTHER_NAMES))
def test_the_table_of_other_names(name: str) -> None:
    assert backend_names.fold(name) == name
    meaning = backend_names.OTHER_NAMES[name]
    assert meaning.backend in BACKENDS | {"identity"}
    assert not meaning.platform or PLATFORMS[meaning.platform] == meaning.backend


@pytest.mark.parametrize("beside", ["saved_model.pb", "model.tflite", "model.pdmodel", "model.joblib", "x.pkl"])
def test_a_program_may_have_files_beside_it_that_triton_does_not_know(tmp_path: Path, beside: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").touch()
    (tmp_path / "1" / beside).touch()
    assert config.read(tmp_path / "config.pbtxt", "foo").backend == "python"

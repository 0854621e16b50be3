"""What people are told about models that do not load, by what lies in their directory."""

import logging
from pathlib import Path

import pytest

from modserve.backends import catalogue
from modserve.core.files.config_file import misspelt_config
from modserve.core.pip_command import pip_install
from modserve.models.diagnosis import advice

PYTORCH = (
    "pip install uv && uv pip install torch --torch-backend=cpu (the CPU build, 0.9 GB), or "
    f"{pip_install('torch')} (on Linux the CUDA build, 5.6 GB)"
)

INSTALLED = ["identity", "onnxruntime", "repeat"]


def made(root: Path, files: dict[str, bytes], name: str = "resnet") -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    for path, content in files.items():
        target = directory / path
        if path.endswith("/"):
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return directory


LAYOUTS: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "the file has another name": (
        {"1/resnet.onnx": b"x"},
        [
            "'{at}' holds: 1/ (resnet.onnx)",
            "rename '1/resnet.onnx' to '1/model.onnx', or write default_model_filename: \"resnet.onnx\" into config.pb",
        ],
    ),
    "beside the version folder": (
        {"1/": b"", "model.onnx": b"x"},
        [
            "'{at}' holds: 1/ (empty), model.onnx",
            "move 'model.onnx' to '1/model.onnx': model files belong in the folder of",
        ],
    ),
    "no version folder": ({"resnet.onnx": b"x"}, ["move 'resnet.onnx' to '1/model.onnx'"]),
    "a version folder that is none": (
        {"v1/model.onnx": b"x"},
        ["folder 'v1' is not a version: versions are named by whole numbers, such as '1'"],
    ),
    "a version with zeros": ({"01/model.onnx": b"x"}, ["folder '01' is not a version", "such as '1'"]),
    "empty": ({}, ["'{at}' is empty"]),
    "pytorch": (
        {"1/model.pth": b"x"},
        [
            f"'1/model.pth' is a PyTorch file: {PYTORCH} for backend 'pytorch', and save the model "
            "as TorchScript with torch.jit.trace(model, example_inputs).save('model.pt'); or export the model to ONNX "
            "with torch.onnx.export(model, example_inputs, 'model.onnx')"
        ],
    ),
    "torchscript": (
        {"1/model.pt": b"x"},
        [f"'1/model.pt' is a PyTorch file: {PYTORCH} for backend 'pytorch'; or export the mod"],
    ),
    "safetensors": ({"1/model.safetensors": b"x"}, ["is a file of weights without the model's graph", "optimum-cli"]),
    "pickle": ({"1/model.pkl": b"x"}, ["is a pickled Python object", "options={{'zipmap': False}}"]),
    "joblib": ({"model.joblib": b"x"}, ["'model.joblib' is a pickled Python object"]),
    "keras": (
        {"1/model.h5": b"x"},
        [
            f"'1/model.h5' is a Keras file: {pip_install('tensorflow')}",
            "model.export('model.savedmodel')",
            "tf2onnx",
        ],
    ),
    "tensorflow": (
        {"1/saved_model.pb": b"x"},
        ["'1/saved_model.pb' is a TensorFlow graph: pip", "into a folder 'model.savedmodel'", "tf2onnx"],
    ),
    "openvino": ({"1/model.xml": b"x"}, [f"'1/model.xml' is an OpenVINO file: {pip_install('openvino')}"]),
    "a forest": ({"1/model.ubj": b"x"}, [f"'1/model.ubj' is a file of XGBoost: {pip_install('trees')}"]),
    "catboost": (
        {"1/model.cbm": b"x"},
        ["'1/model.cbm' is a file of CatBoost: save it with model.save_model('model.onn"],
    ),
    "a language model": (
        {"1/llama.gguf": b"x"},
        [f"'1/llama.gguf' is a file of llama.cpp: {pip_install('genai')}", "with llama-cpp-python"],
    ),
    "tensorrt": ({"1/model.plan": b"x"}, ["'1/model.plan' is a TensorRT engine: serve the ONNX file that"]),
    "tensorrt by its tool": ({"1/model.engine": b"x"}, ["'1/model.engine' is a TensorRT engine"]),
    "a misspelt configuration": (
        {"1/weights.dat": b"x", "config.pbtext": b"x"},
        ["'{at}/config.pbtext' is not read: a model's configuration is called 'config.pbtxt'"],
    ),
}


@pytest.mark.parametrize(("files", "expected"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout(tmp_path: Path, files: dict[str, bytes], expected: list[str]) -> None:
    directory = made(tmp_path, files)
    text = advice.layout(directory, INSTALLED)
    for part in expected:
        assert part.format(at=directory) in text
    assert text.endswith(
        "installed backends: 'onnxruntime' takes <version>/model.onnx; "
        "'identity', 'repeat': by name, as backend: \"identity\" in config.pbtxt\n"
        "'modserve engines' lists what else can be installed"
    )


def test_the_folder_of_one_model_as_repository(tmp_path: Path) -> None:
    model = made(tmp_path, {"1/model.onnx": b"x", "config.pbtxt": b""})
    assert (
        f"'{model}' seems to be the folder of one model: --model-repository takes the folder that the folders of "
        f"models are in, '{tmp_path}'"
    ) in advice.layout(model / "1", INSTALLED)


def test_what_an_installed_backend_takes_is_not_foreign(tmp_path: Path) -> None:
    directory = made(tmp_path, {"1/model.pt": b"x"})
    assert "is a PyTorch file" in advice.layout(directory, INSTALLED)
    assert "is a PyTorch file" not in advice.layout(directory, [*INSTALLED, "pytorch"])


def test_what_an_installed_engine_takes_in_another_form(tmp_path: Path) -> None:
    directory = made(tmp_path, {"1/model.h5": b"x"})
    text = advice.layout(directory, [*INSTALLED, "tensorflow"])
    assert (
        "'1/model.h5' is a Keras file: save the model with model.export('model.savedmodel'), for backend 'tensorflow'; "
        "or convert"
    ) in text
    assert "'tensorflow' takes <version>/model.savedmodel or <version>/model.graphdef" in text
    assert "pip install" not in text


def test_a_python_file_with_another_name(tmp_path: Path) -> None:
    directory = made(tmp_path, {"1/my_model.py": b"x"})
    text = advice.layout(directory, [*INSTALLED, "python"])
    assert "rename '1/my_model.py' to '1/model.py'" in text.replace(f"{directory}/", "")


def test_many_files_are_not_all_listed(tmp_path: Path) -> None:
    directory = made(tmp_path, {f"1/{number:02}.bin": b"" for number in range(20)})
    assert (
        advice.contents(directory) == f"'{directory}' holds: 1/ (00.bin, 01.bin, 02.bin, 03.bin, 04.bin, and 15 more)"
    )


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    assert advice.layout(tmp_path / "nosuch", INSTALLED).startswith(f"'{tmp_path}/nosuch' is empty\n")
    assert misspelt_config(tmp_path / "nosuch") == ""


def test_the_versions_that_there_are(tmp_path: Path) -> None:
    directory = made(tmp_path, {"1/model.onnx": b"x", "3/model.onnx": b"x"})
    assert advice.versions(directory, (1, 3), INSTALLED) == "the available versions: 1, 3"
    (directory / "1").rename(directory / "v1")
    (directory / "3").rename(directory / "latest")
    assert advice.versions(directory, (), INSTALLED) == (
        f"'{directory}' holds: latest/ (model.onnx), v1/ (model.onnx)\n"
        "folder 'v1' is not a version: versions are named by whole numbers, such as '1'"
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"1/": b""}, "'{at}/1' is empty"),
        (
            {"1/resnet50.onnx": b""},
            "'{at}/1' holds: resnet50.onnx\nrename '1/resnet50.onnx' to '1/model.onnx', or write "
            'default_model_filename: "resnet50.onnx" into config.pbtxt',
        ),
        ({"1/a.pth": b""}, "'{at}/1' holds: a.pth\n'1/a.pth' is a PyTorch file: "),
        ({"1/model.onnx": b""}, "'{at}/1/model.onnx' is empty"),
        (
            {"1/model.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"},
            "'{at}/1/model.onnx' is not a model: it is the pointer of Git LFS to a file that was not fetched",
        ),
        ({"1/model.onnx": b"\x80\x04\x95rest"}, "'{at}/1/model.onnx' is not a model: it is a pickle"),
        ({"1/model.onnx": b"<!doctype html>"}, "'{at}/1/model.onnx' is not a model: it is a web page"),
        ({"1/model.onnx": b"\x08\x08\x12\x00"}, ""),
    ],
    ids=["nothing", "another name", "another kind", "no bytes", "git lfs", "pickle", "web page", "onnx"],
)
def test_a_model_file(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    directory = made(tmp_path, files)
    path = directory / "1" / "model.onnx"
    text = advice.model_file(directory, 1, path, INSTALLED, f"unable to find model file '{path}'")
    expected = expected.format(at=directory)
    assert text.startswith(expected) if expected else text == ""


def test_the_file_that_the_engine_read_in_place_of_the_default(tmp_path: Path) -> None:
    directory = made(tmp_path, {"1/model.pt": b"PK\x03\x04cut off", "1/model.onnx": b"\x08\x08\x12\x00"})
    default, read, whole = (directory / "1" / name for name in ("model.xml", "model.pt", "model.onnx"))
    text = advice.model_file(directory, 1, default, INSTALLED, f"failed to load '{read}'")
    assert text == f"'{read}' is truncated: the directory at the end of a zip archive is missing; copy it again"
    assert advice.model_file(directory, 1, default, INSTALLED, f"failed to load '{whole}'") == ""
    assert "holds: model.onnx, model.pt" in advice.model_file(directory, 1, default, INSTALLED, "it has no file")


def test_a_model_of_mlflow_below_its_version(tmp_path: Path) -> None:
    directory = made(tmp_path, {"1/iris/MLmodel": b"flavors: {}"})
    assert "'1/iris' was saved by MLflow: write backend: \"mlflow\" into config.pbtxt" in advice.layout(
        directory, INSTALLED
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("onnx_runtime", "did you mean 'onnxruntime'?"),
        ("ONNXRuntime", "did you mean 'onnxruntime'?"),
        ("onnx", "did you mean 'onnxruntime'?"),
        ("onnxruntim", "did you mean 'onnxruntime'?"),
        ("onnxruntime_onnx", "did you mean 'onnxruntime'?"),
        ("identiy", "did you mean 'identity'?"),
        ("torchscript", f"did you mean 'pytorch'? It needs PyTorch: {PYTORCH}"),
        ("pytorch", f"It needs PyTorch: {PYTORCH}"),
        ("tensorrt_plan", ""),
        ("tensorflow_savedmodel", f"did you mean 'tensorflow'? It needs TensorFlow: {pip_install('tensorflow')}"),
        ("xgboost", f"did you mean 'fil'? It needs Treelite: {pip_install('trees')}"),
        ("tensorrtllm", "language models run on backend 'openvino_genai' (GGUF files, OpenVINO IR), or 'vllm' (mo"),
        ("llama_cpp", "language models run on"),
        ("nosuch", ""),
    ],
)
def test_names_of_backends(name: str, expected: str) -> None:
    text = advice.backend_name(name, INSTALLED)
    assert text.startswith(expected) if expected else text == ""


def test_no_backend_is_suggested_that_cannot_be_there() -> None:
    assert advice.backend_name("onnx", ["identity"]) == ""
    assert advice.backend_name("pytorch", ["identity", "pytorch_lite"]).startswith("It needs PyTorch")


def test_an_engine_that_only_an_environment_of_a_model_may_have_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = ["mlflow", "onnxruntime", "python"]
    assert "mlflow" in catalogue.available(installed)
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module != "mlflow")
    assert "mlflow" not in advice.layout(made(tmp_path, {"x.txt": b""}), installed)
    monkeypatch.setattr(catalogue, "is_installed", lambda module: True)
    assert "'mlflow' takes <version>/MLmodel" in advice.layout(tmp_path / "resnet", installed)


def test_options_of_backends_that_are_not_there() -> None:
    found = advice.absent_backends(["", "onnxruntime", "pytorch", "onnx"], INSTALLED)
    assert [text.partition(",")[0] for text in found] == ["--backend-config=pytorch", "--backend-config=onnx"]
    assert (
        "there is no backend 'pytorch' here, installed backends are: identity, onnxruntime, repeat; It needs Py"
        in found[0]
    )
    assert found[1].endswith("did you mean 'onnxruntime'?")


def test_options_that_a_backend_does_not_know() -> None:
    known = {"default-max-batch-size": "", "intra_op_thread_count": "", "old-one": "it is always on"}
    options = ["default-max-batch-size", "intra_op_threads", "old-one", "auto-complete-config", "nosuch"]
    lines = advice.unknown_options("engine", options, known)
    assert {level for level, _ in lines} == {logging.WARNING}
    assert [line for _, line in lines] == [
        "backend option 'intra_op_threads' of backend 'engine' has no effect: backend 'engine' does not know it; did "
        "you mean 'intra_op_thread_count'?",
        "backend option 'old-one' of backend 'engine' has no effect: it is always on",
        "backend option 'auto-complete-config' of backend 'engine' has no effect: use --disable-auto-complete-config",
        "backend option 'nosuch' of backend 'engine' has no effect: backend 'engine' does not know it",
    ]


def test_an_option_for_all_backends_is_no_reason_to_warn_where_one_does_not_know_it() -> None:
    shared = ["default-max-batch-size", "auto-complete-config", "thread-cont"]
    known = {"thread-count": "", "shm-default-byte-size": ""}
    assert advice.unknown_options("engine", shared, known, shared) == [
        (logging.INFO, "backend option 'default-max-batch-size', set for all backends: 'engine' has none such"),
        (
            logging.WARNING,
            "backend option 'auto-complete-config' of backend 'engine' has no effect: use "
            "--disable-auto-complete-config",
        ),
        (
            logging.WARNING,
            "backend option 'thread-cont' of backend 'engine' has no effect: backend 'engine' does not know it; did "
            "you mean 'thread-count'?",
        ),
    ]

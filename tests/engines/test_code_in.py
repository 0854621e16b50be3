"""What each backend says of code that comes with a model."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.code import code_in
from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import Accelerator, ModelConfig

registry = BackendRegistry()


def reason(name: str, path: Path, **config: Any) -> str:
    if name not in registry.names:
        pytest.skip(f"backend '{name}' is not installed")
    return code_in(registry.get(name), name, ModelConfig("model", name, **config), path)


OPERATORS: dict[str, Any] = {"operation_libraries": ("a.so",)}


def accelerator(**parameters: str) -> dict[str, Any]:
    return {"gpu_accelerators": (Accelerator("tensorrt", parameters),)}


@pytest.mark.parametrize(
    ("name", "file", "config", "text"),
    [
        ("identity", "", {}, ""),
        ("repeat", "", {}, ""),
        ("tensorrt", "model.plan", {}, ""),
        ("fil", "xgboost.ubj", {}, ""),
        ("python", "model.py", {}, "is a program"),
        ("mlflow", "MLmodel", {}, "is a program"),
        ("onnxruntime", "model.onnx", {}, ""),
        (
            "onnxruntime",
            "model.onnx",
            OPERATORS,
            "it needs operator libraries (model_operations.op_library_filename)",
        ),
        ("onnxruntime", "model.onnx", accelerator(trt_fp16_enable="1"), ""),
        ("onnxruntime", "model.onnx", accelerator(trt_extra_plugin_lib_paths="a.so.1"), "trt_extra_plugin_lib_paths"),
        (
            "onnxruntime",
            "model.onnx",
            accelerator(trt_engine_cache_path="/models/x"),
            "'/models/x'), which may contain",
        ),
        ("tensorflow", "model.savedmodel", {}, ""),
        ("tensorflow", "model.savedmodel", OPERATORS, "operator libraries"),
        ("openvino", "model.xml", {}, ""),
        ("openvino", "model.xml", {"parameters": {"CPU_EXTENSION_PATH": "b.so"}}, "CPU_EXTENSION_PATH"),
        ("sklearn", "model.skops", {}, ""),
        ("sklearn", "model.joblib", {}, "is a pickle"),
        ("sklearn", "model.pkl", {}, "is a pickle"),
        ("pytorch", "model.py", {}, "'model.py' is a program"),
        ("pytorch", "model.pt", {"runtime": "model.py"}, "'model.py' is a program"),
        ("pytorch", "script.pt", {}, ""),
        ("pytorch", "compiled.pt2", {}, "is a compiled package"),
        ("pytorch", "absent.pt", {}, ""),
        ("auto", "model.onnx", {}, ""),
        ("auto", "model.onnx", OPERATORS, "operator libraries"),
    ],
)
def test_code(tmp_path: Path, name: str, file: str, config: dict[str, Any], text: str) -> None:
    for empty in ("model.py", "model.onnx", "model.pt"):
        (tmp_path / empty).touch()
    for archive, entry in (("script.pt", "a/constants.pkl"), ("compiled.pt2", "a/data/aotinductor/model/a.so")):
        with zipfile.ZipFile(tmp_path / archive, "w") as made:
            made.writestr(entry, b"")
    said = reason(name, tmp_path / file, **config)
    assert (text in said) if text else (said == "")


def test_every_backend_of_this_package_says_it() -> None:
    silent = [name for name in registry.names if not hasattr(registry.get(name), "code_in")]
    assert silent == []

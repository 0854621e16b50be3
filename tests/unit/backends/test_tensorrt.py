"""A TensorRT engine is refused, with the reason and with what to serve in its place."""

from pathlib import Path

import pytest

from modserve.backends.api import ModelSource
from modserve.backends.registry import BackendRegistry
from modserve.core.errors import Code, ModserveError
from modserve.testing import config


def refusal(path: Path) -> ModserveError:
    backend = BackendRegistry().get("tensorrt")
    assert (backend.default_model_filename, backend.gpu_count()) == ("model.plan", 0)
    with pytest.raises(ModserveError) as caught:
        backend.open(ModelSource(config(name="resnet"), 1, path, path.parent))
    return caught.value


def test_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "model.plan"
    path.write_bytes(b"ptrt")
    error = refusal(path)
    assert error.code is Code.UNSUPPORTED
    assert error.message == (
        f"model 'resnet': '{path}' is a TensorRT engine. It needs the kind of NVIDIA GPU and the version of TensorRT "
        "that it was built with. modserve cannot run TensorRT engines. Serve the ONNX file that "
        "the engine was built from, as '1/model.onnx' with backend: \"onnxruntime\""
    )


def test_no_file(tmp_path: Path) -> None:
    error = refusal(tmp_path / "model.plan")
    assert (error.code, error.message) == (
        Code.INVALID_ARG,
        f"unable to find model file '{tmp_path}/model.plan' for model 'resnet'",
    )


def test_it_is_known_but_not_among_those_that_run() -> None:
    registry = BackendRegistry()
    assert "tensorrt" in registry.known
    assert "tensorrt" not in registry.names

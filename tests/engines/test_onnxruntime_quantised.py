"""ONNX Runtime with products of 8-bit integers: what is kept on disk, and what happens where that is not possible."""

import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

from modserve.backends import catalogue, subprocesses
from modserve.backends.api import ModelSource
from modserve.backends.onnxruntime import quantization
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeModel
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.pip_command import pip_install
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec

QUANTISED = config(backend="onnxruntime", parameters={"dynamic_quantization": "int8"})
PLAIN = config(backend="onnxruntime")
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 64)).astype(np.float32)


def write(path: Path, operator: str = "MatMul", external: bool = False, as_node: bool = False) -> Path:
    """Y = X · W, or Y = Relu(X)."""
    weights = numpy_helper.from_array(RANDOM.standard_normal((64, 64)).astype(np.float32), "W")
    inputs = ["X", "W"] if operator == "MatMul" else ["X"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in "XY"]
    node = helper.make_node(operator, inputs, ["Y"], name="node")
    initializers, nodes = [weights] if len(inputs) == 2 else [], [node]
    if as_node:
        nodes, initializers = [helper.make_node("Constant", [], ["W"], value=weights), node], []
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=0)
    return path


def opened(path: Path, directory: str, like: ModelConfig = QUANTISED) -> OnnxRuntimeModel:
    return OnnxRuntimeBackend().open(ModelSource(like, 1, path, path.parent, options={"quantized-dir": directory}))


def output(model: OnnxRuntimeModel, like: ModelConfig = QUANTISED) -> Array:
    instance = model.instance(instance_spec(like))
    try:
        values: Mapping[str, Any] = instance.execute({"X": X}, ("Y",))
        return np.array(values["Y"])
    finally:
        instance.close()


def kept(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], doing: str, limit_s: float) -> subprocesses.Ended:
        commands.append(command)
        return subprocesses.run(command, doing, limit_s)

    monkeypatch.setattr(quantization, "run", run)
    return commands


@pytest.mark.parametrize("external", [False, True])
def test_a_quantised_model_is_kept(tmp_path: Path, runs: list[list[str]], external: bool) -> None:
    path, directory = write(tmp_path / "1" / "model.onnx", external=external), tmp_path / "kept"
    before = sorted(path.parent.iterdir())
    plain = opened(path, "none", PLAIN)
    exact = output(plain, PLAIN)
    plain.close()
    outputs = []
    for _ in range(2):
        model = opened(path, str(directory))
        outputs.append(output(model))
        report = model.report()
        model.close()
        assert (report["precision"], report["file"]) == ("int8", "model.onnx")
    assert 1e-4 < np.abs(outputs[0] - exact).max() / np.abs(exact).max() < 0.05
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert len(runs) == 1
    assert len(kept(directory)) == 1
    assert sorted(path.parent.iterdir()) == before, "nothing is written beside the model"


def test_weights_that_are_constant_nodes(tmp_path: Path) -> None:
    path = write(tmp_path / "1" / "model.onnx", as_node=True)
    model = opened(path, "none")
    assert output(model).shape == (4, 64)
    model.close()


def test_another_model_has_a_file_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        opened(write(tmp_path / "1" / "model.onnx"), str(tmp_path / "kept")).close()
    assert len(kept(tmp_path / "kept")) == 2


@pytest.mark.parametrize("content", [b"", b"foreign"])
def test_a_damaged_file_is_made_again(
    tmp_path: Path, runs: list[list[str]], content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path, directory = write(tmp_path / "1" / "model.onnx"), tmp_path / "kept"
    opened(path, str(directory)).close()
    (file,) = directory.iterdir()
    file.write_bytes(content)
    opened(path, str(directory)).close()
    assert len(runs) == 2
    assert "is damaged; the model is quantised again" in caplog.text
    assert (kept(directory), file.stat().st_size > 1000) == ([file.name], True)


@pytest.mark.parametrize("place", ["none", "unwritable"])
def test_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "file").write_bytes(b"")
    directory = "none" if place == "none" else str(tmp_path / "file" / "below")
    model = opened(write(tmp_path / "1" / "model.onnx"), directory)
    assert output(model).shape == (4, 64)
    assert len(kept(tmp_path / "temporary")) == 1
    model.close()
    assert kept(tmp_path / "temporary") == []
    assert ("is quantised at every start, because" in caplog.text) == (place == "unwritable")


def test_who_only_tried_it_leaves_nothing(tmp_path: Path) -> None:
    path, directory = write(tmp_path / "1" / "model.onnx"), tmp_path / "kept"
    first = opened(path, str(directory))
    first.forget()
    first.close()
    assert kept(directory) == []
    opened(path, str(directory)).close()
    second = opened(path, str(directory))
    second.forget()
    second.close()
    assert len(kept(directory)) == 1, "another model may serve with it"


def test_files_that_no_model_has_used_for_long_are_deleted(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    paths = [write(tmp_path / name / "model.onnx") for name in "abc"]
    for path in paths[:2]:
        opened(path, str(directory)).close()
    long_ago = time.time() - 91 * 24 * 3600
    for name in kept(directory):
        os.utime(directory / name, (long_ago, long_ago))
    opened(paths[0], str(directory)).close()
    opened(paths[2], str(directory)).close()
    assert len(kept(directory)) == 2, "that of the second is gone"


@pytest.mark.parametrize("directory", ["none", "kept"])
def test_nothing_to_quantise(tmp_path: Path, directory: str) -> None:
    path = write(tmp_path / "1" / "model.onnx", "Relu")
    place = directory if directory == "none" else str(tmp_path / directory)
    with pytest.raises(ModserveError, match=r"quantised: it has no MatMul, Gemm, Attention or LSTM with") as caught:
        opened(path, place)
    assert caught.value.code is Code.INVALID_ARG
    assert directory == "none" or kept(tmp_path / directory) == []


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModserveError, match=r"cannot be quantised: .*pars"):
        opened(tmp_path / "model.onnx", "none")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "1" / "model.onnx")
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module != "onnx")
    with pytest.raises(ModserveError, match=re.escape(f"needs the package onnx: {pip_install('quantization')}")):
        opened(path, str(tmp_path / "kept"))


def test_a_value_that_is_no_good(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "1" / "model.onnx")
    wrong = config(backend="onnxruntime", parameters={"dynamic_quantization": "int4"})
    with pytest.raises(ModserveError, match="'dynamic_quantization' is 'int4', expected one of: int8"):
        opened(path, "none", wrong)
    with caplog.at_level(logging.WARNING):
        opened(path, str(tmp_path / "kept")).close()
    assert "has no effect" not in caplog.text

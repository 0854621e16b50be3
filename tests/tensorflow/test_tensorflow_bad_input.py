"""Files, configurations and inputs that are no good for TensorFlow."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import saved_models
import tensorflow as tf
from in_process import X, bare, opened, refusal, run
from saved_models import WEIGHTS, spec, v1

from modserve.core.configuration.model_config import DescribedTensor, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_models.save_dense(tmp_path_factory.mktemp("dense") / "1" / "model.savedmodel")


def broken(dense: Path, tmp_path: Path) -> Path:
    path = tmp_path / "1" / "model.savedmodel"
    shutil.copytree(dense, path)
    return path


@pytest.mark.parametrize("size", [0, 0.01, 0.3, 0.7, 0.99])
def test_a_saved_model_that_is_cut_off(dense: Path, tmp_path: Path, size: float) -> None:
    file = broken(dense, tmp_path) / "saved_model.pb"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * size)])
    assert refusal(file.parent).startswith("failed to load model 'model' from")


@pytest.mark.parametrize("content", [b"\x89HDF\r\n\x1a\n", b"not a model", bytes(1000), b"version https://git-lfs"])
@pytest.mark.parametrize("file", ["model.savedmodel/saved_model.pb", "model.graphdef"])
def test_bytes_that_are_no_model(tmp_path: Path, content: bytes, file: str) -> None:
    path = tmp_path / "1" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert "failed to load model 'model' from" in refusal(path)


def test_a_folder_without_a_saved_model(tmp_path: Path) -> None:
    path = tmp_path / "1" / "model.savedmodel"
    path.mkdir(parents=True)
    assert "a SavedModel is a folder with 'saved_model.pb'" in refusal(path)
    assert refusal(path / "nosuch").startswith("unable to find model file '")


def test_variables_that_are_missing(dense: Path, tmp_path: Path) -> None:
    path = broken(dense, tmp_path)
    shutil.rmtree(path / "variables")
    assert "the folder 'variables'" in refusal(path).lower()


def test_variables_that_are_cut_off(dense: Path, tmp_path: Path) -> None:
    path = broken(dense, tmp_path)
    (data,) = (path / "variables").glob("variables.data*")
    data.write_bytes(data.read_bytes()[:10])
    assert "failed to load model 'model'" in refusal(path)
    (path / "variables" / "variables.index").write_bytes(b"")
    assert "failed to load model 'model'" in refusal(path)


def test_an_operator_that_tensorflow_lacks(tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_sums)
    graph = v1.GraphDef.FromString(path.read_bytes())
    next(node for node in graph.node if node.name == "sum").op = "AcmeSum"
    path.write_bytes(graph.SerializeToString())
    text = refusal(path)
    assert "'AcmeSum'" in text
    assert text.endswith("name it in model_operations { op_library_filename: … }.")


def test_a_library_of_operators(dense: Path) -> None:
    library = str(Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2")
    model = opened(dense, replace(bare(), operation_libraries=(library,)))
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)
    text = refusal(dense, replace(bare(), operation_libraries=("nosuch.so",)))
    assert "the operator library 'nosuch.so' (model_operations.op_library_filename) cannot be used: " in text


def test_types_and_ranks_that_v2_lacks(tmp_path: Path) -> None:
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel", lambda x: {"y": tf.cast(x, tf.complex64), "z": x}, spec("x")
    )
    assert "tensor 'y' of model 'model' is of type DT_COMPLEX64" in refusal(path)
    without = config(inputs=(), outputs=(TensorSpec("z", dtypes.FP32, (4,)),))
    assert np.array_equal(run(opened(path, without), {"x": X}, "z")["z"], X)


def test_a_tensor_of_any_rank(tmp_path: Path) -> None:
    path = saved_models.save(tmp_path / "1" / "model.savedmodel", lambda x: {"y": x + 1}, spec("x", shape=None))
    assert "tensor 'x' of model 'model' may have any number of dimensions" in refusal(path)
    written = config(inputs=(TensorSpec("x", dtypes.FP32, (4,)),), outputs=(TensorSpec("y", dtypes.FP32, (4,)),))
    model = opened(path, written)
    assert model.describe().inputs == (DescribedTensor("x", dtypes.FP32, (-1, 4)),)
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X + 1)


def test_inputs_that_tensorflow_refuses(tmp_path: Path) -> None:
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel",
        lambda x, index: {"y": tf.gather(x, index, axis=1, batch_dims=1)},
        spec("x"),
        spec("index", tf.int32, (None, 1)),
    )
    model = opened(path)
    instance = model.instance(instance_spec(config()))
    good: dict[str, Array] = {"x": X, "index": np.array([[1], [2]], np.int32)}
    for wrong in (
        {**good, "index": np.array([[1], [9]], np.int32)},
        {**good, "x": X[:, :2].copy()},
        {**good, "x": X.astype(np.float64)},
        {"x": X},
    ):
        with pytest.raises(ModserveError, match="TensorFlow refused the request: ") as caught:
            instance.execute(wrong, ("y",))
        assert caught.value.code is Code.INTERNAL
        assert "\n" not in caught.value.message
    assert instance.execute(good, ("y",))["y"].tolist() == [[1.0], [6.0]]
    model.close()


@pytest.mark.parametrize(
    ("parameters", "options", "text"),
    [
        (
            {"TF_NUM_INTRA_THREADS": "-1"},
            {},
            "parameter 'TF_NUM_INTRA_THREADS' is '-1', expected an integer of 0 or more",
        ),
        (
            {"TF_NUM_INTER_THREADS": "two"},
            {},
            "parameter 'TF_NUM_INTER_THREADS' is 'two', expected an integer of 0 or mor",
        ),
        (
            {"TF_USE_PER_SESSION_THREADS": "maybe"},
            {},
            "'TF_USE_PER_SESSION_THREADS' is 'maybe', expected true or false",
        ),
        (
            {"MAX_SESSION_SHARE_COUNT": "0"},
            {},
            "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorF",
        ),
        (
            {},
            {"gpu-memory-fraction": "2"},
            "backend option 'gpu-memory-fraction' is '2', expected a number from 0 to 1",
        ),
        ({}, {"allow-soft-placement": "x"}, "backend option 'allow-soft-placement' is 'x', expected true or false"),
        ({}, {"default-max-batch-size": "x"}, "backend option 'default-max-batch-size' is 'x', expected an integer"),
    ],
)
def test_values_that_are_no_good(dense: Path, parameters: dict[str, str], options: dict[str, str], text: str) -> None:
    assert text in refusal(dense, bare(**parameters), options=options)

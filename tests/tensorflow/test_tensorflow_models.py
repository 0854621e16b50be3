"""The TensorFlow backend on TensorFlow itself, with models made on the spot."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import tensorflow as tf
from model_packages import unpacked
from saved_models import WEIGHTS, spec, v1

from modserve.backends.api import ModelSource, Placement
from modserve.backends.catalogue import BY_BACKEND
from modserve.backends.registry import BackendRegistry
from modserve.backends.tensorflow.backend import TensorFlowBackend
from modserve.backends.tensorflow.engine import TensorFlowModel
from modserve.core import dtypes
from modserve.core.errors import Code, ModserveError
from modserve.core.model_config import DescribedTensor, InstanceKind, ModelConfig, TensorSpec
from modserve.core.tensor import Array
from modserve.testing import config, instance_spec

X: Array = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def backend() -> TensorFlowBackend:
    return TensorFlowBackend()


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_models.save_dense(tmp_path_factory.mktemp("dense") / "1" / "model.savedmodel")


def bare(**parameters: str) -> ModelConfig:
    """A configuration that names no tensors."""
    return config(inputs=(), outputs=(), backend="tensorflow", parameters=parameters)


def opened(backend: TensorFlowBackend, path: Path, written: ModelConfig | None = None, **more: Any) -> TensorFlowModel:
    source = ModelSource(written or bare(), 1, path, path.parents[1], **more)
    model = backend.open(source)
    assert isinstance(model, TensorFlowModel)
    return model


def run(model: TensorFlowModel, inputs: Mapping[str, Array], *outputs: str) -> Mapping[str, Array]:
    instance = model.instance(instance_spec(config()))
    try:
        return instance.execute(inputs, outputs)
    finally:
        instance.close()
        model.close()


def refusal(backend: TensorFlowBackend, path: Path, written: ModelConfig | None = None, **more: Any) -> str:
    with pytest.raises(ModserveError) as caught:
        opened(backend, path, written, **more).close()
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


# Models


def test_a_saved_model(backend: TensorFlowBackend, dense: Path) -> None:
    model = opened(backend, dense)
    description = model.describe()
    assert description.inputs == (DescribedTensor("x", dtypes.FP32, (-1, 4)),)
    assert description.outputs == (DescribedTensor("y", dtypes.FP32, (-1, 2)),)
    assert description.default_max_batch_size == 4
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)


def test_the_folder_of_a_version_is_the_saved_model(backend: TensorFlowBackend, dense: Path, tmp_path: Path) -> None:
    """As TensorFlow Serving has its models."""
    shutil.copytree(dense, tmp_path / "1")
    assert np.array_equal(run(opened(backend, tmp_path / "1" / "saved_model.pb"), {"x": X}, "y")["y"], X @ WEIGHTS)


def test_every_datatype(backend: TensorFlowBackend, tmp_path: Path) -> None:
    model = opened(backend, saved_models.save_copier(tmp_path / "1" / "model.savedmodel"))
    assert {tensor.name: tensor.datatype.name for tensor in model.describe().inputs} == {
        f"in_{name}": name for name in saved_models.TYPES
    }
    for rows in (2, 0):
        inputs = {f"in_{name}": values(dtypes.BY_NAME[name], rows, 3) for name in saved_models.TYPES}
        instance = model.instance(instance_spec(config()))
        outputs = instance.execute(inputs, tuple(f"out_{name}" for name in saved_models.TYPES))
        for name in saved_models.TYPES:
            sent, received = inputs[f"in_{name}"], outputs[f"out_{name}"]
            assert (received.shape, received.dtype) == (sent.shape, dtypes.BY_NAME[name].numpy), name
            assert received.tolist() == sent.tolist(), name
    model.close()


def values(datatype: dtypes.Datatype, *shape: int) -> Array:
    count = int(np.prod(shape))
    if datatype is dtypes.BYTES:
        texts = np.empty(count, dtype=object)
        texts[:] = [f"tëxt {index}".encode() + b"\x00\xff" for index in range(count)]
        return texts.reshape(shape)
    return (np.arange(count) % 2).astype(datatype.numpy).reshape(shape)


def test_strings_are_bytes_also_inside_the_graph(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel",
        lambda text: {"length": tf.strings.length(text), "upper": tf.strings.upper(text)},
        spec("text", tf.string, (None, 1)),
    )
    sent = np.array([[b"one"], [b"\xff\x00"]], dtype=object)
    outputs = run(opened(backend, path), {"text": sent}, "length", "upper")
    assert outputs["length"].tolist() == [[3], [2]]
    assert outputs["upper"].tolist() == [[b"ONE"], [b"\xff\x00"]]


def test_only_the_requested_outputs_run(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_sums)
    model = opened(backend, path)
    assert [tensor.name for tensor in model.describe().outputs] == ["sum", "difference"]
    assert {*run(model, {"a": X, "b": X}, "sum")} == {"sum"}


def test_a_keras_model(backend: TensorFlowBackend, tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, activation="relu")])
    path = tmp_path / "1" / "model.savedmodel"
    model.export(str(path), verbose=False)
    served = opened(backend, path)
    (output,) = served.describe().outputs
    (feed,) = served.describe().inputs
    assert output.shape == (-1, 3)
    assert np.allclose(run(served, {feed.name: X}, output.name)[output.name], model(X).numpy(), atol=1e-6)


def test_basic_pitch_agrees_with_onnx_runtime(backend: TensorFlowBackend) -> None:
    import onnxruntime

    folder = unpacked("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022"
    audio = np.random.default_rng(1).uniform(-1, 1, (2, 43844, 1)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(folder / "nmp.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, {session.get_inputs()[0].name: audio}), strict=True))
    model = opened(backend, folder / "nmp")
    assert [tensor.name for tensor in model.describe().outputs] == ["contour", "note", "onset"]
    actual = run(model, {"input_2": audio}, "contour", "note", "onset")
    # The ONNX file has TensorFlow's names of these outputs, in the order of its functions.
    for name, other in zip(
        ("note", "onset", "contour"),
        ("StatefulPartitionedCall:1", "StatefulPartitionedCall:2", "StatefulPartitionedCall:0"),
        strict=True,
    ):
        assert np.abs(actual[name] - expected[other]).max() < 1e-4


# Signatures and tags


def test_the_signature_that_a_parameter_names(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.save_two_signatures(tmp_path / "1" / "model.savedmodel")
    halved = run(opened(backend, path, bare(TF_SIGNATURE_DEF="halve")), {"x": X}, "y")["y"]
    assert np.array_equal(halved, X / 2)
    model = opened(backend, path)  # without a default, the first one
    assert model.report()["signature"] == "double"
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X * 2)
    assert refusal(backend, path, bare(TF_SIGNATURE_DEF="nosuch")).startswith(
        "unable to load model 'model', expected 'nosuch' signature; it has: 'double', 'halve'. Parameter "
    )


def test_a_saved_model_without_signatures(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = tmp_path / "1" / "model.savedmodel"
    tf.saved_model.save(tf.Module(), str(path))
    assert "expected 'serving_default' signature; it has none. Parameter" in refusal(backend, path)


def test_the_graph_that_a_tag_names(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.save_tagged(tmp_path / "1" / "model.savedmodel", "serve", "other")
    assert np.array_equal(run(opened(backend, path), {"x": X}, "y")["y"], X * 2)
    tagged = opened(backend, path, bare(TF_GRAPH_TAG="other"))
    assert tagged.report()["tag"] == "other"
    tagged.close()
    assert refusal(backend, path, bare(TF_GRAPH_TAG="train")).startswith(
        "unable to load model 'model', expected 'train' tag; the tags of its graphs are: 'serve'; 'other'. Parameter "
    )


# Frozen graphs


def test_the_tensors_that_a_configuration_names(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_sums)
    inputs = tuple(TensorSpec(name, dtypes.FP32, (4,)) for name in ("a", "b"))
    model = opened(backend, path, config(inputs=inputs, outputs=(TensorSpec("sum:0", dtypes.FP32, (4,)),)))
    assert np.array_equal(run(model, {"a": X, "b": X}, "sum:0")["sum:0"], X + X)
    for wrong, text in (
        (
            config(inputs=(TensorSpec("sum", dtypes.FP32, (4,)),), outputs=()),
            "unexpected inference input 'sum', allowed",
        ),
        (
            config(inputs=inputs, outputs=(TensorSpec("nosuch", dtypes.FP32, (4,)),)),
            "allowed outputs are: sum, differe",
        ),
        (config(inputs=inputs, outputs=(TensorSpec("sum:7", dtypes.FP32, (4,)),)), "has no tensor 'sum:7'"),
    ):
        assert text in refusal(backend, path, wrong)


def test_operations_that_initialise_a_graph(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_uninitialised)
    y = config(inputs=(TensorSpec("x", dtypes.FP32, (4,)),), outputs=(TensorSpec("y", dtypes.FP32, (4,)),))
    named = replace(y, parameters={"TF_INIT_OPS_FILE": "init.json"})
    with pytest.raises(ModserveError, match="uninitialized value v"):
        run(opened(backend, path, y), {"x": X}, "y")
    assert "there is neither" in refusal(backend, path, named)
    (tmp_path / "init.json").write_text(json.dumps({"init_ops": ["start"]}))
    assert np.array_equal(run(opened(backend, path, named), {"x": X}, "y")["y"], X + 5)
    (tmp_path / "1" / "init.json").write_text(json.dumps({"init_ops": ["begin"]}))  # counts before the other
    assert "has no operation 'begin'" in refusal(backend, path, named)
    (tmp_path / "1" / "init.json").write_text("[]")
    assert 'expected {"init_ops": ["init"]}' in refusal(backend, path, named)
    outside = replace(y, parameters={"TF_INIT_OPS_FILE": "../init.json"})
    assert "expected a file in the model's folder" in refusal(backend, path, outside)


# Parameters


def test_sessions_that_instances_share(backend: TensorFlowBackend, dense: Path) -> None:
    for parameters, sessions in (({}, 1), ({"MAX_SESSION_SHARE_COUNT": "2"}, 2), ({"MAX_SESSION_SHARE_COUNT": "1"}, 3)):
        model = opened(backend, dense, bare(**parameters))
        instances = [model.instance(instance_spec(config(), index=index)) for index in range(3)]
        assert model.report()["sessions"] == sessions
        for instance in instances:
            assert np.array_equal(instance.execute({"x": X}, ("y",))["y"], X @ WEIGHTS)
        model.close()


def test_threads(backend: TensorFlowBackend, dense: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = opened(backend, dense, cpu_threads=3, cpu_instances=2)
    assert {**model.report(), "version": ""} == {
        "engine": "TensorFlow",
        "version": "",
        "precision": "fp32",
        "device": "CPU",
        "threads": 6,
        "inter_op_threads": 1,
        "sessions": 1,
        "signature": "serving_default",
        "tag": "serve",
        "file": "model.savedmodel",
    }
    model.close()
    parameters = {"TF_NUM_INTRA_THREADS": "5", "TF_NUM_INTER_THREADS": "2", "TF_USE_PER_SESSION_THREADS": "yes"}
    caplog.clear()
    other = opened(backend, dense, bare(**parameters))
    assert (other.report()["threads"], other.report()["inter_op_threads"]) == (5, 2)
    assert np.array_equal(run(other, {"x": X}, "y")["y"], X @ WEIGHTS)
    assert any("threads for single operators that TensorFlow made for" in message for message in caplog.messages)


def test_what_has_no_effect(backend: TensorFlowBackend, dense: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"version": "1", "default-max-batch-size": "16", "allow-soft-placement": "false"}
    written = replace(bare(TF_SIGNATURE_DEFS="x", TF_NUM_INTRA_THREADS="1"), graph_optimization_level=1)
    model = opened(backend, dense, written, options=options)
    assert model.describe().default_max_batch_size == 16
    model.close()
    messages = "\n".join(caplog.messages)
    assert "parameter 'TF_SIGNATURE_DEFS' has no effect" in messages
    assert "did you mean 'TF_SIGNATURE_DEF'?" in messages
    assert "backend option 'version' is '1': TensorFlow 2 runs all models" in messages
    assert "TF_XLA_FLAGS=--tf_xla_cpu_global_jit" in messages


@pytest.mark.parametrize("level", [-1, 1, 2, 7])
def test_levels_of_the_graph(backend: TensorFlowBackend, dense: Path, level: int) -> None:
    model = opened(backend, dense, replace(bare(), graph_optimization_level=level))
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)


# Memory


def test_aligned_memory_is_not_copied(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.write_graph(
        tmp_path / "1" / "model.graphdef",
        lambda: tf.identity(v1.placeholder(tf.float32, [None, 8192], name="x"), name="y"),
    )
    model = opened(backend, path)
    instance = model.instance(instance_spec(config()))
    array = instance.allocate("x", dtypes.FP32, (2, 8192))
    assert array is not None
    array[:] = 1
    assert np.shares_memory(instance.execute({"x": array}, ("y",))["y"], array)
    assert instance.allocate("x", dtypes.FP32, (2, 4)) is None
    model.close()


def test_inputs_are_not_written_to_and_outputs_stay(backend: TensorFlowBackend, tmp_path: Path) -> None:
    def negate() -> None:
        tf.negative(tf.nn.relu(v1.placeholder(tf.float32, [None, 8192], name="x")), name="y")

    model = opened(backend, saved_models.write_graph(tmp_path / "1" / "model.graphdef", negate))
    instance = model.instance(instance_spec(config()))
    results = []
    for number in (1.0, 2.0, 3.0):
        array = instance.allocate("x", dtypes.FP32, (2, 8192))
        assert array is not None
        array[:] = number
        array.flags.writeable = False
        results.append(instance.execute({"x": array}, ("y",))["y"])
        assert (array == number).all()
    assert [float(result[0, 0]) for result in results] == [-1.0, -2.0, -3.0]
    model.close()
    assert [float(result[1, 9]) for result in results] == [-1.0, -2.0, -3.0]


def test_what_depends_on_the_data(backend: TensorFlowBackend, dense: Path, tmp_path: Path) -> None:
    model = opened(backend, dense)
    assert not model.instance(instance_spec(config())).data_dependent
    model.close()
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel",
        lambda n: {"y": tf.while_loop(lambda i: i < n[0, 0], lambda i: [i + 1], [tf.constant(0)])[0]},
        spec("n", tf.int32, (1, 1)),
    )
    model = opened(backend, path)
    assert model.instance(instance_spec(config())).data_dependent
    assert run(model, {"n": np.array([[9]], np.int32)}, "y")["y"] == 9


# Bad input


def broken(dense: Path, tmp_path: Path) -> Path:
    path = tmp_path / "1" / "model.savedmodel"
    shutil.copytree(dense, path)
    return path


@pytest.mark.parametrize("size", [0, 0.01, 0.3, 0.7, 0.99])
def test_a_saved_model_that_is_cut_off(backend: TensorFlowBackend, dense: Path, tmp_path: Path, size: float) -> None:
    file = broken(dense, tmp_path) / "saved_model.pb"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * size)])
    assert refusal(backend, file.parent).startswith("failed to load model 'model' from")


@pytest.mark.parametrize("content", [b"\x89HDF\r\n\x1a\n", b"not a model", bytes(1000), b"version https://git-lfs"])
@pytest.mark.parametrize("file", ["model.savedmodel/saved_model.pb", "model.graphdef"])
def test_bytes_that_are_no_model(backend: TensorFlowBackend, tmp_path: Path, content: bytes, file: str) -> None:
    path = tmp_path / "1" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert "failed to load model 'model' from" in refusal(backend, path)


def test_a_folder_without_a_saved_model(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = tmp_path / "1" / "model.savedmodel"
    path.mkdir(parents=True)
    assert "a SavedModel is a folder with 'saved_model.pb'" in refusal(backend, path)
    assert refusal(backend, path / "nosuch").startswith("unable to find model file '")


def test_variables_that_are_missing(backend: TensorFlowBackend, dense: Path, tmp_path: Path) -> None:
    path = broken(dense, tmp_path)
    shutil.rmtree(path / "variables")
    assert "the folder 'variables'" in refusal(backend, path).lower()


def test_variables_that_are_cut_off(backend: TensorFlowBackend, dense: Path, tmp_path: Path) -> None:
    path = broken(dense, tmp_path)
    (data,) = (path / "variables").glob("variables.data*")
    data.write_bytes(data.read_bytes()[:10])
    assert "failed to load model 'model'" in refusal(backend, path)
    (path / "variables" / "variables.index").write_bytes(b"")
    assert "failed to load model 'model'" in refusal(backend, path)


def test_an_operator_that_tensorflow_lacks(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_sums)
    graph = v1.GraphDef.FromString(path.read_bytes())
    next(node for node in graph.node if node.name == "sum").op = "AcmeSum"
    path.write_bytes(graph.SerializeToString())
    text = refusal(backend, path)
    assert "'AcmeSum'" in text
    assert text.endswith("is named in model_operations { op_library_filename: … }.")


def test_a_library_of_operators(backend: TensorFlowBackend, dense: Path) -> None:
    library = str(Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2")
    model = opened(backend, dense, replace(bare(), operation_libraries=(library,)))
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)
    text = refusal(backend, dense, replace(bare(), operation_libraries=("nosuch.so",)))
    assert "the operator library 'nosuch.so' (model_operations.op_library_filename) cannot be used: " in text


def test_types_and_ranks_that_v2_lacks(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel", lambda x: {"y": tf.cast(x, tf.complex64), "z": x}, spec("x")
    )
    assert "tensor 'y' of model 'model' is of type DT_COMPLEX64" in refusal(backend, path)
    without = config(inputs=(), outputs=(TensorSpec("z", dtypes.FP32, (4,)),))
    assert np.array_equal(run(opened(backend, path, without), {"x": X}, "z")["z"], X)


def test_a_tensor_of_any_rank(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.save(tmp_path / "1" / "model.savedmodel", lambda x: {"y": x + 1}, spec("x", shape=None))
    assert "tensor 'x' of model 'model' may have any number of dimensions" in refusal(backend, path)
    written = config(inputs=(TensorSpec("x", dtypes.FP32, (4,)),), outputs=(TensorSpec("y", dtypes.FP32, (4,)),))
    model = opened(backend, path, written)
    assert model.describe().inputs == (DescribedTensor("x", dtypes.FP32, (-1, 4)),)
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X + 1)


def test_inputs_that_tensorflow_refuses(backend: TensorFlowBackend, tmp_path: Path) -> None:
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel",
        lambda x, index: {"y": tf.gather(x, index, axis=1, batch_dims=1)},
        spec("x"),
        spec("index", tf.int32, (None, 1)),
    )
    model = opened(backend, path)
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
        assert caught.value.code is Code.INVALID_ARG
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
def test_values_that_are_no_good(
    backend: TensorFlowBackend, dense: Path, parameters: dict[str, str], options: dict[str, str], text: str
) -> None:
    assert text in refusal(backend, dense, bare(**parameters), options=options)


# The process


def test_tensorflow_is_the_engine_where_it_is_installed() -> None:
    assert BY_BACKEND["tensorflow"].installed
    assert BY_BACKEND["tensorflow"].stand_in is None
    registry = BackendRegistry()
    assert "tensorflow" in registry.names
    assert isinstance(registry.get("tensorflow"), TensorFlowBackend)
    assert registry.get("tensorflow").gpu_count() == 0


def test_a_placement_for_each_kind_of_instance(backend: TensorFlowBackend, dense: Path) -> None:
    model = opened(backend, dense, placements=(Placement(InstanceKind.MODEL),))
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)


def test_tensorflows_log_is_ours() -> None:
    log = tf.get_logger()
    assert (log.handlers, log.propagate, log.level) == ([], True, logging.WARNING)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"

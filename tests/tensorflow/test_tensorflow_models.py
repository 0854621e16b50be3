"""The TensorFlow backend on TensorFlow itself, with models made on the spot."""

import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import saved_models
import tensorflow as tf
from in_process import X, bare, opened, refusal, run
from model_packages import unpacked
from saved_models import WEIGHTS, spec, v1

from modserve.backends.api import Placement
from modserve.backends.catalogue import BY_BACKEND
from modserve.backends.registry import BackendRegistry
from modserve.backends.tensorflow.backend import TensorFlowBackend
from modserve.core.configuration.model_config import DescribedTensor, InstanceKind, TensorSpec
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_models.save_dense(tmp_path_factory.mktemp("dense") / "1" / "model.savedmodel")


# Models


def test_a_saved_model(dense: Path) -> None:
    model = opened(dense)
    description = model.describe()
    assert description.inputs == (DescribedTensor("x", dtypes.FP32, (-1, 4)),)
    assert description.outputs == (DescribedTensor("y", dtypes.FP32, (-1, 2)),)
    assert description.default_max_batch_size == 4
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)


def test_the_folder_of_a_version_is_the_saved_model(dense: Path, tmp_path: Path) -> None:
    """As TensorFlow Serving has its models."""
    shutil.copytree(dense, tmp_path / "1")
    assert np.array_equal(run(opened(tmp_path / "1" / "saved_model.pb"), {"x": X}, "y")["y"], X @ WEIGHTS)


def test_every_datatype(tmp_path: Path) -> None:
    model = opened(saved_models.save_copier(tmp_path / "1" / "model.savedmodel"))
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


def test_strings_are_bytes_also_inside_the_graph(tmp_path: Path) -> None:
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel",
        lambda text: {"length": tf.strings.length(text), "upper": tf.strings.upper(text)},
        spec("text", tf.string, (None, 1)),
    )
    sent = np.array([[b"one"], [b"\xff\x00"]], dtype=object)
    outputs = run(opened(path), {"text": sent}, "length", "upper")
    assert outputs["length"].tolist() == [[3], [2]]
    assert outputs["upper"].tolist() == [[b"ONE"], [b"\xff\x00"]]


def test_only_the_requested_outputs_run(tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_sums)
    model = opened(path)
    assert [tensor.name for tensor in model.describe().outputs] == ["sum", "difference"]
    assert {*run(model, {"a": X, "b": X}, "sum")} == {"sum"}


def test_a_keras_model(tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, activation="relu")])
    path = tmp_path / "1" / "model.savedmodel"
    model.export(str(path), verbose=False)
    served = opened(path)
    (output,) = served.describe().outputs
    (feed,) = served.describe().inputs
    assert output.shape == (-1, 3)
    assert np.allclose(run(served, {feed.name: X}, output.name)[output.name], model(X).numpy(), atol=1e-6)


def test_basic_pitch_agrees_with_onnx_runtime() -> None:
    import onnxruntime

    folder = unpacked("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022"
    audio = np.random.default_rng(1).uniform(-1, 1, (2, 43844, 1)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(folder / "nmp.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, {session.get_inputs()[0].name: audio}), strict=True))
    model = opened(folder / "nmp")
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


def test_the_signature_that_a_parameter_names(tmp_path: Path) -> None:
    path = saved_models.save_two_signatures(tmp_path / "1" / "model.savedmodel")
    halved = run(opened(path, bare(TF_SIGNATURE_DEF="halve")), {"x": X}, "y")["y"]
    assert np.array_equal(halved, X / 2)
    model = opened(path)  # without a default, the first one
    assert model.report()["signature"] == "double"
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X * 2)
    assert refusal(path, bare(TF_SIGNATURE_DEF="nosuch")).startswith(
        "unable to load model 'model', expected 'nosuch' signature; it has: 'double', 'halve'. Parameter "
    )


def test_a_saved_model_without_signatures(tmp_path: Path) -> None:
    path = tmp_path / "1" / "model.savedmodel"
    tf.saved_model.save(tf.Module(), str(path))
    assert "expected 'serving_default' signature; it has none. Parameter" in refusal(path)


def test_the_graph_that_a_tag_names(tmp_path: Path) -> None:
    path = saved_models.save_tagged(tmp_path / "1" / "model.savedmodel", "serve", "other")
    assert np.array_equal(run(opened(path), {"x": X}, "y")["y"], X * 2)
    tagged = opened(path, bare(TF_GRAPH_TAG="other"))
    assert tagged.report()["tag"] == "other"
    tagged.close()
    assert refusal(path, bare(TF_GRAPH_TAG="train")).startswith(
        "unable to load model 'model', expected 'train' tag; the tags of its graphs are: 'serve'; 'other'. Parameter "
    )


# Frozen graphs


def test_the_tensors_that_a_configuration_names(tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_sums)
    inputs = tuple(TensorSpec(name, dtypes.FP32, (4,)) for name in ("a", "b"))
    model = opened(path, config(inputs=inputs, outputs=(TensorSpec("sum:0", dtypes.FP32, (4,)),)))
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
        assert text in refusal(path, wrong)


def test_operations_that_initialise_a_graph(tmp_path: Path) -> None:
    path = saved_models.write_graph(tmp_path / "1" / "model.graphdef", saved_models.build_uninitialised)
    y = config(inputs=(TensorSpec("x", dtypes.FP32, (4,)),), outputs=(TensorSpec("y", dtypes.FP32, (4,)),))
    named = replace(y, parameters={"TF_INIT_OPS_FILE": "init.json"})
    with pytest.raises(ModserveError, match="uninitialized value v"):
        run(opened(path, y), {"x": X}, "y")
    assert "there is neither" in refusal(path, named)
    (tmp_path / "init.json").write_text(json.dumps({"init_ops": ["start"]}))
    assert np.array_equal(run(opened(path, named), {"x": X}, "y")["y"], X + 5)
    (tmp_path / "1" / "init.json").write_text(json.dumps({"init_ops": ["begin"]}))  # counts before the other
    assert "has no operation 'begin'" in refusal(path, named)
    (tmp_path / "1" / "init.json").write_text("[]")
    assert 'expected {"init_ops": ["init"]}' in refusal(path, named)
    outside = replace(y, parameters={"TF_INIT_OPS_FILE": "../init.json"})
    assert "expected a file in the model's folder" in refusal(path, outside)


# Parameters


def test_sessions_that_instances_share(dense: Path) -> None:
    for parameters, sessions in (({}, 1), ({"MAX_SESSION_SHARE_COUNT": "2"}, 2), ({"MAX_SESSION_SHARE_COUNT": "1"}, 3)):
        model = opened(dense, bare(**parameters))
        instances = [model.instance(instance_spec(config(), index=index)) for index in range(3)]
        assert model.report()["sessions"] == sessions
        for instance in instances:
            assert np.array_equal(instance.execute({"x": X}, ("y",))["y"], X @ WEIGHTS)
        model.close()


def test_a_session_runs_for_several_instances_at_once(dense: Path) -> None:
    model = opened(dense)
    instances = [model.instance(instance_spec(config(), index=index)) for index in range(4)]

    def work(number: int) -> bool:
        return all(
            np.array_equal(instances[number].execute({"x": X + step}, ("y",))["y"], (X + step) @ WEIGHTS)
            for step in range(100)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    model.close()


def test_threads(dense: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = opened(dense, cpu_threads=3, cpu_instances=2)
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
    other = opened(dense, bare(**parameters))
    assert (other.report()["threads"], other.report()["inter_op_threads"]) == (5, 2)
    assert np.array_equal(run(other, {"x": X}, "y")["y"], X @ WEIGHTS)
    assert any("threads for single operators that TensorFlow started for" in message for message in caplog.messages)


def test_what_has_no_effect(dense: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"version": "1", "default-max-batch-size": "16", "allow-soft-placement": "false"}
    written = replace(bare(TF_SIGNATURE_DEFS="x", TF_NUM_INTRA_THREADS="1"), graph_optimization_level=1)
    model = opened(dense, written, options=options)
    assert model.describe().default_max_batch_size == 16
    model.close()
    messages = "\n".join(caplog.messages)
    assert "parameter 'TF_SIGNATURE_DEFS' has no effect" in messages
    assert "did you mean 'TF_SIGNATURE_DEF'?" in messages
    assert "backend option 'version' is '1': TensorFlow 2 runs all models" in messages
    assert "TF_XLA_FLAGS=--tf_xla_cpu_global_jit" in messages


@pytest.mark.parametrize("level", [-1, 1, 2, 7])
def test_levels_of_the_graph(dense: Path, level: int) -> None:
    model = opened(dense, replace(bare(), graph_optimization_level=level))
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)


# Memory


def test_aligned_memory_is_not_copied(tmp_path: Path) -> None:
    path = saved_models.write_graph(
        tmp_path / "1" / "model.graphdef",
        lambda: tf.identity(v1.placeholder(tf.float32, [None, 8192], name="x"), name="y"),
    )
    model = opened(path)
    instance = model.instance(instance_spec(config()))
    array = instance.allocate("x", dtypes.FP32, (2, 8192))
    assert array is not None
    array[:] = 1
    assert np.shares_memory(instance.execute({"x": array}, ("y",))["y"], array)
    assert instance.allocate("x", dtypes.FP32, (2, 4)) is None
    model.close()


def test_inputs_are_not_written_to_and_outputs_stay(tmp_path: Path) -> None:
    def negate() -> None:
        tf.negative(tf.nn.relu(v1.placeholder(tf.float32, [None, 8192], name="x")), name="y")

    model = opened(saved_models.write_graph(tmp_path / "1" / "model.graphdef", negate))
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


def test_what_depends_on_the_data(dense: Path, tmp_path: Path) -> None:
    model = opened(dense)
    assert not model.instance(instance_spec(config())).data_dependent
    model.close()
    path = saved_models.save(
        tmp_path / "1" / "model.savedmodel",
        lambda n: {"y": tf.while_loop(lambda i: i < n[0, 0], lambda i: [i + 1], [tf.constant(0)])[0]},
        spec("n", tf.int32, (1, 1)),
    )
    model = opened(path)
    assert model.instance(instance_spec(config())).data_dependent
    assert run(model, {"n": np.array([[9]], np.int32)}, "y")["y"] == 9


# The process


def test_tensorflow_is_the_engine_where_it_is_installed() -> None:
    assert BY_BACKEND["tensorflow"].installed
    assert BY_BACKEND["tensorflow"].stand_in is None
    registry = BackendRegistry()
    assert "tensorflow" in registry.names
    assert isinstance(registry.get("tensorflow"), TensorFlowBackend)
    assert registry.get("tensorflow").gpu_count() == 0


def test_a_placement_for_each_kind_of_instance(dense: Path) -> None:
    model = opened(dense, placements=(Placement(InstanceKind.MODEL),))
    assert np.array_equal(run(model, {"x": X}, "y")["y"], X @ WEIGHTS)


def test_tensorflows_log_is_ours() -> None:
    log = tf.get_logger()
    assert (log.handlers, log.propagate, log.level) == ([], True, logging.WARNING)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"

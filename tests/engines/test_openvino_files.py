"""The files that the OpenVINO backend reads: every format, what is wrong with damaged ones, and the cache."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("openvino")

from model_packages import unpacked
from onnx import TensorProto, helper
from openvino_models import configured, instance, ones, op, opened, save_one, save_sum

from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.tensor import Array
from modserve.testing import instance_spec


@pytest.fixture(scope="module")
def pitch() -> Path:
    """A network for music as SavedModel, TensorFlow Lite and ONNX."""
    return unpacked("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022"


def write_onnx(path: Path, operator: str = "Relu", domain: str = "") -> Path:
    value = helper.make_tensor_value_info
    node = helper.make_node(operator, ["X"], ["Y"], domain=domain)
    tensors = [value(name, TensorProto.FLOAT, ["batch", 3]) for name in "XY"]
    graph = helper.make_graph([node], "graph", tensors[:1], tensors[1:])
    imports = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=imports), path)
    return path


# Formats


@pytest.mark.parametrize(
    ("source", "filename", "name"),
    [
        ("nmp", "model.savedmodel", "input_2"),
        ("nmp", "model.saved_model", "input_2"),
        ("nmp.tflite", "model.tflite", "serving_default_input_2:0"),
        ("nmp.onnx", "model.onnx", "serving_default_input_2:0"),
    ],
)
def test_the_formats(pitch: Path, tmp_path: Path, source: str, filename: str, name: str) -> None:
    """The default file name is model.xml, in whose place the others count."""
    copy = shutil.copytree if (pitch / source).is_dir() else shutil.copy
    copy(pitch / source, tmp_path / filename)
    for path in (tmp_path / "model.xml", tmp_path / filename, tmp_path):
        model = opened(path)
        description = model.describe()
        assert [(tensor.name, tensor.shape) for tensor in description.inputs] == [(name, (-1, 43844, 1))]
        shapes = sorted(tensor.shape for tensor in description.outputs)
        assert shapes == [(-1, 172, 88), (-1, 172, 88), (-1, 172, 264)]
    model.instance(instance_spec(configured()))
    assert model.report()["file"] == filename


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def message(field: int, content: bytes) -> bytes:
    """A part of a serialised protobuf message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def frozen_graph() -> bytes:
    """A serialised ``tensorflow.GraphDef``: y = Relu(x), FP32 [-1, 3]."""

    def node(name: bytes, operator: bytes, inputs: list[bytes], attributes: dict[bytes, bytes]) -> bytes:
        pairs = b"".join(message(5, message(1, key) + message(2, value)) for key, value in attributes.items())
        return message(1, message(1, name) + message(2, operator) + b"".join(message(3, x) for x in inputs) + pairs)

    float_type = varint(6 << 3) + varint(1)
    dimensions = [varint(1 << 3) + varint(size) for size in (2**64 - 1, 3)]
    shape = message(7, b"".join(message(2, dimension) for dimension in dimensions))
    graph = node(b"x", b"Placeholder", [], {b"dtype": float_type, b"shape": shape})
    return graph + node(b"y", b"Relu", [b"x"], {b"T": float_type})


@pytest.mark.parametrize("filename", ["model.graphdef", "model.pb"])
def test_a_frozen_graph(tmp_path: Path, filename: str) -> None:
    """Triton's names of its tensors are those of the operators."""
    (tmp_path / filename).write_bytes(frozen_graph())
    like = configured({"x": (3,)}, {"y": (3,)}, max_batch_size=4)
    model = opened(tmp_path / "model.xml", like)
    assert [tensor.name for tensor in (*model.describe().inputs, *model.describe().outputs)] == ["x", "y"]
    array = np.array([[-1, 0, 2]], np.float32)
    made = instance(tmp_path / "model.xml", like)
    assert made.execute({"x": array}, ("y",))["y"].tolist() == [[0, 0, 2]]


def test_the_tags_of_a_saved_model(pitch: Path) -> None:
    path = pitch / "nmp"
    assert opened(path, configured(parameters={"TF_GRAPH_TAG": "serve"})).describe().inputs[0].name == "input_2"
    assert opened(path, configured(parameters={"TF_SIGNATURE_DEF": "serving_default"})).describe().inputs
    with pytest.raises(ModserveError, match="doesn't contain MetaGraph with requested tag"):
        opened(path, configured(parameters={"TF_GRAPH_TAG": "train"}))
    with pytest.raises(ModserveError, match="TF_SIGNATURE_DEF' is 'other', expected 'serving_default', the only"):
        opened(path, configured(parameters={"TF_SIGNATURE_DEF": "other"}))


# Damage

Harm = Callable[[Path], Path]


def cut(file: Path, part: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * part)])


def in_ir(suffix: str, part: float) -> Harm:
    def harm(folder: Path) -> Path:
        weights = np.arange(12, dtype=np.float32).reshape(3, 4)
        path = save_one(folder / "model.xml", lambda x: op.matmul(x, op.constant(weights), False, False), [-1, 3])
        if part:
            cut(path.with_suffix(suffix), part)
        else:
            path.with_suffix(suffix).unlink()
        return path

    return harm


def in_file(filename: str, content: bytes) -> Harm:
    def harm(folder: Path) -> Path:
        (folder / filename).write_bytes(content)
        return folder / filename

    return harm


def in_onnx(part: float) -> Harm:
    def harm(folder: Path) -> Path:
        path = write_onnx(folder / "model.onnx")
        cut(path, part)
        return path

    return harm


def empty_folder(folder: Path) -> Path:
    (folder / "model.savedmodel").mkdir()
    (folder / "model.savedmodel" / "weights.h5").touch()
    return folder / "model.savedmodel"


NOT_A_MODEL = "Unable to read the model.*OpenVINO reads IR .*TensorFlow Lite"
DAMAGED = "The file is truncated or damaged"


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        pytest.param(in_ir(".bin", 0), r"Empty weights data.*model.bin, must be beside it", id="no bin"),
        pytest.param(in_ir(".bin", 0.5), r"Incorrect weights in bin.*truncated or belongs to another", id="cut bin"),
        pytest.param(in_ir(".xml", 0.5), rf"at offset.*{DAMAGED}", id="cut xml"),
        pytest.param(in_ir(".xml", 0.001), NOT_A_MODEL, id="xml cut to nothing"),
        pytest.param(in_ir(".xml", 0), "unable to find model file", id="no xml"),
        pytest.param(in_onnx(0.5), rf"{DAMAGED}|{NOT_A_MODEL}", id="cut onnx"),
        pytest.param(in_file("model.onnx", b"no model"), NOT_A_MODEL, id="no onnx"),
        pytest.param(in_file("model.tflite", b"no model"), NOT_A_MODEL, id="no tflite"),
        pytest.param(in_file("model.pdmodel", b"no model"), rf"be parsed.*{DAMAGED}", id="no pdmodel"),
        pytest.param(in_file("model.xyz", b"no model"), NOT_A_MODEL, id="wrong suffix"),
        pytest.param(empty_folder, "is not a SavedModel.* it has weights.h5", id="no saved model"),
        pytest.param(
            lambda folder: write_onnx(folder / "model.onnx", "Foo", "mine"), r"mine\.Foo.*onnxruntime", id="op"
        ),
    ],
)
def test_a_damaged_file(tmp_path: Path, harm: Harm, text: str) -> None:
    with pytest.raises(ModserveError, match=text) as caught:
        opened(harm(tmp_path))
    assert caught.value.code is Code.INVALID_ARG
    for noise in ("Exception from", "failed at", "\n"):
        assert noise not in caught.value.message


@pytest.mark.parametrize(
    ("file", "part", "text"),
    [
        ("saved_model.pb", 0.5, DAMAGED),
        ("variables/variables.index", 0.5, "file of variables is truncated"),
        ("variables/variables.data-00000-of-00001", 0.5, "file of variables is truncated"),
    ],
)
def test_a_damaged_saved_model(pitch: Path, tmp_path: Path, file: str, part: float, text: str) -> None:
    path = shutil.copytree(pitch / "nmp", tmp_path / "model.savedmodel")
    cut(path / file, part)
    with pytest.raises(ModserveError, match=text):
        opened(path)


def test_a_saved_model_without_its_variables(pitch: Path, tmp_path: Path) -> None:
    path = shutil.copytree(pitch / "nmp", tmp_path / "model.savedmodel")
    shutil.rmtree(path / "variables")
    with pytest.raises(ModserveError, match="The folder 'variables' is missing"):
        opened(path)


def test_a_damaged_tensorflow_lite_file(pitch: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(pitch / "nmp.tflite", tmp_path / "model.tflite"))
    cut(path, 0.9)
    with pytest.raises(ModserveError, match=DAMAGED):
        opened(path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_mapped_unless_they_shall_not(tmp_path: Path) -> None:
    weights = op.constant(np.ones((256, 256), np.float32))
    path = save_one(tmp_path / "model.xml", lambda x: op.matmul(x, weights, False, False), [-1, 256])
    for parameters, is_mapped in ({}, True), ({"ENABLE_MMAP": "NO"}, False):
        model = opened(path, configured(parameters=parameters))
        assert (str(tmp_path / "model.bin") in Path("/proc/self/maps").read_text()) is is_mapped
        model.close()


def test_a_library_of_operators_that_is_none(tmp_path: Path) -> None:
    path = save_sum(tmp_path / "model.xml")
    with pytest.raises(ModserveError, match=r"CPU_EXTENSION_PATH' is '/no/such.so', expected an operator library"):
        opened(path, configured(parameters={"CPU_EXTENSION_PATH": "/no/such.so"}))


# The cache


def runs(path: Path, **more: object) -> Array:
    made = instance(path, options={"cache-dir": str(more["cache"])} if "cache" in more else {})
    return made.execute({"A": ones(2, 4), "B": ones(2, 4)}, ("SUM",))["SUM"]


def test_a_model_comes_out_of_the_cache(tmp_path: Path) -> None:
    path, cache = save_sum(tmp_path / "model.xml"), tmp_path / "deep" / "cache"
    assert (runs(path, cache=cache) == 2).all()
    (blob,) = cache.iterdir()
    written = blob.stat().st_mtime_ns
    assert (runs(path, cache=cache) == 2).all()
    assert [entry.stat().st_mtime_ns for entry in cache.iterdir()] == [written]
    cut(blob, 0.5)
    assert (runs(path, cache=cache) == 2).all()


def test_the_cache_of_one_model(tmp_path: Path) -> None:
    path, cache = save_sum(tmp_path / "model.xml"), tmp_path / "cache"
    instance(path, configured(parameters={"cache_dir": str(cache)}), options={"cache-dir": str(tmp_path / "other")})
    assert len(list(cache.iterdir())) == 1
    assert not (tmp_path / "other").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save_sum(tmp_path / "model.xml")
    (tmp_path / "file").touch()
    assert (runs(path, cache=tmp_path / "file") == 2).all()
    assert "model 'model': it is compiled without a cache: CACHE_DIR" in caplog.text

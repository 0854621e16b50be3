"""The dictionaries that converters make of a classifier's probabilities become a tensor."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from modserve.backends.api import ModelSource
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeModel
from modserve.backends.onnxruntime.zipmap import flatten_zipmaps
from modserve.core.configuration.model_config import DescribedTensor, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.testing import config, instance_spec

NUMBERS: dict[str, Any] = {"classlabels_int64s": [-3, 0, 2**62]}
STRINGS: dict[str, Any] = {"classlabels_strings": ["setosa", "versicolor", "ê"]}
FLOATS = helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 3])
ROWS = np.array([[1, 2, 7], [0.5, 0.25, 0.25]], np.float32)
ONNX = helper.make_opsetid("", 15)
CLASSIC = helper.make_opsetid("ai.onnx.ml", 3)


def dictionaries(name: str, labels: dict[str, Any]) -> Any:
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    value = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    return helper.make_value_info(name, helper.make_sequence_type_proto(value))


def classifier(labels: dict[str, Any], *opsets: Any) -> bytes:
    """As skl2onnx makes it: rows, divided by their sum."""
    nodes = [
        helper.make_node("Normalizer", ["IN"], ["probabilities"], domain="ai.onnx.ml", norm="L1"),
        helper.make_node("ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml", **labels),
    ]
    graph = helper.make_graph(nodes, "graph", [FLOATS], [dictionaries("output_probability", labels)])
    made: bytes = helper.make_model(graph, ir_version=8, opset_imports=list(opsets)).SerializeToString()
    return made


def session(content: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("labels", [NUMBERS, STRINGS], ids=["numbers", "strings"])
@pytest.mark.parametrize("opsets", [[ONNX, CLASSIC], [CLASSIC]], ids=["both", "classic"])
def test_the_same_probabilities(labels: dict[str, Any], opsets: list[Any]) -> None:
    before = classifier(labels, *opsets)
    after = flatten_zipmaps(before)
    assert after is not None
    (names,) = labels.values()
    assert after.labels == {"output_probability": tuple(names)}
    onnx.checker.check_model(onnx.load_from_string(after.content))
    (expected,) = session(before).run(None, {"IN": ROWS})
    (matrix,) = session(after.content).run(None, {"IN": ROWS})
    assert matrix.tolist() == [[row[name] for name in names] for row in expected]


def test_labels_that_are_packed() -> None:
    """As some writers of protobuf do it, which readers have to take."""
    plain = b"".join(b"\x40" + bytes([label]) for label in (1, 2, 3))
    before = classifier({"classlabels_int64s": [1, 2, 3]}, ONNX, CLASSIC)
    assert before.count(plain) == 1
    packed = b"\x42\x04\x01\x02\x03\x00"  # one more, and as long
    after = flatten_zipmaps(before.replace(plain, packed))
    assert after is not None
    assert after.labels == {"output_probability": (1, 2, 3, 0)}


def test_a_graph_with_several() -> None:
    nodes = [
        helper.make_node("ZipMap", ["IN"], ["A"], domain="ai.onnx.ml", **NUMBERS),
        helper.make_node("Relu", ["IN"], ["R"]),
        helper.make_node("ZipMap", ["R"], ["B"], domain="ai.onnx.ml", **STRINGS),
    ]
    relu = helper.make_tensor_value_info("R", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "graph", [FLOATS], [dictionaries("A", NUMBERS), relu, dictionaries("B", STRINGS)])
    made = helper.make_model(graph, ir_version=8, opset_imports=[ONNX, CLASSIC]).SerializeToString()
    after = flatten_zipmaps(made)
    assert after is not None
    assert [*after.labels] == ["A", "B"]
    first, relued, second = session(after.content).run(None, {"IN": -ROWS})
    assert first.tolist() == (-ROWS).tolist()
    assert relued.tolist() == second.tolist() == np.zeros((2, 3)).tolist()


def test_what_has_none_stays() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["IN"], ["OUT"])],
        "graph",
        [FLOATS],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 3])],
    )
    assert flatten_zipmaps(helper.make_model(graph).SerializeToString()) is None


@pytest.mark.parametrize("labels", [NUMBERS, STRINGS], ids=["numbers", "strings"])
def test_files_that_are_cut_or_spoilt_anywhere(labels: dict[str, Any]) -> None:
    """ONNX Runtime says what is wrong with them; here nothing may be raised."""
    content = classifier(labels, ONNX, CLASSIC)
    for end in range(len(content)):
        flatten_zipmaps(content[:end])
        flatten_zipmaps(content[:end] + b"\xff" + content[end + 1 :])
        flatten_zipmaps(content[:end] + b"\x00" + content[end + 1 :])


# The backend


def opened(path: Path, **more: Any) -> OnnxRuntimeModel:
    return OnnxRuntimeBackend().open(ModelSource(config(**more), 1, path, path.parent))


def test_the_backend_describes_and_runs_a_classifier(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(classifier(STRINGS, ONNX, CLASSIC))
    model = opened(tmp_path / "model.onnx")
    described = model.describe()
    assert described.outputs == (DescribedTensor("output_probability", dtypes.FP32, (-1, 3), symbols=("", "")),)
    given = config(
        inputs=(TensorSpec("IN", dtypes.FP32, (3,)),), outputs=(TensorSpec("output_probability", dtypes.FP32, (3,)),)
    )
    instance = model.instance(instance_spec(given))
    outputs = instance.execute({"IN": ROWS}, ("output_probability",))
    assert outputs["output_probability"].tolist() == pytest.approx(
        np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float32)
    )
    assert model.report()["class_labels"] == {"output_probability": ["setosa", "versicolor", "ê"]}


def test_weights_of_a_classifier_that_lie_beside_it(tmp_path: Path) -> None:
    weights = helper.make_tensor("W", TensorProto.FLOAT, [3], np.array([1, 2, 3], np.float32).tobytes(), raw=True)
    nodes = [
        helper.make_node("Mul", ["IN", "W"], ["P"]),
        helper.make_node("ZipMap", ["P"], ["OUT"], domain="ai.onnx.ml", **NUMBERS),
    ]
    graph = helper.make_graph(nodes, "graph", [FLOATS], [dictionaries("OUT", NUMBERS)], [weights])
    made = helper.make_model(graph, ir_version=8, opset_imports=[ONNX, CLASSIC])
    onnx.save(made, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    instance = opened(tmp_path / "model.onnx").instance(instance_spec(config()))
    assert instance.execute({"IN": np.ones((1, 3), np.float32)}, ("OUT",))["OUT"].tolist() == [[1, 2, 3]]


def test_dictionaries_that_no_zipmap_makes(tmp_path: Path) -> None:
    """Here, as an input."""
    value = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        [helper.make_node("DictVectorizer", ["IN"], ["OUT"], domain="ai.onnx.ml", int64_vocabulary=[1, 2])],
        "graph",
        [helper.make_value_info("IN", value)],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [1, 2])],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[ONNX, CLASSIC]), tmp_path / "model.onnx")
    with pytest.raises(ModserveError, match=r"tensor 'IN' .* no v2 datatype; .*options=\{'zipmap': False\}") as caught:
        opened(tmp_path / "model.onnx").describe()
    assert caught.value.code is Code.INVALID_ARG

"""Reading an ONNX file before the engine loads it: neither weights nor long lists."""

import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modserve.backends.onnxruntime.divisions import guard_divisions
from modserve.backends.onnxruntime.graph import depends_on_data, find_unranked, precision
from modserve.backends.onnxruntime.sessions import ModelFile
from modserve.backends.onnxruntime.zipmap import flatten_zipmaps

MB = 1024 * 1024
MANY = 500_000


def model(node: Any, *initializers: Any) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in ("x", "y"))
    graph = helper.make_graph([node], "graph", [x], [y], list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    made: bytes = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    return made


def weights(kind: int, values: Any) -> bytes:
    return model(helper.make_node("Gather", ["w", "x"], ["y"]), helper.make_tensor("w", kind, [len(values)], values))


def read(content: bytes) -> None:
    """Look at a model as a load does."""
    with memoryview(content) as view:
        assert flatten_zipmaps(view) is None
        assert guard_divisions(view) is None
        depends_on_data(view)
        find_unranked(view)
        precision(view)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
def test_weights_take_no_memory(kind: type) -> None:
    tensor = numpy_helper.from_array(np.arange(4 * MB // np.dtype(kind).itemsize).astype(kind), "w")
    content = model(helper.make_node("Gather", ["w", "x"], ["y"]), tensor)
    tracemalloc.start()
    try:
        read(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MB


@pytest.mark.parametrize(
    "content",
    [
        weights(TensorProto.INT64, range(MANY)),
        weights(TensorProto.STRING, [b"word"] * MANY),
        model(helper.make_node("Custom", ["x"], ["y"], domain="ai.onnx.ml", numbers=[1] * MANY)),
        model(helper.make_node("Custom", ["x"], ["y"], domain="ai.onnx.ml", numbers=[1.0] * MANY)),
        model(helper.make_node("Custom", ["x"], ["y"], domain="ai.onnx.ml", words=["word"] * MANY)),
    ],
    ids=["whole numbers", "texts", "list of whole numbers", "list of numbers", "list of texts"],
)
def test_long_lists_take_no_time(content: bytes) -> None:
    begin = time.process_time()
    read(content)
    assert time.process_time() - begin < 0.2  # milliseconds; a second if each element is looked at


@pytest.mark.parametrize(
    ("values", "is_harmless"),
    [([2, 300, -2], True), ([2**31 - 1], True), ([3, 0], False), ([3, -1], False), ([256, 128], True)],
)
@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_divisors_that_are_no_raw_bytes(kind: int, values: Sequence[int], is_harmless: bool) -> None:
    x, y = (helper.make_tensor_value_info(name, kind, ["n"]) for name in ("x", "y"))
    divisor = helper.make_tensor("w", kind, [len(values)], values)
    graph = helper.make_graph([helper.make_node("Div", ["x", "w"], ["y"])], "graph", [x], [y], [divisor])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    assert not onnx.load_from_string(content).graph.initializer[0].raw_data
    assert (guard_divisions(content) is None) == is_harmless


def test_of_a_graph_behind_a_list() -> None:
    """An attribute with a graph is found though one with a list comes before it."""
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("a", "b")]
    body = helper.make_graph([helper.make_node("Div", ["a", "a"], ["b"])], "body", ends[:1], ends[1:])
    node = helper.make_node("SequenceMap", ["x"], ["y"], axes=[1, 2], body=body)
    after = guard_divisions(model(node))
    assert after is not None
    assert after.count + after.others == 1


def large_division(file: Path, external: bool = False) -> None:
    """Write a model of 10 MB that divides integers, with its weights in the file or beside it."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in ("x", "y"))
    tensor = numpy_helper.from_array(np.arange(10 * MB // 8), "w")
    nodes = [helper.make_node("Gather", ["w", "x"], ["g"]), helper.make_node("Div", ["g", "x"], ["y"])]
    graph = helper.make_graph(nodes, "graph", [x], [y], [tensor])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, file, save_as_external_data=external, location="weights" if external else None)


def test_an_edited_copy_of_a_large_model_is_a_file(tmp_path: Path) -> None:
    large_division(tmp_path / "model.onnx")
    file = ModelFile(tmp_path / "model.onnx")
    tracemalloc.start()
    try:
        with file.reading() as copy:
            _, peak = tracemalloc.get_traced_memory()
            assert isinstance(copy, str)
            edited = Path(copy)
            assert edited.parent == Path(tempfile.gettempdir())
            content = edited.read_bytes()
    finally:
        tracemalloc.stop()
    assert peak < MB
    assert file.is_guarded
    expected = guard_divisions((tmp_path / "model.onnx").read_bytes())
    assert expected is not None
    assert content == b"".join(expected.content)
    assert not edited.exists()


def test_weights_beside_the_file_are_found_from_an_edited_copy(tmp_path: Path) -> None:
    large_division(tmp_path / "model.onnx", external=True)
    with (tmp_path / "model.onnx").open("ab") as file:  # a long text of documentation: the file alone is large
        file.write(onnx.ModelProto(doc_string="x" * 10 * MB).SerializeToString())
    with ModelFile(tmp_path / "model.onnx").reading() as copy:
        assert isinstance(copy, bytes)


def test_a_copy_is_made_in_memory_where_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large_division(tmp_path / "model.onnx")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with ModelFile(tmp_path / "model.onnx").reading() as copy:
        assert isinstance(copy, bytes)
    assert "in memory" in caplog.text

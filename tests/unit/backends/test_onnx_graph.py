"""Which ONNX graphs may take very different times for inputs of the same shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modserve.backends.onnxruntime.graph import MOST_NODES, depends_on_data
from modserve.backends.onnxruntime.onnx_file import read_file

ROOT = Path(__file__).parents[3]
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)


def model(*nodes: Any, initializers: Any = (), **more: Any) -> bytes:
    graph = helper.make_graph(list(nodes), "graph", [X], [Y], initializer=list(initializers))
    made: bytes = helper.make_model(graph, **more).SerializeToString()
    return made


def body(name: str) -> Any:
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], name, [], [out])


WEIGHT = numpy_helper.from_array(np.frombuffer(b"LoopIf\x00Scan" * 100 + b"    ", np.float32), "w")


@pytest.mark.parametrize(
    "made",
    [
        model(helper.make_node("Add", ["x", "x"], ["y"])),
        model(helper.make_node("Gemm", ["x", "w"], ["y"], name="Loop", alpha=2.0), initializers=[WEIGHT]),
        model(helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0])),
        model(*[helper.make_node("Relu", ["x"], ["y"]) for _ in range(MOST_NODES)]),
    ],
    ids=["add", "weights that read like operators", "classic", "many"],
)
def test_graphs_that_always_do_the_same(made: bytes) -> None:
    assert not depends_on_data(made)
    assert not depends_on_data(memoryview(made))


@pytest.mark.parametrize(
    "made",
    [
        model(helper.make_node("If", ["x"], ["y"], then_branch=body("a"), else_branch=body("b"))),
        model(helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Loop", ["n", "c"], ["y"], body=body("l"))),
        model(helper.make_node("Scan", ["x"], ["y"], body=body("s"), num_scan_inputs=1)),
        model(helper.make_node("NonZero", ["x"], ["y"])),
        model(helper.make_node("Expand", ["x", "shape"], ["y"])),
        model(helper.make_node("Anything", ["x"], ["y"], domain="com.example")),
        model(helper.make_node("BeamSearch", ["x"], ["y"], domain="com.microsoft")),
        model(*[helper.make_node("Relu", ["x"], ["y"]) for _ in range(MOST_NODES + 1)]),
    ],
    ids=["if", "loop", "scan", "non-zero", "expand", "custom", "contributed", "very many"],
)
def test_graphs_whose_work_may_depend_on_values(made: bytes) -> None:
    assert depends_on_data(made)


def test_what_is_no_model() -> None:
    good = model(helper.make_node("Add", ["x", "x"], ["y"]))
    for bad in (b"", b"\x00", b"\xff" * 100, b"\x18\x00\x00\x00ORTM" + bytes(100), b"\x3a\xff\x0f", good[:20]):
        assert depends_on_data(bad)


def test_whatever_the_bytes_are_it_ends() -> None:
    good = model(helper.make_node("Add", ["x", "x"], ["y"]))
    chance = np.random.default_rng(0)
    for _ in range(2_000):
        bad = bytearray(good)
        for place in chance.integers(0, len(bad), 3):
            bad[place] = chance.integers(256)
        assert depends_on_data(bytes(bad)) in (True, False)


def test_files(tmp_path: Path) -> None:
    assert not read_file(ROOT / "model_repository" / "simple" / "1" / "model.onnx", depends_on_data, True)
    (tmp_path / "empty").touch()
    assert read_file(tmp_path / "empty", depends_on_data, True)
    assert read_file(tmp_path / "none", depends_on_data, True)
    assert read_file(tmp_path, depends_on_data, True)
    onnx.save(onnx.load_from_string(model(helper.make_node("NonZero", ["x"], ["y"]))), tmp_path / "model.onnx")
    assert read_file(tmp_path / "model.onnx", depends_on_data, True)

"""What the backend ``fil`` decides without a forest: formats, parameters, outputs, and the graph of arrays."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.backends.fil import formats, graph, reader
from modserve.backends.fil.forest import Forest
from modserve.backends.fil.options import ForestOptions, model_options, warnings
from modserve.backends.fil.predictors import OnnxPredictor, agrees
from modserve.backends.fil.results import result
from modserve.core.errors import ModserveError
from modserve.core.tensors.tensor import Array
from modserve.core.wire import protobuf_wire
from modserve.testing import config

# Formats

HEADS = {
    "lightgbm": b"tree\nversion=v4\n",
    "xgboost_json": b'{"learner":{}}',
    "xgboost_ubj": b"{L\x00\x00",
    "xgboost": b"binf\x00\x00",
    "treelite_checkpoint": b"".join(number.to_bytes(4, "little") for number in (4, 8, 1)) + bytes(60),
    "": b"\x00\x00\x00\x3f nothing known",
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_file_shows_what_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(HEADS[kind])
    assert formats.sniff(path) == kind


@pytest.mark.parametrize(
    ("filename", "content", "model_type", "kind"),
    [
        ("xgboost.model", "xgboost_ubj", "", "xgboost_ubj"),
        ("xgboost.model", "xgboost", "xgboost", "xgboost"),
        ("xgboost.model", "", "xgboost", "xgboost"),
        ("any.json", "xgboost_json", "xgboost", "xgboost_json"),
        ("xgboost.json", "xgboost_json", "lightgbm", "lightgbm"),
        ("xgboost.json", "", "", "xgboost_json"),
        ("forest.txt", "", "", "lightgbm"),
        ("forest.bin", "treelite_checkpoint", "", "treelite_checkpoint"),
        ("forest.bin", "", "", ""),
    ],
)
def test_what_is_read_as_what(tmp_path: Path, filename: str, content: str, model_type: str, kind: str) -> None:
    path = tmp_path / filename
    path.write_bytes(HEADS[content])
    assert formats.kind_of(path, model_type) == kind


def test_the_file_that_triton_expects_for_a_type(tmp_path: Path) -> None:
    for name in ("xgboost.json", "model.txt"):
        (tmp_path / name).touch()
    assert formats.locate(tmp_path / "xgboost.json", "lightgbm").name == "model.txt"
    assert formats.locate(tmp_path / "xgboost.json", "xgboost").name == "xgboost.json"
    assert formats.locate(tmp_path / "xgboost.model", "lightgbm").name == "model.txt"
    assert formats.locate(tmp_path, "xgboost_json").name == "xgboost.json"
    assert formats.locate(tmp_path / "mine.bin", "").name == "mine.bin"


# Parameters


def test_parameters() -> None:
    said = {"output_class": "true", "threshold": "0.25", "cpu_nthread": "3", "predict_proba": "false"}
    assert model_options(config(parameters=said)) == ForestOptions("", False, True, 0.25, False, 3, "")
    assert model_options(config(parameters={"is_classifier": "false", "cpu_nthread": "-1"})).threads == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("threshold", "nan"), ("threshold", ""), ("model_type", "onnx"), ("predict_proba", "maybe"), ("predictor", "fil")],
)
def test_parameters_that_are_no_good(key: str, value: str) -> None:
    with pytest.raises(ModserveError, match=f"'{key}' is '{value}', expected"):
        model_options(config(parameters={key: value}))


def test_warnings() -> None:
    notes = warnings(config(parameters={"algo": "NAIVE", "predict_prob": "1", "padding.x": "1", "threshold": "1"}))
    assert [note.partition("has no effect")[0].rstrip() for note in notes] == [
        "model 'model': parameter 'algo'",
        "model 'model': parameter 'predict_prob'",
    ]
    assert "did you mean 'predict_proba'?" in notes[1]


# Outputs

ONE, TWO, THREE = np.array([[0.5], [0.9]]), np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([[0.2, 0.5, 0.3]])


@pytest.mark.parametrize(
    ("task", "numbers", "options", "columns", "expected"),
    [
        ("binary", ONE, ForestOptions(), None, [[0], [1]]),
        ("binary", ONE, ForestOptions(threshold=0.4), None, [[1], [1]]),
        ("binary", ONE, ForestOptions(output_class=False), None, ONE),
        ("binary", ONE, ForestOptions(predict_proba=True), None, ONE),
        ("binary", ONE, ForestOptions(predict_proba=True), 2, [[0.5, 0.5], [0.1, 0.9]]),
        ("classes", TWO, ForestOptions(), None, [[0], [1]]),
        ("classes", TWO, ForestOptions(threshold=0.4), None, [[1], [1]]),
        ("classes", TWO, ForestOptions(predict_proba=True), 1, [[0.5], [0.9]]),
        ("classes", THREE, ForestOptions(), None, [[1]]),
        ("classes", THREE, ForestOptions(output_class=False), None, THREE),
        ("regression", THREE[:, :1], ForestOptions(), None, [[0.2]]),
        ("regression", ONE, ForestOptions(output_class=True), None, [[0], [1]]),
    ],
)
def test_outputs(task: str, numbers: Any, options: ForestOptions, columns: int | None, expected: Any) -> None:
    count, make = result(task, 1, numbers.shape[1], options, columns)
    values = make(numbers)
    np.testing.assert_allclose(values, expected)
    assert values.shape[1] == count


# Graphs


def forest(**facts: Any) -> Forest:
    """x0 <= 0.5 ? (x1 < 2 ? 1 : 10) : 100, where missing values go left at the root only; and a tree of one leaf."""
    arrays = {
        "left": np.array([1, 2, -1, -1, -1, -1]),
        "right": np.array([4, 3, -1, -1, -1, -1]),
        "split": np.array([0, 1, 0, 0, 0, 0]),
        "threshold": np.array([0.5, 2.0, 0, 0, 0, 0], np.float64),
        "default_left": np.array([True, False, False, False, False, False]),
        "comparison": np.array([3, 2, 0, 0, 0, 0]),
        "leaf_value": np.array([0, 0, 1, 10, 100, 1000], np.float64),
        "leaf_begin": np.zeros(6, np.int64),
        "leaf_end": np.zeros(6, np.int64),
        "leaf_vectors": np.zeros(0),
        "nodes": np.array([5, 1]),
        "vectors": np.array([0, 0]),
        "target_id": np.array([0, 0]),
        "class_id": np.array([0, 0]),
        "base_scores": np.array([0.25]),
    }
    more = {"features": 2, "class_counts": [1], "targets": 1, "postprocessor": "identity", "average": False}
    return Forest({"sigmoid_alpha": 1.0, "ratio_c": 2.0, **more, **facts}, arrays)


def test_a_graph_computes_the_forest() -> None:
    nan = np.nan
    rows = np.array([[0.5, 1], [0.5, 2], [np.nextafter(np.float32(0.5), 1), 1], [nan, 1], [0, nan]], np.float32)
    values = OnnxPredictor(forest(), 1)(rows)
    assert values.ravel().tolist() == [1001.25, 1010.25, 1100.25, 1001.25, 1010.25]


@pytest.mark.parametrize(
    ("postprocessor", "expected"),
    [
        ("sigmoid", lambda x: 1 / (1 + np.exp(-2 * x))),
        ("exponential", np.exp),
        ("exponential_standard_ratio", lambda x: 2 ** (-x / 3)),
        ("logarithm_one_plus_exp", lambda x: np.log1p(np.exp(x))),
        ("signed_square", lambda x: np.sign(x) * x * x),
    ],
)
def test_what_becomes_of_the_sums(postprocessor: str, expected: Any) -> None:
    tree = forest(postprocessor=postprocessor, sigmoid_alpha=2.0, ratio_c=3.0)
    tree.arrays["leaf_value"][:] = [0, 0, -1, 0.5, 1, 0]
    rows = np.array([[0, 0], [0, 3], [1, 0]], np.float32)
    values = OnnxPredictor(tree, 1)(rows).ravel()
    np.testing.assert_allclose(values, expected(np.array([-0.75, 0.75, 1.25])), rtol=1e-6)


@pytest.mark.parametrize("threshold", [0.1, 1e300, -1e300, 16777217.0, 1.0000000001])
@pytest.mark.parametrize("comparison", [2, 3, 4, 5])
def test_thresholds_are_rounded_without_changing_a_decision(comparison: int, threshold: float) -> None:
    tree = forest()
    tree.arrays["comparison"][0], tree.arrays["threshold"][0] = comparison, threshold
    with np.errstate(over="ignore"):
        near = np.float32(threshold)
    values = np.array([near, np.nextafter(near, np.float32(9)), np.nextafter(near, np.float32(-9)), 0], np.float32)
    rows = np.stack([values, np.zeros(4, np.float32)], 1)
    decisions = {2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}[comparison]
    left = decisions(values.astype(np.float64), threshold)
    assert (OnnxPredictor(tree, 1)(rows).ravel() < 1050).tolist() == left.tolist()


def test_varints() -> None:
    numbers = np.array([0, 1, 127, 128, 16383, 16384, 2**21, 2**40])
    assert graph._varints(numbers) == b"".join(protobuf_wire.varint(number) for number in numbers.tolist())


def test_a_predictor_that_disagrees_is_noticed() -> None:
    tree = forest()
    rows = np.array([[0, 0], [1, 0]], np.float32)
    for expected, same in (([1001.25, 1100.25], True), ([1001.25, 1100.75], True), ([1001.25, 1001.25], False)):
        arrays = {**tree.arrays, "samples": rows, "expected": np.array(expected)}
        assert agrees(OnnxPredictor(tree, 1), Forest(tree.properties, arrays)) is same


class TwoColumns:
    engine = version = precision = ""

    def __call__(self, rows: Array) -> Array:
        return np.stack([rows[:, 0], rows[:, 0] + 1], 1)


def test_predictions_of_several_classes_are_compared_column_by_column() -> None:
    tree = forest()
    arrays = {**tree.arrays, "samples": np.array([[5], [7]], np.float32), "expected": np.array([[[5, 6]], [[7, 8]]])}
    assert agrees(TwoColumns(), Forest(tree.properties, arrays))


# What is read


class FakeTree:
    """As Treelite's accessor of a tree: a root with two leaves, or what a test makes of it."""

    def __init__(self, **changes: Any) -> None:
        self._fields = {
            "node_type": np.array([1, 0, 0]),
            "cleft": np.array([1, -1, -1]),
            "cright": np.array([2, -1, -1]),
            "split_index": np.array([0, 0, 0]),
            "threshold": np.array([0.5, 0, 0]),
            "default_left": np.array([1, 0, 0]),
            "cmp": np.array([3, 0, 0]),
            "leaf_value": np.array([0.0, 1, 2]),
            "leaf_vector": np.zeros(0),
            "leaf_vector_begin": np.zeros(3, np.uint64),
            "leaf_vector_end": np.zeros(3, np.uint64),
            **changes,
        }

    def get_field(self, name: str) -> Any:
        return self._fields[name]


def test_a_tree_that_is_fine() -> None:
    assert reader.read_tree(FakeTree(), 0, 1)["left"].tolist() == [1, -1, -1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cleft": np.array([7, -1, -1])}, "a child outside of the tree"),
        ({"cleft": np.array([0, -1, -1])}, "a child outside of the tree"),
        ({"cleft": np.array([2, -1, -1])}, "a node with two parents"),
        ({"cright": np.array([2, -1])}, "arrays of different lengths"),
        ({"split_index": np.array([1, 0, 0])}, "a feature that the model does not have"),
        ({"cmp": np.array([9, 0, 0])}, "an unknown comparison"),
        ({"leaf_vector_end": np.array([0, 5, 0])}, "a leaf with values outside of the tree"),
        (
            {
                "cleft": np.array([-1, 2, -1]),
                "cright": np.array([-1, 1, -1]),
                "node_type": np.array([0, 1, 0]),
                "cmp": np.array([0, 3, 0]),
            },
            "3 nodes, of which 1 can be reached",
        ),
    ],
)
def test_a_tree_that_is_none(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(reader.BadFileError, match=problem):
        reader.read_tree(FakeTree(**changes), 0, 1)


def test_lightgbm_files_that_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    whole = b"tree\ntree_sizes=10 12\n\nTree=0\n...\n\nTree=1\n...\n\nend of trees\n"
    path.write_bytes(whole)
    reader.check_lightgbm(str(path))
    for content, problem in (
        (whole[: whole.index(b"Tree=1")], "1 of the 2 trees"),
        (whole[: whole.index(b"end of")], "2 of the 2 trees"),
        (b"", "does not begin with the line 'tree'"),
    ):
        path.write_bytes(content)
        with pytest.raises(reader.BadFileError, match=problem):
            reader.check_lightgbm(str(path))


def test_warnings_reach_no_log_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        warnings(config(parameters={"algo": "1"}))
    assert not caplog.records

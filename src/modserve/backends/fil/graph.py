"""A forest as a serialised ONNX model, written without the `onnx` package.

One node ``TreeEnsembleRegressor`` (ai.onnx.ml, version 3) adds up the trees, and one or two more make probabilities of
the sums. Inputs and thresholds are FP32: a threshold of FP64 is rounded to the neighbour that decides for every FP32
value as it does itself.
"""

import math
from collections.abc import Iterable

import numpy as np

from modserve.core.tensors.tensor import Array
from modserve.core.wire.protobuf_wire import bytes_field

from ..onnxruntime import onnx_file as onnx
from .forest import Forest
from .reader import COMPARISONS

INPUT, OUTPUT = "input", "output"
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_UP, _DOWN = np.float32(np.inf), np.float32(-np.inf)
_ROUNDED = {"BRANCH_LEQ": _DOWN, "BRANCH_GT": _DOWN, "BRANCH_LT": _UP, "BRANCH_GTE": _UP}
"""Rounding of a threshold that is no FP32 number: x <= t holds for the same x as x <= the next FP32 number below."""


def model(forest: Forest) -> bytes:
    """Return the serialised ``onnx.ModelProto``: FP32 of ``[rows, features]`` in, FP32 of ``[rows, columns]`` out."""
    nodes, constants, last, before = [_ensemble(forest)], [], "sums", "sums"
    for index, (operator, constant, attributes) in enumerate(_steps(forest)):
        inputs = [last]
        if constant is not None:
            raw = constant.astype("<f4").tobytes()
            constants.append(onnx.tensor(onnx.FLOAT, [len(constant)], raw, f"constant_{index}"))
            inputs.append(f"constant_{index}")
        elif operator == "Mul":  # what came before by its absolute value
            inputs.append(before)
        nodes.append(onnx.node(operator, inputs, f"step_{index}", attributes))
        before, last = last, f"step_{index}"
    nodes.append(onnx.node("Identity", [last], OUTPUT))
    ends = onnx.value(INPUT, (-1, forest.features)), onnx.value(OUTPUT, (-1, forest.columns))
    return onnx.model(nodes, constants, ends, _OPSETS)


_Step = tuple[str, Array | None, list[bytes]]


def _steps(forest: Forest) -> Iterable[_Step]:
    """Yield the operators after the sums, each with its constant, following Treelite's postprocessors."""
    base = forest.arrays["base_scores"]
    if base.any():
        yield "Add", base.astype(np.float32), []
    kind = forest.properties["postprocessor"]
    factor = {
        "sigmoid": float(forest.properties["sigmoid_alpha"]),
        "multiclass_ova": float(forest.properties["sigmoid_alpha"]),
        "exponential_standard_ratio": -math.log(2) / float(forest.properties["ratio_c"]),
    }.get(kind, 1.0)
    if factor != 1.0:
        yield "Mul", np.array([factor], np.float32), []
    if kind == "signed_square":
        yield "Abs", None, []
        yield "Mul", None, []
    operator = {
        "sigmoid": "Sigmoid",
        "multiclass_ova": "Sigmoid",
        "softmax": "Softmax",
        "exponential": "Exp",
        "exponential_standard_ratio": "Exp",
        "logarithm_one_plus_exp": "Softplus",
    }.get(kind)
    if operator is not None:
        yield operator, None, [onnx.integer("axis", 1)] if operator == "Softmax" else []


def _ensemble(forest: Forest) -> bytes:
    arrays, counts = forest.arrays, forest.arrays["nodes"]
    leaf = arrays["left"] < 0
    tree_of_node = np.repeat(np.arange(len(counts)), counts)
    number_in_tree = np.arange(len(leaf)) - np.repeat(np.cumsum(counts) - counts, counts)
    modes = np.array([mode.encode() for mode in COMPARISONS.values()], object)
    keys = np.array(list(COMPARISONS), np.int64)
    positions = np.searchsorted(keys, np.where(leaf, keys[0], arrays["comparison"]))
    names: list[bytes] = np.where(leaf, b"LEAF", modes[positions]).tolist()
    written = {name: bytes_field(onnx.ATTRIBUTE_STRINGS, name) for name in set(names)}
    targets = _targets(forest, tree_of_node[leaf], number_in_tree[leaf])
    content = [
        _integers("nodes_treeids", tree_of_node),
        _integers("nodes_nodeids", number_in_tree),
        _integers("nodes_featureids", np.where(leaf, 0, arrays["split"])),
        _floats("nodes_values", np.where(leaf, np.float32(0), _thresholds(forest, np.array(names, object)))),
        onnx.attribute("nodes_modes", b"".join(map(written.__getitem__, names)), onnx.STRINGS),
        _integers("nodes_truenodeids", np.where(leaf, 0, arrays["left"])),
        _integers("nodes_falsenodeids", np.where(leaf, 0, arrays["right"])),
        _integers("nodes_missing_value_tracks_true", np.where(leaf, 0, arrays["default_left"])),
        _integers("target_treeids", targets[0]),
        _integers("target_nodeids", targets[1]),
        _integers("target_ids", targets[2]),
        _floats("target_weights", targets[3]),
        onnx.integer("n_targets", forest.columns),
        onnx.attribute(
            "aggregate_function",
            bytes_field(onnx.ATTRIBUTE_STRING, b"AVERAGE" if forest.properties["average"] else b"SUM"),
            onnx.STRING,
        ),
    ]
    operator = onnx.node("TreeEnsembleRegressor", [INPUT], "sums", content)
    return operator + bytes_field(onnx.NODE_DOMAIN, b"ai.onnx.ml")


def _thresholds(forest: Forest, modes: Array) -> Array:
    exact = forest.arrays["threshold"]
    with np.errstate(over="ignore"):  # what is beyond FP32 becomes infinite, and its neighbour is the largest number
        rounded = exact.astype(np.float32)
        for mode, direction in _ROUNDED.items():
            beyond = (rounded > exact) if direction == _DOWN else (rounded < exact)
            rounded = np.where((modes == mode.encode()) & beyond, np.nextafter(rounded, direction), rounded)
    return rounded


def _targets(forest: Forest, trees: Array, nodes: Array) -> tuple[Array, Array, Array, Array]:
    """Return the additions of the leaves: the tree, the node, the column and the value of each."""
    arrays = forest.arrays
    leaf = arrays["left"] < 0
    columns = np.arange(forest.columns).reshape(forest.targets, forest.classes)
    of_tree = [
        columns[_select(target), _select(kind)].ravel()
        for target, kind in zip(arrays["target_id"].tolist(), arrays["class_id"].tolist(), strict=True)
    ]
    counts = np.array([len(each) for each in of_tree])[trees]
    places = np.concatenate([of_tree[tree] for tree in trees.tolist()]) if len(trees) else np.zeros(0, np.int64)
    begins = (np.cumsum(arrays["vectors"]) - arrays["vectors"])[trees] + arrays["leaf_begin"][leaf]
    vector = (arrays["leaf_end"] - arrays["leaf_begin"])[leaf] > 0
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(begins, counts) + within
    from_vector = np.repeat(vector, counts)
    values = np.repeat(arrays["leaf_value"][leaf], counts)
    values[from_vector] = arrays["leaf_vectors"][at[from_vector]]
    return np.repeat(trees, counts), np.repeat(nodes, counts), places, values.astype(np.float32)


def _select(index: int) -> slice:
    """Return the slice of one target or class; an index below 0 selects all of them."""
    return slice(None) if index < 0 else slice(index, index + 1)


# Protocol buffers


def _varints(values: Array) -> bytes:
    """Encode non-negative values as consecutive varints."""
    left = values.astype(np.uint64)
    digits = []
    while True:
        digits.append((left & np.uint64(0x7F)).astype(np.uint8))
        left = left >> np.uint64(7)
        if not left.any():
            break
    table = np.stack(digits, axis=1)
    count = 1 + np.max(np.where(table > 0, np.arange(table.shape[1]), 0), axis=1)
    position = np.arange(table.shape[1])
    table[position < count[:, None] - 1] |= 0x80
    encoded: bytes = table[position < count[:, None]].tobytes()
    return encoded


def _integers(name: str, values: Array) -> bytes:
    return onnx.attribute(name, bytes_field(onnx.ATTRIBUTE_INTS, _varints(values)), onnx.INTS)


def _floats(name: str, values: Array) -> bytes:
    content = bytes_field(onnx.ATTRIBUTE_FLOATS, values.astype("<f4").tobytes())
    return onnx.attribute(name, content, onnx.FLOATS)

"""Program that reads a forest's file with Treelite and writes its arrays. `forest` runs it in a separate process.

Treelite validates little of its input. A damaged checkpoint makes it follow node numbers and array sizes out of its
memory, or endlessly; a damaged LightGBM file does the same to its predictor. Only this process crashes or hangs then.
The written arrays are validated and form a forest whatever the file.

Imports nothing of modserve, to start as fast as Treelite.
"""

import json
import sys
from typing import Any

import numpy as np

COMPARISONS = {2: "BRANCH_LT", 3: "BRANCH_LEQ", 4: "BRANCH_GT", 5: "BRANCH_GTE"}
"""Treelite's numbers (include/treelite/enum/operator.h) → ONNX's names."""
_LEAF, _NUMERICAL, _CATEGORICAL = 0, 1, 2
"""Treelite's kinds of node (include/treelite/enum/tree_node_type.h)."""
_CONVERTED = (
    *("identity", "identity_multiclass", "sigmoid", "multiclass_ova", "softmax", "exponential"),
    *("exponential_standard_ratio", "logarithm_one_plus_exp", "signed_square"),
)
"""Postprocessors that `graph` can express."""
_SAMPLES = 32
_TASKS = {0: "binary", 1: "regression", 2: "classes", 3: "ranking", 4: "isolation"}
_HEAD = ("average_tree_output", "num_target", "num_class", "leaf_vector_shape", "target_id", "class_id", "base_scores")


class BadFileError(Exception):
    """A fault in the file."""


def main() -> int:
    path, kind, unknown_fields, treelite_runs_it, destination = sys.argv[1:]
    try:
        write(load(path, kind, unknown_fields == "1"), destination, treelite_runs_it == "1")
    except Exception as error:  # Treelite's own errors and errors from damaged structures have no common base
        print(
            f"\n{error}" if isinstance(error, BadFileError) else f"\n{type(error).__name__}: {error}", file=sys.stderr
        )
        return 3
    return 0


def load(path: str, kind: str, unknown_fields: bool) -> Any:
    import treelite

    front = treelite.frontend
    if kind == "lightgbm":
        check_lightgbm(path)
        return front.load_lightgbm_model(path)
    if kind == "treelite_checkpoint":
        return treelite.Model.deserialize(path)
    if kind == "xgboost":
        return front.load_xgboost_model_legacy_binary(path)
    choice = "json" if kind == "xgboost_json" else "ubjson"
    return front.load_xgboost_model(path, format_choice=choice, allow_unknown_field=unknown_fields)


def check_lightgbm(path: str) -> None:
    """Check for truncation: Treelite loads a truncated file as a smaller forest. Raises BadFileError."""
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    trees = sum(line.startswith(b"Tree=") for line in lines)
    sizes = next((line for line in lines if line.startswith(b"tree_sizes=")), b"")
    announced = len(sizes.partition(b"=")[2].split())
    if lines[0].strip() != b"tree":
        raise BadFileError("it does not begin with the line 'tree', as LightGBM's text files do")
    if announced != trees or not any(line.strip() == b"end of trees" for line in lines):
        raise BadFileError(f"it is truncated: it has {trees} of the {announced} trees that its header announces")


def write(model: Any, destination: str, treelite_runs_it: bool) -> None:
    """Write the forest's arrays as ``.npz``, with a checkpoint if Treelite is to run it, or else with samples.

    Raises BadFileError for a model that is not a forest.
    """
    header = model.get_header_accessor()
    head = {key: np.asarray(header.get_field(key)) for key in _HEAD}
    features = model.num_feature
    if not 0 < features < 2**31:
        raise BadFileError(f"its header says that it has {features} features")
    trees = [read_tree(model.get_tree_accessor(index), index, features) for index in range(model.num_tree)]
    if not trees:
        raise BadFileError("it has no trees")
    check_leaves(trees, head)
    properties = {
        "features": features,
        "task": _TASKS.get(int(np.ravel(header.get_field("task_type"))[0]), "regression"),
        "postprocessor": str(header.get_field("postprocessor")),
        "sigmoid_alpha": float(np.ravel(header.get_field("sigmoid_alpha"))[0]),
        "ratio_c": float(np.ravel(header.get_field("ratio_c"))[0]),
        "double": model.input_type == "float64",
        "categorical": any(bool(tree.pop("categorical")) for tree in trees),
        "class_counts": np.ravel(head["num_class"]).tolist(),
        "leaf_vector_shape": np.ravel(head["leaf_vector_shape"]).tolist(),
        "average": bool(np.ravel(head["average_tree_output"])[0]),
        "targets": int(np.ravel(head["num_target"])[0]),
    }
    arrays: dict[str, Any] = {key: np.concatenate([tree[key] for tree in trees]) for key in trees[0]}
    arrays["nodes"] = np.array([len(tree["left"]) for tree in trees], np.int64)
    arrays["vectors"] = np.array([len(tree["leaf_vectors"]) for tree in trees], np.int64)
    for key in ("target_id", "class_id"):
        arrays[key] = np.ravel(head[key]).astype(np.int64)
    arrays["base_scores"] = np.ravel(head["base_scores"]).astype(np.float64)
    obstacle = why_not_onnx(properties, arrays)
    if obstacle or treelite_runs_it:  # Treelite gets a checkpoint that it wrote itself, from validated data
        arrays["checkpoint"] = np.frombuffer(model.serialize_bytes(), np.uint8)
    else:
        arrays["samples"], arrays["expected"] = samples(model, arrays, features)
    properties["obstacle"] = obstacle
    arrays["facts"] = np.frombuffer(json.dumps(properties).encode(), np.uint8)
    with open(destination, "wb") as file:
        np.savez(file, **arrays)


def why_not_onnx(properties: dict[str, Any], arrays: dict[str, Any]) -> str:
    """Return the reason why ONNX cannot express the forest; empty if it can."""
    if properties["categorical"]:
        return "it has categorical splits"
    if properties["postprocessor"] not in _CONVERTED:
        return f"its sums are postprocessed by '{properties['postprocessor']}'"
    if properties["targets"] > 1 and properties["postprocessor"] == "softmax":
        return "it has several targets with several classes each"
    whole = (arrays["target_id"] < 0) | (properties["targets"] == 1)
    whole &= (arrays["class_id"] < 0) | (max(properties["class_counts"]) == 1)
    if properties["average"] and not whole.all():
        return "its trees are averaged separately for each class"
    return ""


def samples(model: Any, arrays: dict[str, Any], features: int) -> Any:
    """Return rows made of thresholds, their neighbours and missing values, with Treelite's results for them."""
    import treelite

    random = np.random.RandomState(0)
    rows = np.zeros((_SAMPLES, features), np.float32)
    inner = arrays["left"] >= 0
    split, threshold = arrays["split"][inner], arrays["threshold"][inner].astype(np.float32)
    order = np.argsort(split, kind="stable")
    split, threshold = split[order], threshold[order]
    used, begins, counts = np.unique(split, return_index=True, return_counts=True)
    for feature, begin, count in zip(used.tolist(), begins.tolist(), counts.tolist(), strict=True):
        values = threshold[begin + random.randint(count, size=_SAMPLES)]
        step = random.randint(4, size=_SAMPLES)
        below, above = np.nextafter(values, np.float32(-np.inf)), np.nextafter(values, np.float32(np.inf))
        rows[:, feature] = np.choose(step, [values, below, above, values])
        rows[random.rand(_SAMPLES) < 0.1, feature] = np.nan
    return rows, treelite.gtil.predict(model, rows, nthread=1)


def read_tree(tree: Any, index: int, features: int) -> dict[str, Any]:
    """Return the arrays of one tree, with one entry per node. Raises BadFileError for an invalid tree."""
    kinds, left, right = (np.asarray(tree.get_field(key)) for key in ("node_type", "cleft", "cright"))
    count = len(left)
    leaf = left < 0
    inner = ~leaf
    split = np.asarray(tree.get_field("split_index")).astype(np.int64)
    begin, end = (np.asarray(tree.get_field(f"leaf_vector_{key}")).astype(np.int64) for key in ("begin", "end"))
    vectors = np.asarray(tree.get_field("leaf_vector"))
    categorical = kinds == _CATEGORICAL
    comparison = np.asarray(tree.get_field("cmp"))
    if not count or {count} != {*map(len, (right, kinds, split, begin, end, comparison))}:
        raise BadFileError(f"tree {index} has arrays of different lengths")
    children = np.concatenate([left[inner], right[inner]])
    problems = {
        "has a child outside of the tree": bool(((children <= 0) | (children >= count)).any()),
        "has a node with two parents": len(np.unique(children)) != len(children),
        "tests a feature that the model does not have": bool(((split < 0) | (split >= features))[inner].any()),
        "has a node of an unknown kind": bool((kinds[inner] == _LEAF).any()),
        "has an unknown comparison": not set(comparison[inner & ~categorical].tolist()) <= set(COMPARISONS),
        "has a leaf with values outside of the tree": bool(((begin < 0) | (end < begin) | (end > len(vectors))).any()),
    }
    for problem, holds in problems.items():
        if holds:
            raise BadFileError(f"tree {index} {problem}")
    check_reached(left, right, index)
    if categorical.any():
        check_categories(tree, count, index)
    return {
        "categorical": categorical.any(),
        "left": left.astype(np.int64),
        "right": right.astype(np.int64),
        "split": split,
        "threshold": np.asarray(tree.get_field("threshold")),
        "default_left": np.asarray(tree.get_field("default_left")).astype(bool),
        "comparison": comparison.astype(np.int64),
        "leaf_value": np.asarray(tree.get_field("leaf_value")),
        "leaf_begin": begin,
        "leaf_end": end,
        "leaf_vectors": vectors,
    }


def check_reached(left: Any, right: Any, index: int) -> None:
    """Check that the root reaches all nodes; as each has one parent, there is no cycle. Raises BadFileError."""
    level, reached = np.zeros(1, np.int64), 0
    while len(level):
        reached += len(level)
        level = np.concatenate([side[level][left[level] >= 0] for side in (left, right)])
    if reached != len(left):
        raise BadFileError(f"tree {index} has {len(left)} nodes, of which {reached} can be reached")


def check_categories(tree: Any, count: int, index: int) -> None:
    begin, end = (np.asarray(tree.get_field(f"category_list_{key}")).astype(np.int64) for key in ("begin", "end"))
    length = len(np.asarray(tree.get_field("category_list")))
    if len(begin) != count or len(end) != count or ((begin < 0) | (end < begin) | (end > length)).any():
        raise BadFileError(f"tree {index} has categories outside of the tree")


def check_leaves(trees: list[dict[str, Any]], head: dict[str, Any]) -> None:
    """Check that all leaves belong to outputs of the model. Raises BadFileError."""
    targets, classes = int(np.ravel(head["num_target"])[0]), np.ravel(head["num_class"])
    target_id, class_id = np.ravel(head["target_id"]), np.ravel(head["class_id"])
    shape = np.ravel(head["leaf_vector_shape"])
    most = int(classes.max()) if len(classes) else 0
    if not 0 < targets == len(classes) or most < 1 or len(shape) != 2 or int(classes.min()) < 1:
        raise BadFileError("its numbers of targets and classes contradict each other")
    if len(np.ravel(head["base_scores"])) != targets * most:
        raise BadFileError("it does not have a base score for each class")
    for key, ids, limit in (("target", target_id, targets), ("class", class_id, most)):
        if len(ids) != len(trees) or ((ids < -1) | (ids >= limit)).any():
            raise BadFileError(f"it has trees for a {key} that it does not have")
    size = int(np.prod(shape))
    expected = [targets if (target_id < 0).any() else 1, most if (class_id < 0).any() else 1]
    if size != 1 and shape.tolist() != expected:
        raise BadFileError(f"its leaf values have the shape {shape.tolist()}")
    for index, tree in enumerate(trees):
        counts = (tree["leaf_end"] - tree["leaf_begin"])[tree["left"] < 0]
        if not (counts == (0 if size == 1 else size)).all() and not (size == 1 and (counts <= 1).all()):
            raise BadFileError(f"tree {index} has leaves that do not have size {size}")


if __name__ == "__main__":
    sys.exit(main())

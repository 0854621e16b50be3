"""TensorFlow models, made on the spot."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TensorFlow's own imports
    import tensorflow as tf

    import modserve.backends.tensorflow.engine  # noqa: F401

v1 = tf.compat.v1

TYPES = {
    "BOOL": tf.bool,
    "UINT8": tf.uint8,
    "UINT16": tf.uint16,
    "UINT32": tf.uint32,
    "UINT64": tf.uint64,
    "INT8": tf.int8,
    "INT16": tf.int16,
    "INT32": tf.int32,
    "INT64": tf.int64,
    "FP16": tf.float16,
    "BF16": tf.bfloat16,
    "FP32": tf.float32,
    "FP64": tf.float64,
    "BYTES": tf.string,
}
WEIGHTS: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(4, 2)


def save(directory: Path, function: Callable[..., Any], *specs: Any, **more: Any) -> Path:
    """A SavedModel with one signature, the default one; `more` become attributes of the saved object."""
    module = tf.Module()
    for name, value in more.items():
        setattr(module, name, value)
    concrete = tf.function(function, input_signature=specs).get_concrete_function()
    module.function = concrete
    tf.saved_model.save(module, str(directory), signatures=concrete)
    return directory


def spec(name: str, dtype: Any = tf.float32, shape: Any = (None, 4)) -> Any:
    return tf.TensorSpec(shape, dtype, name=name)


def save_dense(directory: Path) -> Path:
    """``y = x @ WEIGHTS``, from a variable."""
    weights = tf.Variable(WEIGHTS)
    return save(directory, lambda x: {"y": x @ weights}, spec("x"), weights=weights)


def save_copier(directory: Path) -> Path:
    """An input and an output of each type: out_FP32 is in_FP32."""
    specs = [spec(f"in_{name}", dtype, (None, 3)) for name, dtype in TYPES.items()]

    def copy(*values: Any) -> Mapping[str, Any]:
        return {f"out_{name}": tf.identity(value) for name, value in zip(TYPES, values, strict=True)}

    return save(directory, copy, *specs)


def save_two_signatures(directory: Path) -> Path:
    """``double`` and ``halve``, and no default."""
    module = tf.Module()
    module.double = tf.function(lambda x: {"y": x * 2}, input_signature=[spec("x")])
    module.halve = tf.function(lambda x: {"y": x / 2}, input_signature=[spec("x")])
    tf.saved_model.save(module, str(directory), signatures={"double": module.double, "halve": module.halve})
    return directory


def save_tagged(directory: Path, *tags: str) -> Path:
    """A SavedModel of TensorFlow 1's kind, with a graph for each tag: ``y`` is ``x`` times 2, 3, …"""
    builder = v1.saved_model.Builder(str(directory))
    for factor, tag in enumerate(tags, 2):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            x = v1.placeholder(tf.float32, [None, 4], name="x")
            scale = v1.get_variable("scale", initializer=np.float32(factor), use_resource=True)
            signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x * scale})
            session.run(v1.global_variables_initializer())
            if factor == 2:
                builder.add_meta_graph_and_variables(session, [tag], {"serving_default": signature})
            else:
                builder.add_meta_graph([tag], {"serving_default": signature})
    builder.save()
    return directory


def write_graph(file: Path, build: Callable[[], object]) -> Path:
    """A frozen graph of what `build` puts into it."""
    with tf.Graph().as_default() as graph:
        build()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(graph.as_graph_def().SerializeToString())
    return file


def build_sums() -> None:
    """Two placeholders, `a` and `b`, and two results, `sum` and `difference`."""
    a, b = (v1.placeholder(tf.float32, [None, 4], name=name) for name in ("a", "b"))
    tf.add(a, b, name="sum")
    tf.subtract(a, b, name="difference")


def build_uninitialised() -> None:
    """``y`` is `x` plus a variable that the operation `start` sets to 5."""
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    variable = v1.get_variable("v", shape=[], initializer=v1.constant_initializer(5.0), use_resource=False)
    tf.add(x, variable, name="y")
    tf.group(variable.initializer, name="start")

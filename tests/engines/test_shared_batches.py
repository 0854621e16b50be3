"""Models whose requests share an execution if no configuration says anything of batches.

Each model is loaded without a configuration. It gets requests from eight clients at once, whose responses must be those
of requests that run alone.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_repository import write

from modserve import InferenceServer
from modserve.backends.catalogue import BY_BACKEND
from modserve.core.errors import ModserveError
from modserve.settings.settings import Settings

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(not BY_BACKEND[name].installed, reason=f"{name} is not installed"))
    for name in ("onnxruntime", "openvino")
]
CLIENTS, ROUNDS = 8, 4
ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU }"  # so that those who wait would share its next execution


def value(name: str, *dims: str | int | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(dims))


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def constant(name: str, array: object, kind: type = np.float32) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(array, kind)))


def weights(name: str, *shape: int) -> Any:
    return constant(name, np.random.default_rng(7).standard_normal(shape))


class Graph(NamedTuple):
    nodes: Sequence[Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    mixes: bool = True
    """Whether rows that run together would have other outputs, or none at all."""


X, Y = value("x", None, 3), value("y", None, 3)
"""Without the names of dimensions: nothing in the file says what the first one is."""
AXIS_0 = constant("zero", [0], np.int64)
THREE = constant("k", [3], np.int64)
ONE = constant("k", [1], np.int64)


def on_axis_0(*nodes: Any, y: Any = Y) -> Graph:
    return Graph(nodes, [X], [y])


def per_row(*nodes: Any, x: Any = X, y: Any = Y) -> Graph:
    return Graph(nodes, [x], [y], mixes=False)


def text_model(batch: str | None, length: str | None) -> Graph:
    """Embeds tokens, and averages those that the mask has."""
    nodes = [
        weights("table", 100, 5),
        constant("two", [2], np.int64),
        constant("one", [1], np.int64),
        node("Gather", "table input_ids", "tokens"),
        node("Cast", "attention_mask", "mask", to=FLOAT),
        node("Unsqueeze", "mask two", "wide"),
        node("Mul", "tokens wide", "masked"),
        node("ReduceSum", "masked one", "sum", keepdims=0),
        node("ReduceSum", "mask one", "count", keepdims=1),
        node("Div", "sum count", "y"),
    ]
    inputs = [value(name, batch, length, kind=INT) for name in ("input_ids", "attention_mask")]
    return Graph(nodes, inputs, [value("y", batch, 5)], mixes=False)


BATCH_NORM = "x scale bias mean variance"
STATISTICS = [constant(name, [1, 1, 1]) for name in ("scale", "bias", "mean", "variance")]

GRAPHS: dict[str, Graph] = {
    # What the names of dimensions say.
    "pair": Graph(
        [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "x t")], [value("x", "n", 3)], [value("y", "n", "n")]
    ),
    "gnn1": Graph([node("MatMul", "adj x")], [value("x", "N", 4), value("adj", "N", "N")], [value("y", "N", 4)]),
    "gnn2": Graph([node("Gather", "x src")], [value("x", "N", 4), value("src", "E", kind=INT)], [value("y", "E", 4)]),
    # What only a trial shows.
    "unnamed_pair": Graph(
        [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "x t")], [X], [value("y", None, None)]
    ),
    "unnamed_gnn1": Graph([node("MatMul", "adj x")], [X, value("adj", None, None)], [Y]),
    "unnamed_gnn2": Graph([node("Gather", "x src")], [X, value("src", None, kind=INT)], [Y]),
    "softmax0": on_axis_0(node("Softmax", "x", axis=0)),
    "softmax_of_scalars": Graph([node("Softmax", "x", axis=0)], [value("x", None)], [value("y", None)]),
    "cumsum": on_axis_0(constant("axis", 0, np.int64), node("CumSum", "x axis")),
    "sort": on_axis_0(
        node("Shape", "x", "shape"),
        constant("zero", [0], np.int64),
        node("Gather", "shape zero", "rows"),
        node("TopK", "x rows", "y order", axis=0),
    ),
    "sort_of_scalars": Graph(
        [node("Shape", "x", "rows"), node("TopK", "x rows", "y order", axis=0)], [value("x", None)], [value("y", None)]
    ),
    "topk": on_axis_0(ONE, node("TopK", "x k", "y order", axis=0)),
    "argmax": on_axis_0(node("ArgMax", "x", axis=0, keepdims=1), y=value("y", None, 3, kind=INT)),
    "total": on_axis_0(AXIS_0, node("ReduceSum", "x zero", keepdims=1)),
    "meanpool": on_axis_0(node("ReduceMean", "x", axes=[0], keepdims=0), y=value("y", 3)),
    "centred": on_axis_0(node("ReduceMean", "x", "m", axes=[0], keepdims=1), node("Sub", "x m")),
    "batchnorm": on_axis_0(
        *STATISTICS, node("BatchNormalization", BATCH_NORM, "y running_mean running_variance", training_mode=1)
    ),
    "rows_by_index": on_axis_0(AXIS_0, node("Gather", "x zero", "first", axis=0), node("Add", "x first")),
    "flip": on_axis_0(
        constant("start", [-1], np.int64),
        constant("end", [np.iinfo(np.int64).min], np.int64),
        constant("axes", [0], np.int64),
        constant("step", [-1], np.int64),
        node("Slice", "x start end axes step"),
    ),
    "nonzero": Graph([node("NonZero", "x", "i"), node("Transpose", "i")], [X], [value("y", None, 2, kind=INT)]),
    "unique": Graph([node("Unique", "x", "y", axis=0)], [X], [Y]),
    "unsorted_unique": Graph([node("Unique", "x", "y", axis=0, sorted=0)], [X], [Y]),
    "compress": Graph([node("Compress", "x keep", axis=0)], [X, value("keep", None, kind=TensorProto.BOOL)], [Y]),
    "reshape": on_axis_0(constant("form", [-1, 1], np.int64), node("Reshape", "x form"), y=value("y", None, 1)),
    "doubled": on_axis_0(node("Concat", "x x", axis=0)),
    "counted": on_axis_0(
        AXIS_0,
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "rows"),
        node("Cast", "rows", "count", to=FLOAT),
        node("Mul", "x count"),
    ),
    "one_row": on_axis_0(constant("form", [1, 3], np.int64), node("Reshape", "x form")),
    "random": on_axis_0(node("RandomNormalLike", "x", "noise"), node("Add", "x noise")),
    "constant": on_axis_0(node("Sub", "x x")),
    "sequence_first": Graph(
        [
            weights("w", 1, 16, 3),
            weights("r", 1, 16, 4),
            node("LSTM", "x w r", "h", hidden_size=4),
            constant("one", [1], np.int64),
            node("Squeeze", "h one", "y"),
        ],
        [value("x", None, 1, 3)],
        [value("y", None, 1, 4)],
    ),
    # Batches.
    "mlp": per_row(
        weights("a", 3, 8),
        weights("b", 8, 3),
        node("MatMul", "x a", "h"),
        node("Relu", "h", "r"),
        node("MatMul", "r b"),
    ),
    "named": per_row(node("Tanh", "x"), x=value("x", "batch", 3), y=value("y", "batch", 3)),
    "numbered": per_row(node("Tanh", "x"), x=value("x", "x_dynamic_axes_1", 3), y=value("y", "y_dynamic_axes_1", 3)),
    "softmax": per_row(node("Softmax", "x", axis=1)),
    "batchnorm_trained": per_row(*STATISTICS, node("BatchNormalization", BATCH_NORM)),
    "any_length": per_row(node("Softmax", "x", axis=1), x=value("x", "b", "n"), y=value("y", "b", "n")),
    "classes": per_row(node("ArgMax", "x", axis=1, keepdims=1), y=value("y", None, 1, kind=INT)),
    "picture": Graph(
        [weights("w", 2, 3, 16, 16), node("Conv", "x w", "c", strides=[16, 16]), node("GlobalAveragePool", "c")],
        [value("x", "n", 3, "h", "w")],
        [value("y", "n", 2, 1, 1)],
        mixes=False,
    ),
    "two_tokens": Graph(
        [weights("table", 2, 3), node("Gather", "table x")],
        [value("x", None, 2, kind=INT)],
        [value("y", None, 2, 3)],
        mixes=False,
    ),
    "texts": text_model("batch_size", "sequence_length"),
    "unnamed_texts": text_model(None, None),
}
UNREAD = {"nonzero", "unique", "unsorted_unique", "compress", "batchnorm", "random"}
"""What OpenVINO does not read, or makes another model of: batchnorm without its training mode."""


UNSTEADY = {"random", "batchnorm"}
"""The same request has other outputs each time: training mode changes the means."""


def request_of(graph: Graph, random: np.random.Generator) -> dict[str, NDArray[Any]]:
    """One row, which without a batch is a request, too."""
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in graph.inputs:
        name, kind = tensor.name, tensor.type.tensor_type
        fixed = [each.dim_value for each in kind.shape.dim[1:]]
        variable = 32 if len(fixed) == 3 else 1 if name == "adj" else 6
        shape = (1, *(size or variable for size in fixed))
        if kind.elem_type == FLOAT:
            arrays[name] = random.standard_normal(shape).astype(np.float32)
        elif kind.elem_type == INT:
            arrays[name] = random.integers(0, 1 if name == "src" else 2, shape)
            arrays[name][..., :1] = 0 if name == "src" else 1
        else:
            arrays[name] = np.ones(shape, bool)
    return arrays


async def outputs(server: InferenceServer, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: each.array for name, each in (await server.infer("m", inputs)).outputs.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GRAPHS)
async def test_requests_get_their_own_values(tmp_path: Path, name: str, engine: str) -> None:
    if engine == "openvino" and name in UNREAD:
        pytest.skip("OpenVINO does not read it")
    graph = GRAPHS[name]
    write(tmp_path, "m", graph.nodes, graph.inputs, graph.outputs, f'backend: "{engine}"\n{ONE_INSTANCE}')
    random = np.random.default_rng(11)
    requests = [request_of(graph, random) for _ in range(CLIENTS * ROUNDS)]
    async with InferenceServer(Settings(model_repository=(tmp_path,))) as server:
        config = server.model("m").config
        assert config.batching is not graph.mixes
        assert (config.dynamic_batching is not None) is not graph.mixes
        apart = [await outputs(server, each) for each in requests]
        for start in range(0, len(requests), CLIENTS):
            together = await asyncio.gather(*(outputs(server, each) for each in requests[start : start + CLIENTS]))
            for ours, alone in zip(together, apart[start:], strict=False):
                if name not in UNSTEADY:
                    for output, array in alone.items():
                        np.testing.assert_allclose(ours[output], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_failed_execution_leaves_nothing_to_others(tmp_path: Path, engine: str) -> None:
    graph = GRAPHS["unnamed_gnn1"]
    group = ONE_INSTANCE.replace("1", "2")
    write(tmp_path, "m", graph.nodes, graph.inputs, graph.outputs, f'backend: "{engine}"\n{group}')
    random = np.random.default_rng(3)
    async with InferenceServer(Settings(model_repository=(tmp_path,))) as server:

        async def multiply(size: int, rows: int) -> None:
            inputs = {"adj": random.standard_normal((rows, size)), "x": random.standard_normal((rows, 3))}
            inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
            result = await outputs(server, inputs)
            np.testing.assert_allclose(result["y"], inputs["adj"] @ inputs["x"], rtol=1e-4, atol=1e-5)

        for _ in range(3):
            for _ in range(4):
                await multiply(1, 1)
            with pytest.raises(ModserveError, match=r"refused the request|MatMul"):
                await multiply(1, 2)
        for _ in range(8):
            await multiply(1, 1)

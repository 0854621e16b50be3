"""Properties of an ONNX file: precision, data-dependent run time, and tensors without a rank."""

from collections import Counter
from math import prod

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import WireField, fields, integers

from . import onnx_file as onnx
from .onnx_file import number_of, of

MOST_NODES = 4096
"""Largest number of nodes. A larger graph takes long in any case."""
_KNOWN_DOMAINS = frozenset({b"", b"ai.onnx", b"ai.onnx.ml"})
"""Domains with known operators."""
_SHAPED_BY_VALUES = frozenset(
    b"AffineGrid BlackmanWindow CenterCropPad Col2Im Compress ConstantOfShape DFT Expand HammingWindow HannWindow "
    b"MaxUnpool MelWeightMatrix NonMaxSuppression NonZero OneHot Pad Range RegexFullMatch Resize STFT SplitToSequence "
    b"StringSplit Tile TopK Unique Upsample".split()
)
"""Operators with work or output size that depends on an input's values. Some are harmless with a constant."""
_PRECISIONS = {
    1: "fp32",
    2: "uint8",
    3: "int8",
    10: "fp16",
    11: "fp64",
    16: "bf16",
    **dict.fromkeys((17, 18, 19, 20), "fp8"),
    21: "uint4",
    22: "int4",
    23: "fp4",
}
"""Datatypes of weights. Tensors of other types are shapes, indices and the like."""


def depends_on_data(model: Buffer) -> bool:
    """Return whether the run time of a serialised ONNX model may vary widely for inputs of equal shapes.

    True if a node contains a graph (Loop, If, Scan), has a value-dependent output shape or a foreign operator, or if
    there are more than `MOST_NODES` nodes; also for invalid bytes.
    """
    try:
        graph = next(field for field in fields(model) if field.number == onnx.MODEL_GRAPH)
        nodes = enumerate(of(model, graph, onnx.GRAPH_NODE))
        return any(number >= MOST_NODES or _node_depends(model, node) for number, node in nodes)
    except (ValueError, IndexError, StopIteration):
        return True


def _node_depends(model: Buffer, node: WireField) -> bool:
    for field in fields(model, node.start, node.end):
        if field.number == onnx.NODE_OP_TYPE and bytes(model[field.start : field.end]) in _SHAPED_BY_VALUES:
            return True
        if field.number == onnx.NODE_DOMAIN and bytes(model[field.start : field.end]) not in _KNOWN_DOMAINS:
            return True
        if field.number == onnx.NODE_ATTRIBUTE and any(onnx.graphs_of(model, field)):
            return True
    return False


def find_unranked(model: Buffer) -> frozenset[str]:
    """Return the inputs and outputs of a serialised ONNX model that have no shape."""
    names: set[str] = set()
    try:
        for graph in (field for field in fields(model) if field.number == onnx.MODEL_GRAPH):
            for value in fields(model, graph.start, graph.end):
                if value.number in (onnx.GRAPH_INPUT, onnx.GRAPH_OUTPUT) and not _has_shape(model, value):
                    names.add(onnx.text(model, value, onnx.VALUE_NAME))
    except (ValueError, IndexError):
        return frozenset()
    return frozenset(names)


def _has_shape(model: Buffer, value: WireField) -> bool:
    for kind in of(model, value, onnx.VALUE_TYPE):
        for tensor in of(model, kind, onnx.TYPE_TENSOR):
            if any(part.number == onnx.TENSOR_TYPE_SHAPE for part in fields(model, tensor.start, tensor.end)):
                return True
    return False


def precision(model: Buffer) -> str:
    """Return the precision of most weights of a serialised model; fp32 for models without weights, such as trees."""
    elements: Counter[str] = Counter()
    try:
        for graph in (field for field in fields(model) if field.number == onnx.MODEL_GRAPH):
            for weight in of(model, graph, onnx.GRAPH_INITIALIZER):
                kind = number_of(model, weight, onnx.TENSOR_TYPE)
                if kind in _PRECISIONS:
                    dims = (size for field in of(model, weight, onnx.TENSOR_DIMS) for size in integers(model, field))
                    elements[_PRECISIONS[kind]] += prod(dims)
    except (ValueError, IndexError):
        pass
    return elements.most_common(1)[0][0] if elements else "fp32"

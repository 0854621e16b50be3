"""Can the time that an ONNX graph takes depend on the values it gets? Read from the file, without the `onnx` package.

Walks the serialised ``onnx.ModelProto`` (github.com/onnx/onnx, onnx.proto) as far as the nodes; weights are skipped.
"""

import mmap
from pathlib import Path

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import fields

MOST_NODES = 4096
"""A graph of more nodes takes long whatever they do."""

_MODEL_GRAPH = 7
_GRAPH_NODE = 1
_NODE_OP_TYPE = 4
_NODE_ATTRIBUTE = 5
_NODE_DOMAIN = 7
_ATTRIBUTE_GRAPHS = frozenset({6, 11})

_KNOWN_DOMAINS = frozenset({b"", b"ai.onnx", b"ai.onnx.ml"})
"""What operators of other domains do nobody knows."""

_SHAPED_BY_VALUES = frozenset(
    b"AffineGrid BlackmanWindow CenterCropPad Col2Im Compress ConstantOfShape DFT Expand HammingWindow HannWindow "
    b"MaxUnpool MelWeightMatrix NonMaxSuppression NonZero OneHot Pad Range RegexFullMatch Resize STFT SplitToSequence "
    b"StringSplit Tile TopK Unique Upsample".split()
)
"""Operators whose work or output grows with the values of an input. Some are harmless where that is a constant."""


def file_depends_on_data(path: Path) -> bool:
    """As `depends_on_data`, of a file. True for one that cannot be read."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            return depends_on_data(view)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return True


def depends_on_data(model: Buffer) -> bool:
    """Whether executions of a serialised ONNX model may take very different times for inputs of the same shapes.

    True if it has a node with a graph inside (Loop, If, Scan), one whose output's shape depends on values, one of an
    operator that is not ONNX's own, or very many; and for bytes that are no such model.
    """
    try:
        for field in fields(model):
            if field.number == _MODEL_GRAPH:
                return _graph_depends(model, field.start, field.end)
    except (ValueError, IndexError):
        pass
    return True


def _graph_depends(model: Buffer, start: int, end: int) -> bool:
    nodes = (field for field in fields(model, start, end) if field.number == _GRAPH_NODE)
    return any(count > MOST_NODES or _node_depends(model, node.start, node.end) for count, node in enumerate(nodes, 1))


def _node_depends(model: Buffer, start: int, end: int) -> bool:
    for field in fields(model, start, end):
        if field.number == _NODE_OP_TYPE and bytes(model[field.start : field.end]) in _SHAPED_BY_VALUES:
            return True
        if field.number == _NODE_DOMAIN and bytes(model[field.start : field.end]) not in _KNOWN_DOMAINS:
            return True
        if field.number == _NODE_ATTRIBUTE:
            attribute = fields(model, field.start, field.end)
            if not _ATTRIBUTE_GRAPHS.isdisjoint([part.number for part in attribute]):
                return True
    return False

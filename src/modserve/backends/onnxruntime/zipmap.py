"""Classifiers of scikit-learn, XGBoost and LightGBM as they are exported by default: their probabilities as a tensor.

Their converters end the graph with a ``ZipMap`` node, which makes of the probabilities a list with a dictionary from
label to probability for each row. The v2 protocol has no such type, and a million small dictionaries would be slow. The
node is replaced by one that gives on its input under the same name: FP32 of shape [rows, labels], with the columns in
the order in which the node lists the labels.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from modserve.core.protobuf_wire import Field, bytes_field, fields, integers, number_field
from modserve.core.tensor import Buffer

# Numbers of fields of onnx.proto (github.com/onnx/onnx).
_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_GRAPH_NODE, _GRAPH_OUTPUT = 1, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP_TYPE, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INTS, _ATTRIBUTE_STRINGS = 1, 8, 9
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TYPE_TENSOR, _TYPE_SEQUENCE = 1, 4
_TENSOR_TYPE_ELEMENT, _TENSOR_TYPE_SHAPE = 1, 2
_SHAPE_DIMENSION, _DIMENSION_VALUE = 1, 1
_FLOAT = 1

_OPSET_IF_NONE = 13
"""The version of ONNX's operators for a model that has only those of classical machine learning."""

Labels: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True)
class Flattened:
    """A serialised model whose outputs are tensors, and the labels of the columns of those that were none."""

    content: bytes
    labels: Mapping[str, Labels]


def flattened_file(path: Path) -> Flattened | None:
    """As `flattened`, of a file; None as well for one that cannot be read."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            return flattened(view)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None


def flattened(model: Buffer) -> Flattened | None:
    """The model without the ZipMap nodes that make its outputs; None if it has none, or is no model."""
    try:
        return _flattened(model)
    except (ValueError, IndexError):  # ONNX Runtime says what is wrong with it
        return None


def _flattened(model: Buffer) -> Flattened | None:
    graph = next((field for field in fields(model) if field.number == _MODEL_GRAPH), None)
    if graph is None:
        return None
    outputs = {_name(model, field): field for field in _of(model, graph, _GRAPH_OUTPUT) if _is_sequence(model, field)}
    if not outputs:
        return None
    edits: list[tuple[Field, bytes]] = []
    labels: dict[str, Labels] = {}
    for node in _of(model, graph, _GRAPH_NODE):
        output = _texts(model, node, _NODE_OUTPUT)
        if _texts(model, node, _NODE_OP_TYPE) != ["ZipMap"] or output[0] not in outputs:
            continue
        (source,) = _texts(model, node, _NODE_INPUT)
        labels[output[0]] = _labels(model, node)
        edits.append((node, bytes_field(_GRAPH_NODE, _identity(source, output[0]))))
        declaration = _matrix(output[0], len(labels[output[0]]))
        edits.append((outputs[output[0]], bytes_field(_GRAPH_OUTPUT, declaration)))
    if not edits:
        return None
    content = bytes_field(_MODEL_GRAPH, _edited(model, graph.start, graph.end, edits))
    whole = _edited(model, 0, len(model), [(graph, content)])
    return Flattened(whole + _missing_operators(model), labels)


def _edited(data: Buffer, start: int, end: int, edits: list[tuple[Field, bytes]]) -> bytes:
    """A part of the data with some of its fields replaced."""
    parts = []
    for field, replacement in sorted(edits, key=lambda edit: edit[0].head):
        parts += [bytes(data[start : field.head]), replacement]
        start = field.end
    return b"".join((*parts, bytes(data[start:end])))


def _of(data: Buffer, message: Field, number: int) -> Iterator[Field]:
    return (field for field in fields(data, message.start, message.end) if field.number == number)


def _texts(data: Buffer, message: Field, number: int) -> list[str]:
    return [bytes(data[field.start : field.end]).decode() for field in _of(data, message, number)]


def _name(data: Buffer, value: Field) -> str:
    return "".join(_texts(data, value, _VALUE_NAME))


def _is_sequence(data: Buffer, value: Field) -> bool:
    return any(any(_of(data, kind, _TYPE_SEQUENCE)) for kind in _of(data, value, _VALUE_TYPE))


def _labels(data: Buffer, node: Field) -> Labels:
    """Raises ValueError if the node has none."""
    for attribute in _of(data, node, _NODE_ATTRIBUTE):
        name = "".join(_texts(data, attribute, _ATTRIBUTE_NAME))
        if name == "classlabels_int64s":
            return tuple(label for field in _of(data, attribute, _ATTRIBUTE_INTS) for label in integers(data, field))
        if name == "classlabels_strings":
            return tuple(_texts(data, attribute, _ATTRIBUTE_STRINGS))
    raise ValueError("a ZipMap node without labels")


def _identity(source: str, output: str) -> bytes:
    texts = {_NODE_INPUT: source, _NODE_OUTPUT: output, _NODE_OP_TYPE: "Identity"}
    return b"".join(bytes_field(number, text.encode()) for number, text in texts.items())


def _matrix(name: str, columns: int) -> bytes:
    """The declaration of an output, FP32 with any number of rows."""
    sizes = (b"", number_field(_DIMENSION_VALUE, columns))
    shape = b"".join(bytes_field(_SHAPE_DIMENSION, size) for size in sizes)
    tensor = number_field(_TENSOR_TYPE_ELEMENT, _FLOAT) + bytes_field(_TENSOR_TYPE_SHAPE, shape)
    kind = bytes_field(_TYPE_TENSOR, tensor)
    return bytes_field(_VALUE_NAME, name.encode()) + bytes_field(_VALUE_TYPE, kind)


def _missing_operators(model: Buffer) -> bytes:
    """What makes ONNX's own operators known to a model that has used none so far."""
    for opset in (field for field in fields(model) if field.number == _MODEL_OPSET):
        if not any(_of(model, opset, _OPSET_DOMAIN)) or _texts(model, opset, _OPSET_DOMAIN)[0] in ("", "ai.onnx"):
            return b""
    return bytes_field(_MODEL_OPSET, number_field(_OPSET_VERSION, _OPSET_IF_NONE))

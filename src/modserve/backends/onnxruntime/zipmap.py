"""Classifiers of scikit-learn, XGBoost and LightGBM as they are exported by default: their probabilities as a tensor.

Their converters end the graph with a ``ZipMap`` node, which makes of the probabilities a list with a dictionary from
label to probability for each row. The v2 protocol has no such type, and a million small dictionaries would be slow. The
node is replaced by one that gives on its input under the same name: FP32 of shape [rows, labels], with the columns in
the order in which the node lists the labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import Field, bytes_field, fields, integers, number_field

from .onnx_file import (
    ATTRIBUTE_INTS,
    ATTRIBUTE_NAME,
    ATTRIBUTE_STRINGS,
    ELEMENT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    MODEL_OPSET,
    NODE_ATTRIBUTE,
    NODE_INPUT,
    NODE_OP_TYPE,
    NODE_OUTPUT,
    OPSET_DOMAIN,
    OPSET_VERSION,
    OWN_DOMAINS,
    TENSOR_TYPE_SHAPE,
    TYPE_SEQUENCE,
    TYPE_TENSOR,
    VALUE_NAME,
    VALUE_TYPE,
    Pieces,
    edited,
    field_of,
    of,
    text,
    texts,
)

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


def flattened(model: Buffer) -> Flattened | None:
    """The model without the ZipMap nodes that make its outputs; None if it has none, or is no model."""
    try:
        return _flattened(model)
    except (ValueError, IndexError):  # ONNX Runtime says what is wrong with it
        return None


def _flattened(model: Buffer) -> Flattened | None:
    graph = next((field for field in fields(model) if field.number == MODEL_GRAPH), None)
    if graph is None:
        return None
    outputs = {
        text(model, field, VALUE_NAME): field for field in of(model, graph, GRAPH_OUTPUT) if _is_sequence(model, field)
    }
    if not outputs:
        return None
    edits: list[tuple[Field, Pieces]] = []
    labels: dict[str, Labels] = {}
    for node in of(model, graph, GRAPH_NODE):
        output = texts(model, node, NODE_OUTPUT)
        if texts(model, node, NODE_OP_TYPE) != ["ZipMap"] or output[0] not in outputs:
            continue
        (source,) = texts(model, node, NODE_INPUT)
        labels[output[0]] = _labels(model, node)
        edits.append((node, [bytes_field(GRAPH_NODE, _identity(source, output[0]))]))
        declaration = _matrix(output[0], len(labels[output[0]]))
        edits.append((outputs[output[0]], [bytes_field(GRAPH_OUTPUT, declaration)]))
    if not edits:
        return None
    content = field_of(MODEL_GRAPH, edited(model, graph.start, graph.end, edits))
    whole = edited(model, 0, len(model), [(graph, content)])
    return Flattened(b"".join([*whole, _missing_operators(model)]), labels)


def _is_sequence(data: Buffer, value: Field) -> bool:
    return any(any(of(data, kind, TYPE_SEQUENCE)) for kind in of(data, value, VALUE_TYPE))


def _labels(data: Buffer, node: Field) -> Labels:
    """Raises ValueError if the node has none."""
    for attribute in of(data, node, NODE_ATTRIBUTE):
        name = text(data, attribute, ATTRIBUTE_NAME)
        if name == "classlabels_int64s":
            return tuple(label for field in of(data, attribute, ATTRIBUTE_INTS) for label in integers(data, field))
        if name == "classlabels_strings":
            return tuple(texts(data, attribute, ATTRIBUTE_STRINGS))
    raise ValueError("a ZipMap node without labels")


def _identity(source: str, output: str) -> bytes:
    values = {NODE_INPUT: source, NODE_OUTPUT: output, NODE_OP_TYPE: "Identity"}
    return b"".join(bytes_field(number, value.encode()) for number, value in values.items())


def _matrix(name: str, columns: int) -> bytes:
    """The declaration of an output, FP32 with any number of rows."""
    sizes = (b"", number_field(_DIMENSION_VALUE, columns))
    shape = b"".join(bytes_field(_SHAPE_DIMENSION, size) for size in sizes)
    tensor = number_field(ELEMENT, _FLOAT) + bytes_field(TENSOR_TYPE_SHAPE, shape)
    kind = bytes_field(TYPE_TENSOR, tensor)
    return bytes_field(VALUE_NAME, name.encode()) + bytes_field(VALUE_TYPE, kind)


def _missing_operators(model: Buffer) -> bytes:
    """What makes ONNX's own operators known to a model that has used none so far."""
    for opset in (field for field in fields(model) if field.number == MODEL_OPSET):
        if not any(of(model, opset, OPSET_DOMAIN)) or texts(model, opset, OPSET_DOMAIN)[0] in OWN_DOMAINS:
            return b""
    return bytes_field(MODEL_OPSET, number_field(OPSET_VERSION, _OPSET_IF_NONE))

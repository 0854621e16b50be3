"""Removal of ``ZipMap`` nodes from exported scikit-learn, XGBoost and LightGBM classifiers.

By default, the converters end the graph with a ``ZipMap`` node: a dictionary from label to probability for each row.
The v2 protocol has no such type, and a million small dictionaries would be slow. An identity node under the same name
replaces it: FP32 of shape [rows, labels], with columns in the order of the node's labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import WireField, bytes_field, fields, integers, number_field

from . import onnx_file as onnx
from .onnx_file import Pieces, apply_edits, field_of, node, of, text, texts, value

_OPSET_IF_NONE = 13
"""Opset declared for a model that imports only the operators of classical machine learning."""

Labels: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True)
class FlattenedModel:
    """A serialised model with only tensor outputs, and the column labels of the converted ones."""

    content: bytes
    labels: Mapping[str, Labels]


def flatten_zipmaps(model: Buffer) -> FlattenedModel | None:
    """Return the model without ZipMap nodes at its outputs; None if it has none or is not a model."""
    try:
        return _flatten(model)
    except (ValueError, IndexError):  # ONNX Runtime reports the fault
        return None


def _flatten(model: Buffer) -> FlattenedModel | None:
    graph = next((field for field in fields(model) if field.number == onnx.MODEL_GRAPH), None)
    if graph is None:
        return None
    sequences = (field for field in of(model, graph, onnx.GRAPH_OUTPUT) if _is_sequence(model, field))
    outputs = {text(model, field, onnx.VALUE_NAME): field for field in sequences}
    if not outputs:
        return None
    edits: list[tuple[WireField, Pieces]] = []
    labels: dict[str, Labels] = {}
    for part in of(model, graph, onnx.GRAPH_NODE):
        output = texts(model, part, onnx.NODE_OUTPUT)
        if texts(model, part, onnx.NODE_OP_TYPE) != ["ZipMap"] or output[0] not in outputs:
            continue
        (source,) = texts(model, part, onnx.NODE_INPUT)
        labels[output[0]] = _labels(model, part)
        edits.append((part, [bytes_field(onnx.GRAPH_NODE, node("Identity", [source], output[0]))]))
        declaration = value(output[0], (-1, len(labels[output[0]])))
        edits.append((outputs[output[0]], [bytes_field(onnx.GRAPH_OUTPUT, declaration)]))
    if not edits:
        return None
    content = field_of(onnx.MODEL_GRAPH, apply_edits(model, graph.start, graph.end, edits))
    whole = apply_edits(model, 0, len(model), [(graph, content)])
    return FlattenedModel(b"".join([*whole, _missing_operators(model)]), labels)


def _is_sequence(data: Buffer, declaration: WireField) -> bool:
    return any(any(of(data, kind, onnx.TYPE_SEQUENCE)) for kind in of(data, declaration, onnx.VALUE_TYPE))


def _labels(data: Buffer, node: WireField) -> Labels:
    """Return the labels. Raises ValueError if the node has none."""
    for attribute in of(data, node, onnx.NODE_ATTRIBUTE):
        name = text(data, attribute, onnx.ATTRIBUTE_NAME)
        if name == "classlabels_int64s":
            return tuple(label for field in of(data, attribute, onnx.ATTRIBUTE_INTS) for label in integers(data, field))
        if name == "classlabels_strings":
            return tuple(texts(data, attribute, onnx.ATTRIBUTE_STRINGS))
    raise ValueError("the ZipMap node has no labels")


def _missing_operators(model: Buffer) -> bytes:
    """Return the import of ONNX's default operators for a model without it; else empty."""
    for opset in (field for field in fields(model) if field.number == onnx.MODEL_OPSET):
        if text(model, opset, onnx.OPSET_DOMAIN) in onnx.OWN_DOMAINS:
            return b""
    return bytes_field(onnx.MODEL_OPSET, number_field(onnx.OPSET_VERSION, _OPSET_IF_NONE))

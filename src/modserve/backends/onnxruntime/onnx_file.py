"""ONNX files as bytes: the numbers of fields, and how parts are read and replaced. The `onnx` package is not needed.

A model may be large: it is read where it lies, and what is not looked at is skipped.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import LENGTH_DELIMITED, Field, fields, read_varint, signed, varint

# Numbers of fields of onnx.proto (github.com/onnx/onnx).
MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 7, 8, 25
OPSET_DOMAIN, OPSET_VERSION = 1, 2
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE = 1, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH = 1, 3, 5, 6
ATTRIBUTE_INTS, ATTRIBUTE_STRINGS, ATTRIBUTE_GRAPHS, ATTRIBUTE_TYPE, ATTRIBUTE_REFERENCE = 8, 9, 11, 20, 21
TENSOR_DIMS, TENSOR_TYPE, TENSOR_INT32, TENSOR_INT64, TENSOR_NAME, TENSOR_RAW, TENSOR_UINT64 = 1, 2, 5, 7, 8, 9, 11
TENSOR_EXTERNAL = 13
FUNCTION_NAME, FUNCTION_INPUT, FUNCTION_OUTPUT, FUNCTION_NODE, FUNCTION_OPSET, FUNCTION_DOMAIN = 1, 4, 5, 7, 9, 10
FUNCTION_DEFAULT = 11
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, TYPE_SEQUENCE, TYPE_OPTIONAL = 1, 4, 9
ELEMENT, TENSOR_TYPE_SHAPE = 1, 2

OWN_DOMAINS: Final = frozenset({"", "ai.onnx"})
"""The names of the domain of ONNX's own operators."""


Pieces: TypeAlias = list[Buffer]
"""Bytes that come one after the other, where they lie: weights are copied once, at the end."""


class Node(NamedTuple):
    """A node of a graph or a function, and where it lies."""

    field: Field
    op_type: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Field]


def read_node(data: Buffer, field: Field) -> Node:
    """Raises ValueError and IndexError for what is no node."""
    texts = {NODE_OP_TYPE: "", NODE_DOMAIN: "", NODE_NAME: ""}
    lists: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: []}
    attributes = {}
    for part in fields(data, field.start, field.end):
        if part.number == NODE_ATTRIBUTE:
            attributes[text(data, part, ATTRIBUTE_NAME)] = part
        elif part.number in lists:
            lists[part.number].append(bytes(data[part.start : part.end]).decode())
        elif part.number in texts:
            texts[part.number] = bytes(data[part.start : part.end]).decode()
    return Node(
        field,
        texts[NODE_OP_TYPE],
        texts[NODE_DOMAIN],
        texts[NODE_NAME],
        lists[NODE_INPUT],
        lists[NODE_OUTPUT],
        attributes,
    )


def of(data: Buffer, message: Field, number: int) -> Iterator[Field]:
    """The fields with a number."""
    return (field for field in fields(data, message.start, message.end) if field.number == number)


def texts(data: Buffer, message: Field, number: int) -> list[str]:
    return [bytes(data[field.start : field.end]).decode() for field in of(data, message, number)]


def text(data: Buffer, message: Field, number: int) -> str:
    return "".join(texts(data, message, number)[-1:])


def number_of(data: Buffer, message: Field, number: int, default: int = 0) -> int:
    """The value of an integer field."""
    for field in of(data, message, number):
        if field.kind != LENGTH_DELIMITED:
            default = signed(read_varint(data, field.start)[0])
    return default


def edited(data: Buffer, start: int, end: int, edits: list[tuple[Field, Pieces]]) -> Pieces:
    """A part of the data with some of its fields replaced."""
    pieces: Pieces = []
    for field, replacement in sorted(edits, key=lambda edit: edit[0].head):
        pieces += [data[start : field.head], *replacement]
        start = field.end
    return [*pieces, data[start:end]]


def field_of(number: int, content: Pieces) -> Pieces:
    """A field that contains a message."""
    return [varint(number << 3 | LENGTH_DELIMITED) + varint(sum(map(len, content))), *content]

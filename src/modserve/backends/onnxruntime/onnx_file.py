"""Reading and writing of parts of ONNX files as bytes, without the `onnx` package.

A model may be large: it is read in place, and parts that are not needed are skipped.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from modserve.core.files import regular_file
from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import (
    LENGTH_DELIMITED,
    WireField,
    bytes_field,
    fields,
    number_field,
    read_varint,
    to_signed,
    varint,
)

# Numbers of fields of onnx.proto (github.com/onnx/onnx).
MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 1, 7, 8, 25
OPSET_DOMAIN, OPSET_VERSION = 1, 2
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE = 1, 2, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_STRING, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH = 1, 3, 4, 5, 6
ATTRIBUTE_FLOATS, ATTRIBUTE_INTS, ATTRIBUTE_STRINGS, ATTRIBUTE_GRAPHS, ATTRIBUTE_TYPE, ATTRIBUTE_REFERENCE = (
    7,
    8,
    9,
    11,
    20,
    21,
)
TENSOR_DIMS, TENSOR_TYPE, TENSOR_INT32, TENSOR_INT64, TENSOR_NAME, TENSOR_RAW, TENSOR_UINT64 = 1, 2, 5, 7, 8, 9, 11
TENSOR_EXTERNAL = 13
FUNCTION_NAME, FUNCTION_INPUT, FUNCTION_OUTPUT, FUNCTION_NODE, FUNCTION_OPSET, FUNCTION_DOMAIN = 1, 4, 5, 7, 9, 10
FUNCTION_DEFAULT = 11
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, TYPE_SEQUENCE, TYPE_OPTIONAL = 1, 4, 9
ELEMENT, TENSOR_TYPE_SHAPE = 1, 2
_SHAPE_DIMENSION, _DIMENSION_SIZE = 1, 1

INT, STRING, TENSOR, FLOATS, INTS, STRINGS = 2, 3, 4, 6, 7, 8
"""The types of attributes."""
FLOAT: Final = 1
"""The type of elements that is FP32."""

_IR_VERSION: Final = 8
OWN_DOMAINS: Final = frozenset({"", "ai.onnx"})
"""The names of the domain of ONNX's own operators."""


Pieces: TypeAlias = list[Buffer]
"""Bytes that come one after the other, where they lie: weights are copied once, at the end."""


T = TypeVar("T")


def read_file(path: Path, read: Callable[[memoryview], T], default: T) -> T:
    """Map a file and return the result of `read`; the default if the file cannot be read."""
    try:
        with (
            regular_file.open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            return read(view)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return default


class Node(NamedTuple):
    """A node of a graph or a function, and where it lies."""

    field: WireField
    op_type: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, WireField]


def read_node(data: Buffer, field: WireField) -> Node:
    """Read a node. Raises ValueError and IndexError for an invalid one."""
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


def of(data: Buffer, message: WireField, number: int) -> Iterator[WireField]:
    """Return the fields of a message with this number."""
    return (field for field in fields(data, message.start, message.end) if field.number == number)


def texts(data: Buffer, message: WireField, number: int) -> list[str]:
    return [bytes(data[field.start : field.end]).decode() for field in of(data, message, number)]


def text(data: Buffer, message: WireField, number: int) -> str:
    """Return the first value of a text field: the fields after it may be millions."""
    field = next(of(data, message, number), None)
    return "" if field is None else bytes(data[field.start : field.end]).decode()


def number_of(data: Buffer, message: WireField, number: int, default: int = 0) -> int:
    """Return the first value of an integer field."""
    field = next((each for each in of(data, message, number) if each.kind != LENGTH_DELIMITED), None)
    return default if field is None else to_signed(read_varint(data, field.start)[0])


def graphs_of(data: Buffer, attribute: WireField) -> Iterator[WireField]:
    """Yield the graphs in an attribute. An attribute with a list has none, and a field for each number in it."""
    for field in fields(data, attribute.start, attribute.end):
        if field.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            yield field
        elif field.number in (ATTRIBUTE_FLOATS, ATTRIBUTE_INTS, ATTRIBUTE_STRINGS):
            return


def has_external_weights(model: Buffer) -> bool:
    """Return whether weights of the model's graph are in other files. Raises ValueError and IndexError for no model."""
    return any(
        any(of(model, tensor, TENSOR_EXTERNAL))
        for graph in fields(model)
        if graph.number == MODEL_GRAPH
        for tensor in of(model, graph, GRAPH_INITIALIZER)
    )


def apply_edits(data: Buffer, start: int, end: int, edits: list[tuple[WireField, Pieces]]) -> Pieces:
    """Return a part of the data with some of its fields replaced."""
    pieces: Pieces = []
    for field, replacement in sorted(edits, key=lambda edit: edit[0].head):
        pieces += [data[start : field.head], *replacement]
        start = field.end
    return [*pieces, data[start:end]]


def field_of(number: int, content: Pieces) -> Pieces:
    """Return a field that contains a message."""
    return [varint(number << 3 | LENGTH_DELIMITED) + varint(sum(map(len, content))), *content]


# Writing


def node(
    op_type: str, inputs: Iterable[str], output: str, attributes: Iterable[bytes] = (), *, name: str = ""
) -> bytes:
    """Return a node of ONNX's own domain with one output."""
    parts = [bytes_field(NODE_INPUT, each.encode()) for each in inputs]
    parts += [bytes_field(NODE_OUTPUT, output.encode()), bytes_field(NODE_NAME, (name or output).encode())]
    parts.append(bytes_field(NODE_OP_TYPE, op_type.encode()))
    return b"".join([*parts, *(bytes_field(NODE_ATTRIBUTE, each) for each in attributes)])


def attribute(name: str, content: bytes, kind: int) -> bytes:
    """Return an attribute; `content` is a field of the kind."""
    return bytes_field(ATTRIBUTE_NAME, name.encode()) + content + number_field(ATTRIBUTE_TYPE, kind)


def integer(name: str, value: int) -> bytes:
    """Return an integer attribute."""
    return attribute(name, number_field(ATTRIBUTE_INT, value), INT)


def tensor(element: int, dims: Iterable[int], raw: bytes, name: str = "") -> bytes:
    content = b"".join(number_field(TENSOR_DIMS, size) for size in dims) + number_field(TENSOR_TYPE, element)
    return content + (bytes_field(TENSOR_NAME, name.encode()) if name else b"") + bytes_field(TENSOR_RAW, raw)


def value(name: str, dims: Iterable[int]) -> bytes:
    """Return the declaration of an input or output of FP32; -1 is any size."""
    sizes = (number_field(_DIMENSION_SIZE, size) if size >= 0 else b"" for size in dims)
    shape = b"".join(bytes_field(_SHAPE_DIMENSION, size) for size in sizes)
    kind = bytes_field(TYPE_TENSOR, number_field(ELEMENT, FLOAT) + bytes_field(TENSOR_TYPE_SHAPE, shape))
    return bytes_field(VALUE_NAME, name.encode()) + bytes_field(VALUE_TYPE, kind)


def model(
    nodes: Sequence[bytes], initializers: Sequence[bytes], ends: tuple[bytes, bytes], opsets: Mapping[str, int]
) -> bytes:
    """Return a model with one input and one output, the `ends`; `opsets` has the version of each domain."""
    parts = [bytes_field(GRAPH_NODE, each) for each in nodes] + [bytes_field(GRAPH_NAME, b"graph")]
    parts += [bytes_field(GRAPH_INITIALIZER, each) for each in initializers]
    parts += [bytes_field(GRAPH_INPUT, ends[0]), bytes_field(GRAPH_OUTPUT, ends[1])]
    imports = (
        bytes_field(OPSET_DOMAIN, domain.encode()) + number_field(OPSET_VERSION, version)
        for domain, version in opsets.items()
    )
    head = number_field(MODEL_IR_VERSION, _IR_VERSION) + bytes_field(MODEL_GRAPH, b"".join(parts))
    return head + b"".join(bytes_field(MODEL_OPSET, each) for each in imports)

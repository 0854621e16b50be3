"""Integer divisions of ONNX graphs, which end the process where the processor traps, as x86 does: guarded at load.

ONNX Runtime leaves these to the processor: divisions by 0 with 1.24 (with 1.29 no longer), those of the lowest number
by -1 still with 1.32. Before each `Div` and `Mod` of integers whose divisor is no harmless constant, a few nodes are
put that hold its divisor back until they have looked at it:

- If it has a 0, the execution fails: an index, the number of zeros, is out of the range of a table with one element.
- Where the lowest number is to be divided by -1, it is divided by 1. The result is the lowest number, as of smaller
  integers in ONNX Runtime, in NumPy and on ARM, and the remainder is 0.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import Field, bytes_field, fields, number_field

from .element_types import BOOL, INT32, INT64, INTEGER_BYTES, Divisions, divisions
from .onnx_file import (
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_GRAPHS,
    ATTRIBUTE_INT,
    ATTRIBUTE_NAME,
    ATTRIBUTE_TENSOR,
    ATTRIBUTE_TYPE,
    FUNCTION_NODE,
    FUNCTION_OPSET,
    GRAPH_NODE,
    MODEL_FUNCTION,
    MODEL_GRAPH,
    MODEL_OPSET,
    NODE_ATTRIBUTE,
    NODE_INPUT,
    NODE_NAME,
    NODE_OP_TYPE,
    NODE_OUTPUT,
    OPSET_DOMAIN,
    OPSET_VERSION,
    OWN_DOMAINS,
    TENSOR_DIMS,
    TENSOR_RAW,
    TENSOR_TYPE,
    Node,
    Pieces,
    edited,
    field_of,
    number_of,
    of,
    read_node,
    texts,
)

MARK: Final = "modserve: divisor of "
"""How the name of the node begins that fails for a 0; the name of the division follows."""
_PREFIX: Final = "modserve:divisor:"
_OLDEST_OPSET: Final = 7
"""Before, ONNX had no broadcasting."""
_TYPE_INT, _TYPE_TENSOR = 2, 4


@dataclass(frozen=True)
class Guarded:
    """A serialised model with guards. `count` divisions have one, and `others` cannot."""

    content: bytes
    count: int
    others: int


def guarded(model: Buffer) -> Guarded | None:
    """The model with guards; None if it divides no integers, or is no model."""
    try:
        return _guarded(model)
    except (ValueError, IndexError, RecursionError):  # ONNX Runtime says what is wrong with it
        return None


def division_by_zero(error: str) -> str | None:
    """The name of the division whose guard has failed, by the text of ONNX Runtime's error."""
    _, mark, rest = error.partition(MARK)
    return rest.partition("' ")[0] if mark else None


def is_constant_zero(error: str) -> bool:
    """Whether a guarded graph could not be loaded because it divides by a constant 0, which would trap without."""
    return "indices element out of data bounds" in error


def _guarded(model: Buffer) -> Guarded | None:
    risky = divisions(model)
    if not risky:
        return None
    writer = _Writer(model, risky)
    parts = list(fields(model))
    opset = _opset(model, [part for part in parts if part.number == MODEL_OPSET])
    edits = []
    for part in parts:
        if part.number == MODEL_GRAPH and opset >= _OLDEST_OPSET:
            edits.append((part, field_of(MODEL_GRAPH, writer.with_guards(part, GRAPH_NODE))))
        elif part.number == MODEL_FUNCTION and _opset(model, of(model, part, FUNCTION_OPSET)) >= _OLDEST_OPSET:
            edits.append((part, field_of(MODEL_FUNCTION, writer.with_guards(part, FUNCTION_NODE))))
    return Guarded(b"".join(edited(model, 0, len(model), edits)), writer.count, len(risky) - writer.count)


def _opset(model: Buffer, imports: Iterable[Field]) -> int:
    """The version of ONNX's own operators."""
    own = (each for each in imports if "".join(texts(model, each, OPSET_DOMAIN)) in OWN_DOMAINS)
    return max([number_of(model, each, OPSET_VERSION) for each in own], default=0)


class _Writer:
    """Puts guards before nodes. `risky` are the nodes, by where they begin."""

    def __init__(self, model: Buffer, risky: Divisions) -> None:
        self._data = model
        self._types = {head: next(iter(types)) for head, types in risky.items() if len(types) == 1}
        self._heads = sorted(risky)
        self._numbers = count(1)
        self.count = 0

    def with_guards(self, message: Field, node_number: int) -> Pieces:
        """The content of a graph or a function."""
        edits: list[tuple[Field, Pieces]] = []
        for field in of(self._data, message, node_number):
            if field.head in self._types and self._types[field.head] in INTEGER_BYTES:
                node = read_node(self._data, field)
                edits.append((field, [bytes_field(node_number, each) for each in self._guard(node)]))
                self.count += 1
            elif self._has_risky(field):
                edits.append((field, field_of(node_number, self._with_graphs(field))))
        return edited(self._data, message.start, message.end, edits)

    def _has_risky(self, field: Field) -> bool:
        at = bisect_left(self._heads, field.start)
        return at < len(self._heads) and self._heads[at] < field.end

    def _with_graphs(self, node: Field) -> Pieces:
        """The content of a node with graphs inside."""
        edits = []
        for attribute in of(self._data, node, NODE_ATTRIBUTE):
            graphs = [
                (part, field_of(part.number, self.with_guards(part, GRAPH_NODE)))
                for part in fields(self._data, attribute.start, attribute.end)
                if part.number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS)
            ]
            if graphs:
                content = edited(self._data, attribute.start, attribute.end, graphs)
                edits.append((attribute, field_of(NODE_ATTRIBUTE, content)))
        return edited(self._data, node.start, node.end, edits)

    def _guard(self, node: Node) -> list[bytes]:
        """The contents of the nodes that take the place of a division: its guard, and itself."""
        name = f"{_PREFIX}{next(self._numbers)}:"
        one = self._types[node.field.head]
        dividend, divisor = node.inputs
        nodes = [
            _node("Cast", [divisor], name + "nonzero", to=BOOL),
            _node("Not", [name + "nonzero"], name + "zero"),
            _node("Cast", [name + "zero"], name + "zeros", to=INT64),
            _node("ReduceSum", [name + "zeros"], name + "count", keepdims=0),
            _constant(name + "table", INT64, [0], dims=(1,)),
            _node("Gather", [name + "table", name + "count"], name + "nothing", MARK + (node.name or node.outputs[0])),
        ]
        kept = divisor
        if one in (INT32, INT64):
            kept = name + "kept"
            nodes += [
                _constant(name + "lowest", one, [-(1 << 8 * INTEGER_BYTES[one] - 1)]),
                _constant(name + "minus one", one, [-1]),
                _constant(name + "two", one, [2]),
                _node("Equal", [dividend, name + "lowest"], name + "is lowest"),
                _node("Equal", [divisor, name + "minus one"], name + "is minus one"),
                _node("And", [name + "is lowest", name + "is minus one"], name + "overflows"),
                _node("Cast", [name + "overflows"], name + "overflow", to=one),
                _node("Mul", [name + "overflow", name + "two"], name + "correction"),
                _node("Add", [divisor, name + "correction"], kept),  # -1 becomes 1
            ]
        if one != INT64:  # whatever the type, there is a subtraction of the widest
            nodes.append(_node("Cast", [kept], name + "wide", to=INT64))
            kept = name + "wide"
        nodes.append(_node("Sub", [kept, name + "nothing"], name + "looked at"))
        if one != INT64:
            nodes.append(_node("Cast", [name + "looked at"], name + "checked", to=one))
        return [*nodes, self._divided_by(node.field, name + ("looked at" if one == INT64 else "checked"))]

    def _divided_by(self, node: Field, divisor: str) -> bytes:
        _, second = of(self._data, node, NODE_INPUT)
        edits: list[tuple[Field, Pieces]] = [(second, [bytes_field(NODE_INPUT, divisor.encode())])]
        return b"".join(edited(self._data, node.start, node.end, edits))


def _node(op_type: str, inputs: list[str], output: str, name: str = "", **attributes: int) -> bytes:
    """A node with one output; the attributes are integers."""
    parts = [bytes_field(NODE_INPUT, each.encode()) for each in inputs]
    parts += [bytes_field(NODE_OUTPUT, output.encode()), bytes_field(NODE_NAME, (name or output).encode())]
    parts.append(bytes_field(NODE_OP_TYPE, op_type.encode()))
    for key, value in attributes.items():
        content = number_field(ATTRIBUTE_INT, value) + number_field(ATTRIBUTE_TYPE, _TYPE_INT)
        parts.append(bytes_field(NODE_ATTRIBUTE, bytes_field(ATTRIBUTE_NAME, key.encode()) + content))
    return b"".join(parts)


def _constant(output: str, one: int, values: list[int], dims: tuple[int, ...] = ()) -> bytes:
    """A node that gives a tensor of integers, a scalar unless there are `dims`."""
    raw = b"".join(value.to_bytes(INTEGER_BYTES[one], "little", signed=True) for value in values)
    tensor = b"".join(number_field(TENSOR_DIMS, size) for size in dims)
    tensor += number_field(TENSOR_TYPE, one) + bytes_field(TENSOR_RAW, raw)
    attribute = bytes_field(ATTRIBUTE_NAME, b"value") + bytes_field(ATTRIBUTE_TENSOR, tensor)
    attribute += number_field(ATTRIBUTE_TYPE, _TYPE_TENSOR)
    return _node("Constant", [], output) + bytes_field(NODE_ATTRIBUTE, attribute)

"""Guards for integer divisions in ONNX graphs, which kill the process on processors that trap, such as x86.

ONNX Runtime leaves them to the processor: division by 0 in 1.24 (not in 1.29), and division of the lowest number by -1
still in 1.32. Before each integer `Div` and `Mod` without a safe constant divisor, inserted nodes check the divisor:

- If it contains a 0, the execution fails: the number of zeros is an index out of the range of a one-element table.
- Where the lowest number is divided by -1, the divisor becomes 1. The quotient is the lowest number, as with smaller
  integers in ONNX Runtime, in NumPy and on ARM, and the remainder is 0.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import WireField, bytes_field, fields

from . import onnx_file as onnx
from .element_types import BOOL, INT32, INT64, INTEGER_BYTES, Divisions, divisions
from .onnx_file import (
    Node,
    Pieces,
    apply_edits,
    attribute,
    field_of,
    integer,
    node,
    number_of,
    of,
    read_node,
    tensor,
    texts,
)

MARK: Final = "modserve: divisor of "
"""Prefix of the name of the node that fails for a 0, followed by the division's name."""
_PREFIX: Final = "modserve:divisor:"
_OLDEST_OPSET: Final = 7
"""First opset with broadcasting."""


@dataclass(frozen=True)
class GuardedModel:
    """A serialised model with `count` guarded divisions, and `others` that cannot be guarded.

    The content refers to the bytes of the original model.
    """

    content: Pieces
    count: int
    others: int


def guard_divisions(model: Buffer) -> GuardedModel | None:
    """Return the model with guards; None if it divides no integers or is not a model."""
    try:
        return _guard_model(model)
    except (ValueError, IndexError, RecursionError):  # ONNX Runtime reports the fault
        return None


def division_by_zero(error: str) -> str | None:
    """Return the name of the division with the failed guard, from ONNX Runtime's error text."""
    _, mark, rest = error.partition(MARK)
    return rest.partition("' ")[0] if mark else None


def is_constant_zero(error: str) -> bool:
    """Return True if a guarded graph failed to load because it divides by a constant 0."""
    return "indices element out of data bounds" in error


def _guard_model(model: Buffer) -> GuardedModel | None:
    risky = divisions(model)
    if not risky:
        return None
    writer = _Writer(model, risky)
    parts = list(fields(model))
    opset = _opset(model, [part for part in parts if part.number == onnx.MODEL_OPSET])
    edits = []
    for part in parts:
        if part.number == onnx.MODEL_GRAPH and opset >= _OLDEST_OPSET:
            edits.append((part, field_of(onnx.MODEL_GRAPH, writer.with_guards(part, onnx.GRAPH_NODE))))
        elif (
            part.number == onnx.MODEL_FUNCTION and _opset(model, of(model, part, onnx.FUNCTION_OPSET)) >= _OLDEST_OPSET
        ):
            edits.append((part, field_of(onnx.MODEL_FUNCTION, writer.with_guards(part, onnx.FUNCTION_NODE))))
    return GuardedModel(apply_edits(model, 0, len(model), edits), writer.count, len(risky) - writer.count)


def _opset(model: Buffer, imports: Iterable[WireField]) -> int:
    """Return the version of ONNX's default operator set."""
    own = (each for each in imports if "".join(texts(model, each, onnx.OPSET_DOMAIN)) in onnx.OWN_DOMAINS)
    return max([number_of(model, each, onnx.OPSET_VERSION) for each in own], default=0)


class _Writer:
    """Writer of guards. `risky` maps the start offset of a node to its types."""

    def __init__(self, model: Buffer, risky: Divisions) -> None:
        self._data = model
        self._types = {head: next(iter(types)) for head, types in risky.items() if len(types) == 1}
        self._heads = sorted(risky)
        self._numbers = count(1)
        self.count = 0

    def with_guards(self, message: WireField, node_number: int) -> Pieces:
        """Return the content of a graph or function, with guards."""
        edits: list[tuple[WireField, Pieces]] = []
        for field in of(self._data, message, node_number):
            if field.head in self._types and self._types[field.head] in INTEGER_BYTES:
                guard = self._guard(read_node(self._data, field))
                edits.append((field, [bytes_field(node_number, each) for each in guard]))
                self.count += 1
            elif bisect_left(self._heads, field.start) < bisect_left(self._heads, field.end):  # contains a risky node
                edits.append((field, field_of(node_number, self._with_graphs(field))))
        return apply_edits(self._data, message.start, message.end, edits)

    def _with_graphs(self, outer: WireField) -> Pieces:
        """Return the content of a node that contains graphs."""
        edits = []
        for part in of(self._data, outer, onnx.NODE_ATTRIBUTE):
            graphs = [
                (graph, field_of(graph.number, self.with_guards(graph, onnx.GRAPH_NODE)))
                for graph in onnx.graphs_of(self._data, part)
            ]
            if graphs:
                content = apply_edits(self._data, part.start, part.end, graphs)
                edits.append((part, field_of(onnx.NODE_ATTRIBUTE, content)))
        return apply_edits(self._data, outer.start, outer.end, edits)

    def _guard(self, division: Node) -> list[bytes]:
        """Return the nodes that replace a division: its guard and the division."""
        name = f"{_PREFIX}{next(self._numbers)}:"
        one = self._types[division.field.head]
        dividend, divisor = division.inputs
        mark = MARK + (division.name or division.outputs[0])
        nodes = [
            node("Cast", [divisor], name + "nonzero", [integer("to", BOOL)]),
            node("Not", [name + "nonzero"], name + "zero"),
            node("Cast", [name + "zero"], name + "zeros", [integer("to", INT64)]),
            node("ReduceSum", [name + "zeros"], name + "count", [integer("keepdims", 0)]),
            _constant(name + "table", INT64, [0], dims=(1,)),
            node("Gather", [name + "table", name + "count"], name + "nothing", name=mark),
        ]
        kept = divisor
        if one in (INT32, INT64):
            kept = name + "kept"
            nodes += [
                _constant(name + "lowest", one, [-(1 << 8 * INTEGER_BYTES[one] - 1)]),
                _constant(name + "minus one", one, [-1]),
                _constant(name + "two", one, [2]),
                node("Equal", [dividend, name + "lowest"], name + "is lowest"),
                node("Equal", [divisor, name + "minus one"], name + "is minus one"),
                node("And", [name + "is lowest", name + "is minus one"], name + "overflows"),
                node("Cast", [name + "overflows"], name + "overflow", [integer("to", one)]),
                node("Mul", [name + "overflow", name + "two"], name + "correction"),
                node("Add", [divisor, name + "correction"], kept),  # -1 becomes 1
            ]
        if one != INT64:  # every opset has `Sub` for INT64
            nodes.append(node("Cast", [kept], name + "wide", [integer("to", INT64)]))
            kept = name + "wide"
        nodes.append(node("Sub", [kept, name + "nothing"], name + "looked at"))
        if one != INT64:
            nodes.append(node("Cast", [name + "looked at"], name + "checked", [integer("to", one)]))
        return [*nodes, self._replace_divisor(division.field, name + ("looked at" if one == INT64 else "checked"))]

    def _replace_divisor(self, division: WireField, divisor: str) -> bytes:
        _, second = of(self._data, division, onnx.NODE_INPUT)
        edits: list[tuple[WireField, Pieces]] = [(second, [bytes_field(onnx.NODE_INPUT, divisor.encode())])]
        return b"".join(apply_edits(self._data, division.start, division.end, edits))


def _constant(output: str, element: int, values: list[int], dims: tuple[int, ...] = ()) -> bytes:
    """Return a node with a constant integer tensor; a scalar without `dims`."""
    raw = b"".join(value.to_bytes(INTEGER_BYTES[element], "little", signed=True) for value in values)
    content = bytes_field(onnx.ATTRIBUTE_TENSOR, tensor(element, dims, raw))
    return node("Constant", [], output, [attribute("value", content, onnx.TENSOR)])

"""Search for ONNX nodes that divide integers by anything but a safe constant.

Element types are propagated from node to node, as files rarely store intermediate types. The rules follow ONNX's
operators (github.com/onnx/onnx, docs/Operators.md); the types of other domains' outputs are unknown.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from modserve.core.tensors.tensor import Buffer
from modserve.core.wire.protobuf_wire import WireField, fields, varint

from . import onnx_file as onnx
from .onnx_file import Node, number_of, of, read_node, text, texts

UNKNOWN: Final = 0
FLOAT, UINT8, INT32, INT64, BOOL = 1, 2, 6, 7, 9
INTEGER_BYTES: Final[Mapping[int, int]] = {2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 12: 4, 13: 8}
"""Integer types by number in ``TensorProto.DataType`` → bytes of an element."""
_STRING: Final = 8
_MINUS_ONE: Final = varint(2**64 - 1)
_UNSIGNED: Final = frozenset({2, 4, 12, 13})
_DIVIDED_AS_INTEGERS: Final = frozenset({UNKNOWN, *INTEGER_BYTES})

Divisions: TypeAlias = dict[int, set[int]]
"""Start offsets of dividing nodes → divided types. A function's node may have several."""

_Types: TypeAlias = Sequence[int]
_Constants: TypeAlias = dict[str, WireField]
"""Constant tensors by name. Only divisors are decoded, as weights are large."""
_LIKE_EITHER: Final = frozenset(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Sum", "Mean", "Concat", "PRelu"))
"""Operators with one type for all inputs and the output."""
_FIXED: Final[Mapping[str, _Types]] = {
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", "SequenceLength"), (INT64,)),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf"), (BOOL,)),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), (INT32,)),
    "DynamicQuantizeLinear": (UINT8, FLOAT, UINT8),
    "TfIdfVectorizer": (FLOAT,),
    "ImageDecoder": (UINT8,),
}
_FROM_INPUT: Final[Mapping[str, int]] = {
    "Where": 1,
    "CastLike": 1,
    "DequantizeLinear": 1,
    "OneHot": 2,
    "QLinearMatMul": 7,
    "QLinearConv": 7,
}
"""Operator → index of the input with the outputs' type, if it is not the first."""
_OTHERS: Final[Mapping[str, _Types]] = {
    "TopK": (INT64,),
    "MaxPool": (INT64,),
    "Unique": (INT64, INT64, INT64),
    "StringSplit": (INT64,),
    "Dropout": (BOOL,),
}
"""Operator → types of the second and later outputs, where they differ from the first."""
_NAMED: Final[Mapping[str, tuple[str, int]]] = {
    "Cast": ("to", UNKNOWN),
    "RandomNormal": ("dtype", FLOAT),
    "RandomUniform": ("dtype", FLOAT),
    "Multinomial": ("dtype", INT32),
    "SequenceEmpty": ("dtype", FLOAT),
    "MelWeightMatrix": ("output_datatype", FLOAT),
    "HannWindow": ("output_datatype", FLOAT),
    "HammingWindow": ("output_datatype", FLOAT),
    "BlackmanWindow": ("output_datatype", FLOAT),
}
"""Operator → attribute with the type, and the default type."""
_NAMED_OR_FIRST: Final = frozenset(("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"))
_DEEPEST = 64
"""Limit of nested graphs and function calls."""


def divisions(model: Buffer) -> Divisions:
    """Return the Div and Mod nodes with an integer divisor that may be 0 or -1, or with a divisor of unknown type.

    Raises ValueError and IndexError for bytes that are not a model.
    """
    reader = _GraphReader(model)
    for field in fields(model):
        if field.number == onnx.MODEL_FUNCTION:
            reader.functions[text(model, field, onnx.FUNCTION_DOMAIN), text(model, field, onnx.FUNCTION_NAME)] = field
    for field in fields(model):
        if field.number == onnx.MODEL_GRAPH:
            reader.graph(field, {}, {}, {}, (), 0)
    return {head: types for head, types in reader.divisions.items() if not types.isdisjoint(_DIVIDED_AS_INTEGERS)}


class _GraphReader:
    """Reader of graphs in node order. `types` and `constants` are indexed by value name."""

    def __init__(self, model: Buffer) -> None:
        self._data = model
        self.functions: dict[tuple[str, str], WireField] = {}
        self.divisions: Divisions = {}
        self._calls: dict[tuple[object, ...], list[int]] = {}

    def graph(
        self,
        graph: WireField,
        outer: Mapping[str, int],
        outer_constants: _Constants,
        outer_attributes: Mapping[str, WireField],
        arguments: _Types,
        depth: int,
    ) -> list[int]:
        """Return the types of a graph's outputs. Untyped inputs take their type from `arguments`."""
        if depth > _DEEPEST:
            raise ValueError("graphs are nested too deeply")
        data = self._data
        types, constants = dict(outer), dict(outer_constants)
        nodes, inputs, outputs = [], [], []
        for part in fields(data, graph.start, graph.end):
            if part.number == onnx.GRAPH_NODE:
                nodes.append(part)
            elif part.number == onnx.GRAPH_INITIALIZER:
                type_ = number_of(data, part, onnx.TENSOR_TYPE)
                if type_ != _STRING:  # the name would follow one field for each text
                    name = text(data, part, onnx.TENSOR_NAME)
                    types[name], constants[name] = type_, part
            elif part.number in (onnx.GRAPH_INPUT, onnx.GRAPH_OUTPUT, onnx.GRAPH_VALUE):
                name = text(data, part, onnx.VALUE_NAME)
                types[name] = self._read_type(part) or types.get(name, UNKNOWN)
                if part.number == onnx.GRAPH_INPUT:
                    inputs.append(name)
                elif part.number == onnx.GRAPH_OUTPUT:
                    outputs.append(name)
        for name, argument in zip(inputs, arguments, strict=False):
            types[name] = types[name] or argument
        for name in inputs:
            constants.pop(name, None)  # a request or a loop may override the file's value
        for node in nodes:
            self._node(read_node(data, node), types, constants, outer_attributes, depth)
        return [types.get(name, UNKNOWN) for name in outputs]

    def _node(
        self,
        node: Node,
        types: dict[str, int],
        constants: _Constants,
        outer_attributes: Mapping[str, WireField],
        depth: int,
    ) -> None:
        attributes = self._resolve(node.attributes, outer_attributes)
        inputs = [types.get(name, UNKNOWN) for name in node.inputs]
        function = self.functions.get((node.domain, node.op_type))
        if function is not None:
            made = self._call(function, inputs, attributes, depth)
        else:
            made = self._graphs_of(node, attributes, inputs, types, constants, depth)
            if node.domain in onnx.OWN_DOMAINS and not made:
                made = self._infer_types(node, inputs, attributes)
        for name, one in zip(node.outputs, [*made, *[UNKNOWN] * len(node.outputs)], strict=False):
            types[name] = types.get(name, UNKNOWN) or one
            constants.pop(name, None)
        if node.domain not in onnx.OWN_DOMAINS:
            return
        if node.op_type == "Constant" and "value" in attributes:
            for tensor in of(self._data, attributes["value"], onnx.ATTRIBUTE_TENSOR):
                constants[node.outputs[0]] = tensor
            return
        is_division = node.op_type == "Div" or (node.op_type == "Mod" and not self._read_integer(attributes, "fmod", 0))
        if is_division and not self._is_safe(constants.get(node.inputs[1])):
            self.divisions.setdefault(node.field.head, set()).add(types[node.outputs[0]])

    def _resolve(self, attributes: Mapping[str, WireField], outer: Mapping[str, WireField]) -> dict[str, WireField]:
        """Resolve a function node's references to attributes of the call, which may have other names."""
        if not outer:
            return dict(attributes)
        resolved = {}
        for name, attribute in attributes.items():
            reference = text(self._data, attribute, onnx.ATTRIBUTE_REFERENCE)
            if not reference:
                resolved[name] = attribute
            elif reference in outer:
                resolved[name] = outer[reference]
        return resolved

    def _call(self, function: WireField, inputs: _Types, attributes: Mapping[str, WireField], depth: int) -> list[int]:
        if depth > _DEEPEST:
            raise ValueError("functions call each other too deeply")
        data = self._data
        key = function, *inputs, *sorted(attributes.items())
        if key not in self._calls:
            defaults = {
                text(data, each, onnx.ATTRIBUTE_NAME): each for each in of(data, function, onnx.FUNCTION_DEFAULT)
            }
            types = dict(zip(texts(data, function, onnx.FUNCTION_INPUT), inputs, strict=False))
            constants: _Constants = {}
            for node in of(data, function, onnx.FUNCTION_NODE):
                self._node(read_node(data, node), types, constants, {**defaults, **attributes}, depth + 1)
            self._calls[key] = [types.get(name, UNKNOWN) for name in texts(data, function, onnx.FUNCTION_OUTPUT)]
        return self._calls[key]

    def _graphs_of(
        self,
        node: Node,
        attributes: Mapping[str, WireField],
        inputs: _Types,
        types: Mapping[str, int],
        constants: _Constants,
        depth: int,
    ) -> list[int]:
        """Return the output types of a node that contains graphs; none for other nodes."""
        arguments = [INT64, BOOL, *inputs[2:]] if node.op_type == "Loop" else inputs
        made: list[int] = []
        for attribute in attributes.values():
            for field in onnx.graphs_of(self._data, attribute):
                of_graph = self.graph(field, types, constants, attributes, arguments, depth + 1)
                made = [a or b for a, b in zip(made, of_graph, strict=False)] or of_graph
        return made[1:] if node.op_type == "Loop" else made  # a Loop's first graph output is its condition

    def _infer_types(self, node: Node, inputs: _Types, attributes: Mapping[str, WireField]) -> list[int]:
        op, count = node.op_type, len(node.outputs)
        first = inputs[0] if inputs else UNKNOWN
        if op in _FIXED:
            return [*_FIXED[op]]
        if op in _LIKE_EITHER:
            first = next(filter(None, inputs), UNKNOWN)
        elif op in _FROM_INPUT:
            first = inputs[_FROM_INPUT[op]] if len(inputs) > _FROM_INPUT[op] else UNKNOWN
        elif op in _NAMED:
            first = self._read_integer(attributes, *_NAMED[op])
        elif op in _NAMED_OR_FIRST:
            first = self._read_integer(attributes, "dtype", first)
        elif op == "QuantizeLinear":
            first = inputs[2] if len(inputs) > 2 else self._read_integer(attributes, "output_dtype", UINT8)
        elif op in _CONSTANTS:
            first = self._constant(op, attributes)
        return [first, *(_OTHERS.get(op) or [first] * (count - 1))]

    def _read_integer(self, attributes: Mapping[str, WireField], name: str, default: int) -> int:
        return number_of(self._data, attributes[name], onnx.ATTRIBUTE_INT) if name in attributes else default

    def _constant(self, op: str, attributes: Mapping[str, WireField]) -> int:
        for name, one in _CONSTANTS[op].items():
            if name in attributes:
                tensor = next(of(self._data, attributes[name], onnx.ATTRIBUTE_TENSOR), None)
                return number_of(self._data, tensor, onnx.TENSOR_TYPE) if tensor is not None else one
        return FLOAT if op == "ConstantOfShape" else UNKNOWN

    def _read_type(self, value: WireField) -> int:
        """Return the element type of a value, also of a sequence or optional."""
        data = self._data
        kinds = list(of(data, value, onnx.VALUE_TYPE))
        for kind in kinds:
            for part in fields(data, kind.start, kind.end):
                if part.number == onnx.TYPE_TENSOR:
                    return number_of(data, part, onnx.ELEMENT)
                if part.number in (onnx.TYPE_SEQUENCE, onnx.TYPE_OPTIONAL):
                    kinds += of(data, part, onnx.ELEMENT)
        return UNKNOWN

    def _is_safe(self, tensor: WireField | None) -> bool:
        """Return whether a constant certainly contains neither 0 nor -1, which overflows for the lowest number."""
        if tensor is None:
            return False
        data = self._data
        one = number_of(data, tensor, onnx.TENSOR_TYPE)
        if one not in INTEGER_BYTES or any(of(data, tensor, onnx.TENSOR_EXTERNAL)):
            return False
        for part in fields(data, tensor.start, tensor.end):
            content = bytes(data[part.start : part.end])
            if part.number in (onnx.TENSOR_INT32, onnx.TENSOR_INT64, onnx.TENSOR_UINT64):
                if b"\0" in content or _MINUS_ONE in content:
                    return False
            elif part.number == onnx.TENSOR_RAW:
                values = np.frombuffer(content, f"<{'u' if one in _UNSIGNED else 'i'}{INTEGER_BYTES[one]}")
                if not values.all() or (values == -1).any():
                    return False
        return True


_CONSTANTS: Final[Mapping[str, Mapping[str, int]]] = {
    "Constant": {
        "value": UNKNOWN,
        "value_int": INT64,
        "value_ints": INT64,
        "value_float": FLOAT,
        "value_floats": FLOAT,
        "value_string": 8,
        "value_strings": 8,
    },
    "ConstantOfShape": {"value": UNKNOWN},
}
"""Operators that make constants → attribute → element type; UNKNOWN stands for the tensor's type."""

"""Reads the inputs, the requested outputs and the parameters of a request without message objects.

Each function stops at what clients do not send, so that protobuf says what it means. All raise IndexError and WireError
where the bytes are no message, and UnicodeDecodeError for texts that are none.
"""

import struct
from typing import Final

from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape
from modserve.core.wire.protobuf_wire import WireError, read_varint, signed
from modserve.protocol.limits import LIMITS

from .infer_message import NO_PARAMETERS, OF_INPUTS, OF_OUTPUTS, Head, Input, Output, Parameter

# Keys of fields: their number and their wire type. First those of the request,
_INPUT: Final = 0x2A
_OUTPUT: Final = 0x32
# then those of an input and of an output,
_NAME: Final = 0x0A
_DATATYPE: Final = 0x12
_PACKED_SHAPE: Final = 0x1A
_DIMENSION: Final = 0x18
_INPUT_PARAMETER: Final = 0x22
_OUTPUT_PARAMETER: Final = 0x12
# then those of an entry of a map, and of an ``InferParameter``.
_ENTRY_KEY: Final = 0x0A
_ENTRY_VALUE: Final = 0x12
_BOOL: Final = 0x08
_INT64: Final = 0x10
_STRING: Final = 0x1A
_DOUBLE: Final = 0x21
_UINT64: Final = 0x28

_LONGEST: Final = 2**32

_double: Final = struct.Struct("<d")


def read_head(data: bytes) -> Head | None:
    """The inputs and outputs that `data` consists of; None if one is unusual, or there are too many."""
    inputs: list[Input] = []
    outputs: list[Output] = []
    size = len(data)
    position = 0
    while position < size:
        key = data[position]
        end = field_end(data, position)
        if end > size:
            return None
        start = value_start(data, position)
        if key == _INPUT:
            sent = _input(data, start, end)
            if sent is None:
                return None
            inputs.append(sent)
        elif key == _OUTPUT:
            requested = _output(data, start, end)
            if requested is None:
                return None
            outputs.append(requested)
        else:
            return None
        if len(inputs) > LIMITS.tensors or len(outputs) > LIMITS.tensors:
            return None
        position = end
    return Head(tuple(inputs), tuple(outputs), len(inputs), len(outputs))


def _input(data: bytes, position: int, end: int) -> Input | None:
    """The input from `position` to `end`; None for one with contents, among others."""
    name = datatype = ""
    if position < end and data[position] == _NAME:
        start, position = position, field_end(data, position)
        name = text(data, start, position)
    if position < end and data[position] == _DATATYPE:
        start, position = position, field_end(data, position)
        datatype = text(data, start, position)
    shape: Shape | None = ()
    if position < end and data[position] == _PACKED_SHAPE:
        start, position = value_start(data, position), field_end(data, position)
        shape = _dimensions(data, start, position, False) if position <= end else None
    elif position < end and data[position] == _DIMENSION:
        start = position
        while position < end and data[position] == _DIMENSION:
            position = read_varint(data, position + 1)[1]
        shape = _dimensions(data, start, position, True)
    parameters = _known_parameters(data, position, end, _INPUT_PARAMETER, OF_INPUTS)
    if shape is None or parameters is None:
        return None
    return Input(name, dtypes.BY_NAME.get(datatype, dtypes.INVALID), shape, parameters, None)


def _output(data: bytes, position: int, end: int) -> Output | None:
    name = ""
    if position < end and data[position] == _NAME:
        start, position = position, field_end(data, position)
        name = text(data, start, position)
    parameters = _known_parameters(data, position, end, _OUTPUT_PARAMETER, OF_OUTPUTS)
    return None if parameters is None else Output(name, parameters)


def _dimensions(data: bytes, position: int, end: int, keyed: bool) -> Shape | None:
    """A shape; `keyed`: a byte before each dimension is the field's key."""
    dimensions: list[int] = []
    while position < end:
        if keyed:
            position += 1
        size = data[position]
        if size < 0x80:
            position += 1
        else:
            number, position = read_varint(data, position)
            if number >= 2**64:
                return None
            size = signed(number)
        dimensions.append(size)
    return tuple(dimensions) if position == end else None


def _known_parameters(
    data: bytes, position: int, end: int, field_key: int, names: tuple[str, ...]
) -> dict[str, Parameter] | None:
    """Those of `names` among the parameters from `position` to `end`; None for anything but parameters there."""
    if position == end:
        return NO_PARAMETERS
    parameters: dict[str, Parameter] = {}
    if read_parameters(data, position, end, field_key, parameters) != end:
        return None
    return {name: parameters[name] for name in names if name in parameters}


def read_parameters(data: bytes, position: int, limit: int, field_key: int, parameters: dict[str, Parameter]) -> int:
    """Fill `parameters` with those from `position` on; returns where they end, -1 if one of them is unusual.

    `field_key` is that of their field; none ends behind `limit`.
    """
    size = len(data)
    while position < size and data[position] == field_key:
        end = field_end(data, position)
        if end > limit or len(parameters) >= LIMITS.parameters:
            return -1
        start = value_start(data, position)
        if data[start] != _ENTRY_KEY:
            return -1
        value = field_end(data, start)
        if value >= end or data[value] != _ENTRY_VALUE or field_end(data, value) != end:
            return -1
        name = text(data, start, value)
        parameter = _parameter(data, value_start(data, value), end)
        if parameter is None or name in parameters:
            return -1
        parameters[name] = parameter
        position = end
    return position


def _parameter(data: bytes, position: int, end: int) -> Parameter | None:
    """The ``InferParameter`` from `position` to `end`; None if it has not one field."""
    if position >= end:
        return None
    key = data[position]
    if key == _STRING:
        return ("string_param", text(data, position, end)) if field_end(data, position) == end else None
    if key == _DOUBLE:
        if position + 9 != end:
            return None
        double: float = _double.unpack_from(data, position + 1)[0]
        return "double_param", double
    number, behind = read_varint(data, position + 1)
    if behind != end or number >= 2**64:
        return None
    if key == _BOOL:
        return "bool_param", number != 0
    if key == _INT64:
        return "int64_param", signed(number)
    return ("uint64_param", number) if key == _UINT64 else None


def field_end(data: bytes, position: int) -> int:
    """Where a field ends that has a length, and whose key is one byte at `position`."""
    length = data[position + 1]
    if length < 0x80:
        return position + 2 + length
    length, position = long_length(data, position + 1)
    return position + length


def long_length(data: bytes, position: int) -> tuple[int, int]:
    """As `read_varint`. Raises WireError for more bytes than are needed, which protobuf takes some of.

    And for what no message is as long as: a position that has more than 64 bits is no IndexError in compiled code.
    """
    length, position = read_varint(data, position)
    if not data[position - 1]:
        raise WireError("a length has more bytes than it needs")
    if length > _LONGEST:
        raise WireError("a field extends beyond its message")
    return length, position


def value_start(data: bytes, position: int) -> int:
    """Where the value of such a field begins."""
    position += 1
    while data[position] > 0x7F:
        position += 1
    return position + 1


def text(data: bytes, position: int, end: int) -> str:
    return data[value_start(data, position) : end].decode()

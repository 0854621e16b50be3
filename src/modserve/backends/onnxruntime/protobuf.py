"""The protobuf wire format, as far as reading and editing ONNX files without the `onnx` package needs it."""

from collections.abc import Iterator
from typing import NamedTuple

from modserve.core.tensor import Buffer

VARINT, LENGTH_DELIMITED = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}


class Field(NamedTuple):
    """A field of a message, and where it lies: its key is at `head`, what it contains from `start` to `end`."""

    number: int
    kind: int
    head: int
    start: int
    end: int


def fields(data: Buffer, position: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message from `position` to `end`. Raises ValueError or IndexError for what is no message."""
    end = len(data) if end is None else end
    while position < end:
        head = position
        key, position = read_varint(data, position)
        kind, number = key & 7, key >> 3
        if not number:
            raise ValueError("a field with the number 0")
        start = position
        if kind == LENGTH_DELIMITED:
            size, start = read_varint(data, position)
            if size > end - start:
                raise ValueError("a field that is longer than its message")
            position = start + size
        elif kind == VARINT:
            _, position = read_varint(data, position)
        elif kind in _FIXED_SIZES:
            position += _FIXED_SIZES[kind]
        else:
            raise ValueError("a field of an unknown kind")
        yield Field(number, kind, head, start, position)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """An unsigned number, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than ten bytes")


def integers(data: Buffer, field: Field) -> list[int]:
    """The elements of one occurrence of a repeated int64 field, packed or not."""
    values, position = [], field.start
    while position < field.end:
        value, position = read_varint(data, position)
        values.append(value - 2**64 if value >= 2**63 else value)
    return values


def varint(value: int) -> bytes:
    """An unsigned number in its encoded form."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(content)) + content

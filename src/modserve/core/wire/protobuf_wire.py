"""Protobuf's wire format, for bytes that are read or written without message objects (protobuf.dev, "Encoding").

A message is a row of fields. Each has a key, the field's number and wire type in one varint, and then its value.
Reading functions raise `WireError` for an invalid message, and IndexError if `data` ends within a number.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from .byte_strings import Buffer

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2
_FIXED_SIZES: Final[dict[int, int]] = {1: 8, 5: 4}
"""Bytes of the values of fixed size, by wire type."""


class WireError(ValueError):
    """The bytes are no message."""


class WireField(NamedTuple):
    """A field of a message, and where it lies: its key is at `head`, its value from `start` to `end`.

    The length that stands before a value belongs to neither.
    """

    number: int
    kind: int
    head: int
    start: int
    end: int


def fields(data: Buffer, position: int = 0, end: int | None = None) -> Iterator[WireField]:
    """Yield the fields of the message from `position` to `end`, by default the end of `data`."""
    stop = len(data) if end is None else end
    while position < stop:
        head = position
        key, position = read_varint(data, position)
        start, position = value_span(data, position, stop, key)
        yield WireField(key >> 3, key & 7, head, start, position)


def value_span(data: Buffer, position: int, end: int, key: int) -> tuple[int, int]:
    """Return the start and end of the value after a field's `key`, at `position`. The message extends to `end`.

    Groups, which no format in use has, are refused.
    """
    kind = key & 7
    start = position
    if kind == LENGTH_DELIMITED:
        size, start = read_varint(data, position)
        position = start + size
    elif kind == VARINT:
        position = read_varint(data, position)[1]
    elif kind in _FIXED_SIZES:
        position += _FIXED_SIZES[kind]
    else:
        raise WireError(f"a field has wire type {kind}")
    if key < 8:
        raise WireError("a field has the number 0")
    if position > end:
        raise WireError("a field extends beyond its message")
    return start, position


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned number, and return it with the position after it."""
    number = data[position]
    if number < 0x80:
        return number, position + 1
    number &= 0x7F
    for shift in range(7, 70, 7):
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position + 1
    raise WireError("a number has more than ten bytes")


def integers(data: Buffer, field: WireField) -> list[int]:
    """Read the elements of one occurrence of a repeated int64 field, packed or not."""
    values: list[int] = []
    position = field.start
    while position < field.end:
        value, position = read_varint(data, position)
        values.append(to_signed(value))
    return values


def to_signed(value: int) -> int:
    """Return the int64 encoded as the unsigned number `value`."""
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """Encode an unsigned number."""
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE: Final[list[bytes]] = [bytes([value]) for value in range(0x80)]


def number_field(number: int, value: int) -> bytes:
    """Encode a field of an integer type; negative values of int32 and int64 take 64 bits."""
    return varint(number << 3 | VARINT) + varint(value if value >= 0 else value + 2**64)


def bytes_field(number: int, content: bytes) -> bytes:
    """Encode a field that contains text, bytes, a message or packed numbers."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(content)) + content

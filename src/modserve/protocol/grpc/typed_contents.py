"""``InferTensorContents`` as it came, with any number of elements: to the raw form, without a message in between.

The elements are counted before anything is made of them. No step takes so long that other threads wait for it.
"""

from collections.abc import Callable

import numpy as np
from google.protobuf.message import DecodeError

from modserve.core.errors import invalid
from modserve.core.runtime.event_loop import yield_now
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Buffer
from modserve.core.wire.protobuf_wire import WireError, read_varint, value_span

FIELDS = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
"""The fields in the order of their numbers, from 1 on, and the datatype by which Triton's messages name each."""
_ORDER = tuple(FIELDS)

ELEMENT_MEMORY = 64
"""Bytes that an element of BYTES takes besides its own, once an engine reads it."""

_FIXED = {"fp32_contents": (5, 4), "fp64_contents": (1, 8)}
"""The wire type of a single element, and its size."""
_WIDE = {
    "bool_contents": np.uint64,
    "int_contents": np.int32,
    "int64_contents": np.int64,
    "uint_contents": np.uint32,
    "uint64_contents": np.uint64,
}
"""Elements as protobuf has them, which drops further bits."""
_BLOCK = 64 * 1024
_UNTIL_OTHERS = 64 * 1024
"""Bytes of elements after which other threads may run."""
_LONGEST = 10
"""Bytes of a number."""


class ElementsError(ValueError):
    """Number of elements, `count`, that differs from the announced one."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} elements")
        self.count = count


class FieldError(ValueError):
    """The elements are in `field`, which is not the datatype's; an empty one: in more than one field."""

    def __init__(self, field: str) -> None:
        super().__init__(f"elements in '{field}'")
        self.field = field


def decode(contents: Buffer, datatype: Datatype, count: int, name: str, take: Callable[[int], None]) -> Buffer | None:
    """Decode the `count` elements of input `name` to their raw form; None if there is no element.

    `take` is called with the bytes that are needed next.

    Raises INVALID_ARG as `narrow_elements` does, `FieldError`, `ElementsError`, and DecodeError for what is no such
    message. For too many elements of BYTES the raw form has one more than announced, so that its check fails.
    """
    try:
        if datatype is dtypes.BYTES:
            return _texts(contents, count, take)
        return _numbers(contents, datatype, count, name, take)
    except (WireError, IndexError) as error:
        why = str(error) if isinstance(error, WireError) else "a field extends beyond the message"
        raise DecodeError(why) from None


def _texts(contents: Buffer, count: int, take: Callable[[int], None]) -> Buffer | None:
    data, end = contents, len(contents)
    tag = len(FIELDS) << 3 | 2
    take(end + (ELEMENT_MEMORY + 4) * max(0, min(count, end // 2)))
    raw = bytearray()
    position = elements = 0
    pause = _UNTIL_OTHERS
    while position < end:
        if position > pause:
            yield_now()
            pause = position + _UNTIL_OTHERS
        if data[position] != tag:
            position = _other_field(data, position, end, "bytes_contents", elements > 0)
            continue
        size = data[position + 1]
        position += 2
        if size > 0x7F:
            size, position = read_varint(data, position - 1)
        stop = position + size
        if stop > end:
            raise DecodeError("an element extends beyond the message")
        raw += size.to_bytes(4, "little")
        raw += data[position:stop]
        position = stop
        elements += 1
        if elements > count:
            break
    return raw if elements else None


def _numbers(contents: Buffer, datatype: Datatype, count: int, name: str, take: Callable[[int], None]) -> Buffer | None:
    field = datatype.contents_field or ""
    packed = _join_elements(contents, field)
    if packed is None:
        return None
    if field in _FIXED:
        if len(packed) % datatype.size:
            raise DecodeError("an element is incomplete")
        return packed  # little-endian, as in the raw form
    data = np.frombuffer(packed, np.uint8)
    elements_sent = sum(
        int(np.count_nonzero(data[start : start + _BLOCK] < 0x80)) for start in range(0, len(data), _BLOCK)
    )
    if data[-1] > 0x7F:
        raise DecodeError("an element is incomplete")
    if elements_sent != count:
        raise ElementsError(elements_sent)
    take(count * datatype.size)
    elements = np.empty(count, datatype.numpy)
    position = done = 0
    while position < len(data):
        values, size = _block(data[position : position + _BLOCK])
        wide = values.astype(_WIDE[field])
        stop = done + len(values)
        if field == "bool_contents":
            elements[done:stop] = wide != 0
        else:
            elements[done:stop] = wide if datatype.size >= 4 else narrow_elements(name, datatype, wide, done)
        position += size
        done = stop
    return elements.view(np.uint8).data


def narrow_elements(name: str, datatype: Datatype, wide: Array, first: int) -> Array:
    """Return elements of a datatype of less than 32 bits; `wide` are those from index `first` on.

    Raises INVALID_ARG for one out of range.
    """
    narrow: Array = wide.astype(datatype.numpy)
    if not np.array_equal(wide, narrow):
        index = int(np.flatnonzero(wide != narrow)[0])
        bounds = np.iinfo(datatype.numpy)
        raise invalid(
            f"element {first + index} of input '{name}' is {wide[index]}, {datatype.name} takes {bounds.min} to "
            f"{bounds.max}"
        )
    return narrow


def _join_elements(contents: Buffer, field: str) -> Buffer | None:
    """Join the elements. Most often they came as one piece."""
    number, end = _ORDER.index(field) + 1 if field else 0, len(contents)
    kind, size = _FIXED.get(field, (0, 0))
    single, together = number << 3 | kind, number << 3 | 2
    piece: Buffer | None = None
    pieces: bytearray | None = None
    position, pause = 0, _UNTIL_OTHERS
    while position < end:
        if position > pause:
            yield_now()
            pause = position + _UNTIL_OTHERS
        tag = contents[position]
        start = position + 1
        if tag == together and number:
            length, start = read_varint(contents, start)
            position = start + length
        elif tag == single and number:
            position = start + size if size else read_varint(contents, start)[1]
        else:
            position = _other_field(contents, position, end, field, piece is not None)
            continue
        if position > end:
            raise DecodeError("an element extends beyond the message")
        if start == position:
            continue
        if piece is None:
            piece = contents[start:position]
        elif pieces is None:
            piece = pieces = bytearray(piece) + contents[start:position]
        else:
            pieces += contents[start:position]
    return piece


def _block(block: Array) -> tuple[Array, int]:
    """Return the numbers that are whole in `block`, as 64 bits, and how many bytes they take."""
    ends = np.flatnonzero(block < 0x80)
    if not len(ends):
        raise DecodeError("a number has more than ten bytes")
    size = int(ends[-1]) + 1
    if len(ends) == size:
        return block[:size].astype(np.uint64), size
    starts = np.empty_like(ends)
    starts[0] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST:
        raise DecodeError("a number has more than ten bytes")
    values = (block[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        values[longer] |= (block[starts[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values, size


def _other_field(data: Buffer, position: int, end: int, expected: str, some: bool) -> int:
    """Return the position behind a field that is not `expected`. Raises `FieldError` if it has elements."""
    tag, start = read_varint(data, position)
    stop = value_span(data, start, end, tag)[1]
    number = tag >> 3
    if 1 <= number <= len(_ORDER) and _ORDER[number - 1] != expected:
        empty = tag & 7 == 2 and number != len(_ORDER) and data[start] == 0
        if not empty:
            raise FieldError("" if some else _ORDER[number - 1])
    return stop

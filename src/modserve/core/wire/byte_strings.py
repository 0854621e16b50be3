"""BYTES in the protocol's raw form: elements, each preceded by its length in 4 bytes, little-endian.

Long ones are counted and decoded in parts, between which other threads run.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from modserve.core.runtime.event_loop import yield_now

Buffer: TypeAlias = bytes | bytearray | memoryview
Array: TypeAlias = np.ndarray[Any, Any]

_LENGTH = struct.Struct("<I")

_LONG = 256 * 1024
"""Bytes of raw BYTES that are counted and decoded in parts."""
_AT_A_TIME = 32 * 1024
"""Elements of which something is made in one go, in which no other thread runs."""
_ALIKE = 64
"""Elements of one length in a row after which the next are likely to have it, too."""
_MOST = 2**63 - 1
_UNTIL_OTHERS = 4 * _AT_A_TIME
"""Bytes of raw BYTES after which other threads may run."""


def encode_array(flat: Array) -> bytes:
    """Encode BYTES elements to the raw form, some at a time."""
    return b"".join([encode_elements(some) for some in in_lists(flat)])


def in_lists(flat: Array) -> Iterator[list[bytes]]:
    """Yield the elements, some at a time."""
    for start in range(0, len(flat), _AT_A_TIME):
        if start:
            yield_now()
        yield flat[start : start + _AT_A_TIME].tolist()


def decode_array(raw: Buffer, count: int) -> Array:
    """Decode the `count` elements of a raw BYTES tensor."""
    array = np.empty(count, dtype=object)
    if len(raw) <= _LONG:
        array[:] = decode_elements(raw)
        return array
    count_so_far = 0
    for some in _decode_some(bytes(raw)):
        array[count_so_far : count_so_far + len(some)] = some
        count_so_far += len(some)
    if count_so_far != count:
        raise ValueError(f"{count_so_far} elements for a tensor of {count}")
    return array


def encode_elements(elements: Iterable[bytes]) -> bytes:
    """Encode BYTES elements: each after its length, a 4-byte little-endian unsigned integer."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


class TruncatedError(ValueError):
    """Error for raw BYTES that end inside an element. `complete` elements precede it; `left` bytes are left over."""

    def __init__(self, complete: int, left: int, in_length: bool) -> None:
        super().__init__(f"{left} bytes left after {complete} elements")
        self.complete = complete
        self.left = left
        self.in_length = in_length


def decode_elements(raw: Buffer) -> list[bytes]:
    """Decode the elements of a raw BYTES tensor. Raises `TruncatedError`."""
    data = bytes(raw)
    out: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        start = position + 4
        if start > end:
            raise TruncatedError(len(out), end - position, in_length=True)
        position = start + int.from_bytes(data[position:start], "little")
        if position > end:
            raise TruncatedError(len(out), end - start, in_length=False)
        out.append(data[start:position])
    return out


def _decode_some(data: bytes) -> Iterator[list[bytes]]:
    """Decode a long tensor like `decode_elements`, about `_AT_A_TIME` elements at a time."""
    alike = 0
    some: list[bytes] = []
    position, end, pause = 0, len(data), _UNTIL_OTHERS
    while position < end:
        if position > pause:
            yield_now()
            pause = position + _UNTIL_OTHERS
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        some.append(data[start:position])
        if position > start:
            alike = 0
        else:
            alike += 1
            if alike >= _ALIKE:
                times = _alike(data, position, 0)
                alike = _ALIKE if times >= _AT_A_TIME else 0
                some += [b""] * times
                position += 4 * times
        if len(some) >= _AT_A_TIME:
            yield some
            some = []
    if position > end:
        raise ValueError("the last element is incomplete")
    yield some


def count_elements(raw: Buffer, most: int = _MOST) -> int:
    """Count the elements of a raw BYTES tensor, of a long one at most `most` + 1. Raises `TruncatedError`."""
    view = memoryview(raw)
    unpack = _LENGTH.unpack_from
    count = 0
    position, end = 0, len(view)
    if end > _LONG:
        return _count_many(view, most)
    while position < end:
        if position + 4 > end:
            raise TruncatedError(count, end - position, in_length=True)
        following = position + 4 + unpack(view, position)[0]
        if following > end:
            raise TruncatedError(count, end - position - 4, in_length=False)
        count += 1
        position = following
    return count


def _count_many(view: memoryview, most: int) -> int:
    """Count many elements, runs of equal lengths not one by one."""
    unpack = _LENGTH.unpack_from
    count = alike = 0
    before = -1
    position, end, pause = 0, len(view), _UNTIL_OTHERS
    while position < end and count <= most:
        if position > pause:
            yield_now()
            pause = position + _UNTIL_OTHERS
        if position + 4 > end:
            raise TruncatedError(count, end - position, in_length=True)
        length = unpack(view, position)[0]
        following = position + 4 + length
        if following > end:
            raise TruncatedError(count, end - position - 4, in_length=False)
        count += 1
        position = following
        if length != before:
            before, alike = length, 0
        else:
            alike += 1
            if alike >= _ALIKE:
                times = _alike(view, position, length)
                alike = _ALIKE if times >= _AT_A_TIME else 0
                count += times
                position += times * (4 + length)
    return min(count, most + 1)


def _alike(raw: Buffer, position: int, length: int) -> int:
    """Count the consecutive elements of this length from `position`, up to `_AT_A_TIME`: faster than one by one."""
    step = 4 + length
    room = (len(raw) - position) // step
    count, look = 0, _ALIKE
    while count < min(room, _AT_A_TIME):
        look = min(look, room - count)
        lengths = np.ndarray((look,), "<u4", raw, position + count * step, (step,))
        others = np.flatnonzero(lengths != length)
        if len(others):
            return count + int(others[0])
        count += look
        look *= 2
    return count

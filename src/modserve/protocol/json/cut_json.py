"""Parser for JSON with long arrays: these are cut out and parsed in pieces, the rest is parsed as a whole.

Parsing blocks the interpreter, and creates objects of up to thirty times the text's size.
"""

import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from modserve.protocol.json.json_text import JsonObject, parse_any
from modserve.protocol.json.long_array import LongArray
from modserve.protocol.limits import LIMITS

WORTHWHILE = 4 * 1024
"""Minimum size in bytes of an array to cut out."""
_MOST_MISSES = 16
"""Number of keys without a recognised array after which the rest is left unchanged: each is read to the end."""
_MOST_KEYS = 4 * LIMITS.tensors
"""Maximum number of occurrences of a key that are examined; no request needs as many."""
_BLANK = b" \t\r\n"
_SEARCH_CHUNK = 256 * 1024
"""Bytes searched at a time, while no other thread runs."""
Take = Callable[[object], LongArray | None]
"""Returns the array that a value of the parsed document stands for; None for another value."""


@dataclass(frozen=True, slots=True)
class ArrayCutter:
    """Rules for cutting arrays out of one kind of document."""

    keys: tuple[bytes, ...]
    """Keys of the arrays, in quotes."""
    find: Callable[[bytes, int], LongArray | None]
    """Returns the array at a position; None if there is none to cut out."""
    place: Callable[[JsonObject, Take], None]
    """Puts the arrays in their places. Others stay in the document."""
    check: Callable[[Iterable[bytes], Iterable[LongArray]], None]
    """Raises INVALID_ARG if these parts of the document and arrays are too large to be parsed as a whole."""


def parse(text: bytes, cutter: ArrayCutter, kept: Collection[int] = ()) -> object:
    """Parse the document, with some arrays as a `LongArray`; `kept`: positions of arrays not to cut out.

    Raises INVALID_ARG.
    """
    arrays = [array for array in _arrays(text, cutter) if array.start not in kept]
    mark = secrets.token_hex(8)  # unpredictable, so no string of the client begins with it
    parts: list[bytes] = []
    position = 0
    for index, array in enumerate(arrays):
        parts += (text[position : array.start], b'"%b%d"' % (mark.encode(), index))
        position = array.stop
    parts.append(text[position:])
    cutter.check(parts, ())
    document = parse_any(b"".join(parts), _origin(parts, arrays))
    placed: set[int] = set()

    def take(value: object) -> LongArray | None:
        if not isinstance(value, str) or not value.startswith(mark):
            return None
        index = int(value[len(mark) :])
        placed.add(index)
        return arrays[index]

    if isinstance(document, dict):
        cutter.place(document, take)
    if len(placed) == len(arrays):
        return document
    others = [array for index, array in enumerate(arrays) if index not in placed]
    cutter.check(parts, others)
    return parse(text, cutter, {*kept, *(array.start for array in others)})


def _arrays(text: bytes, cutter: ArrayCutter) -> list[LongArray]:
    """Return the long arrays after one of the keys, in order, at any depth of the document."""
    candidates = [array for key in cutter.keys for array in _arrays_after(text, key, cutter.find)]
    arrays: list[LongArray] = []
    for array in sorted(candidates, key=lambda each: each.start):
        if not arrays or array.start >= arrays[-1].stop:
            arrays.append(array)
    return arrays


def _arrays_after(text: bytes, key: bytes, find: Callable[[bytes, int], LongArray | None]) -> list[LongArray]:
    arrays: list[LongArray] = []
    misses = keys = 0
    position = _next_key(text, key, 0)
    while position >= 0 and keys < _MOST_KEYS and misses < _MOST_MISSES:
        keys += 1
        colon = _after_blanks(text, position)
        start = _after_blanks(text, colon + 1)
        if text[colon : colon + 1] == b":" and text[start : start + 1] == b"[":
            position = start
            array = find(text, start)
            if array is None:
                misses += 1
            else:
                position = array.stop
                if len(array) >= WORTHWHILE:
                    arrays.append(array)
        position = _next_key(text, key, position)
    return arrays


def _next_key(text: bytes, key: bytes, position: int) -> int:
    """Return the position after the first `key` from `position` on, which may end a longer key; -1 if there is none."""
    while position < len(text):
        start = text.find(key, position, position + _SEARCH_CHUNK + len(key) - 1)
        if start >= 0:
            return start + len(key)
        position += _SEARCH_CHUNK
    return -1


def _after_blanks(text: bytes, position: int) -> int:
    size = 16
    while piece := text[position : position + size]:
        rest = len(piece.lstrip(_BLANK))
        position += len(piece) - rest
        if rest:
            break
        size = min(2 * size, _SEARCH_CHUNK)
    return position


def _origin(parts: list[bytes], arrays: list[LongArray]) -> Callable[[int], int]:
    """Return a function from a position in the joined `parts` to its position in the text."""

    def origin(position: int) -> int:
        for index, array in enumerate(arrays):
            before, mark = parts[2 * index : 2 * index + 2]
            if position < len(before):
                return array.start - len(before) + position
            position -= len(before)
            if position < len(mark):
                return array.start
            position -= len(mark)
        return (arrays[-1].stop if arrays else 0) + position

    return origin

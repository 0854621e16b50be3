"""Long JSON requests, of which the inputs' `data` are cut out first and parsed in pieces.

A way beside `http_infer.parse`, with the same results, that takes little more memory than the tensors. All JSON that is
not `data` of an input is limited: it is parsed as a whole.
"""

import secrets
from collections.abc import Callable, Collection

from modserve.core.errors import ModserveError, invalid
from modserve.core.tensor import Buffer

from . import long_array
from .json_data import JsonTypeError, unable
from .json_text import parse_any
from .limits import LIMITS
from .long_array import LongArray

LARGE = 32 * 1024
"""Bytes of a request from which on it is read in this way."""

_WORTHWHILE = 4 * 1024
"""Bytes of `data` that are cut out."""
_MOST_MISSES = 16
"""Keys ``data`` without an array that is understood. The rest is left as it is then: each is read to the end."""
_MOST_KEYS = 4 * LIMITS.tensors
"""Keys ``data`` that are looked at; no request has use for as many."""
_KEY = b'"data"'
_BLANK = b" \t\r\n"
_LOOK = 256 * 1024
"""Bytes that are searched in one go, in which no other thread runs."""

JsonObject = dict[str, object]


def parse(text: Buffer) -> JsonObject:
    """The request object in `text`, where the `data` of inputs may be a `LongArray`. Raises INVALID_ARG."""
    return _parse(bytes(text), frozenset())


def _parse(text: bytes, kept: Collection[int]) -> JsonObject:
    """`kept` are the places of arrays that are left in the document."""
    arrays = [array for array in _arrays(text) if array.start not in kept]
    mark = secrets.token_hex(8)  # nobody can know it, so that no string of the client's begins with it
    parts: list[bytes] = []
    position = 0
    for index, array in enumerate(arrays):
        parts += (text[position : array.start], b'"%b%d"' % (mark.encode(), index))
        position = array.stop
    parts.append(text[position:])
    _check_size(sum(map(len, parts)))
    rest = b"".join(parts)
    document = parse_any(rest, _origin(parts, arrays))
    if not isinstance(document, dict):
        raise unable("inputs", JsonTypeError("object", "object"))
    placed = _place(document, arrays, mark)
    if len(placed) == len(arrays):
        return document
    others = [array for index, array in enumerate(arrays) if index not in placed]
    _check_size(len(rest) + sum(map(len, others)))
    return _parse(text, {*kept, *(array.start for array in others)})


def _arrays(text: bytes) -> list[LongArray]:
    """What follows a key ``data``, if it is a long array. It may be anywhere in the document."""
    arrays: list[LongArray] = []
    misses = keys = 0
    position = _next_key(text, 0)
    while position >= 0 and keys < _MOST_KEYS and misses < _MOST_MISSES:
        keys += 1
        colon = _after_blanks(text, position)
        start = _after_blanks(text, colon + 1)
        if text[colon : colon + 1] == b":" and text[start : start + 1] == b"[":
            position = start
            array = long_array.find_end(text, start)
            if array is None:
                misses += 1
            else:
                position = array.stop
                if len(array) >= _WORTHWHILE:
                    arrays.append(array)
        position = _next_key(text, position)
    return arrays


def _next_key(text: bytes, position: int) -> int:
    """Behind the first key ``data`` from `position` on; -1 if there is none."""
    while position < len(text):
        start = text.find(_KEY, position, position + _LOOK + len(_KEY) - 1)
        if start < 0:
            position += _LOOK
        elif text[max(0, start - 1) : start] != b"\\":
            return start + len(_KEY)
        else:  # in a string
            position = start + len(_KEY)
    return -1


def _after_blanks(text: bytes, position: int) -> int:
    size = 16
    while piece := text[position : position + size]:
        rest = len(piece.lstrip(_BLANK))
        position += len(piece) - rest
        if rest:
            break
        size = min(2 * size, _LOOK)
    return position


def _place(document: JsonObject, arrays: list[LongArray], mark: str) -> set[int]:
    """Put the arrays where they belong, if that is the `data` of an input; which ones those are."""
    placed: set[int] = set()
    inputs = document.get("inputs")
    for each in inputs if isinstance(inputs, list) else ():
        data = each.get("data") if isinstance(each, dict) else None
        if isinstance(data, str) and data.startswith(mark):
            index = int(data[len(mark) :])
            each["data"] = arrays[index]
            placed.add(index)
    return placed


def _origin(parts: list[bytes], arrays: list[LongArray]) -> Callable[[int], int]:
    """Where in the text a position in the joined `parts` is."""

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


def _check_size(size: int) -> None:
    if size > LIMITS.other_json:
        raise too_much(size)


def too_much(size: int) -> ModserveError:
    return invalid(
        f"the request has {size} bytes of JSON that are not the 'data' of an input, at most {LIMITS.other_json} are "
        "possible"
    )

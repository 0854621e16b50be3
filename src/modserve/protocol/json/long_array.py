"""A long JSON array, parsed piece by piece.

The Python objects of a whole array take up to thirty times the memory of its text, and no other thread runs while they
are made. Here they exist for one piece at a time. A piece ends before a comma that separates two elements, at any
depth: with the brackets that are open there put before and behind it, it is an array of its own.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from modserve.protocol.json.json_text import MAX_DEPTH, parse_any, syntax_error

_PIECE = 64 * 1024
"""Bytes of a piece, about. One has as many elements at most."""
_QUOTE, _COMMA, _OPEN, _CLOSE, _BRACE = b'",[]{'
_BLANK = b" \t\r\n"


class _Piece(NamedTuple):
    """Bytes `start` to `stop` of the text, with the numbers of arrays that are open before and after it.

    `parts` are its elements and empty arrays, unless it is malformed.
    """

    start: int
    stop: int
    before: int
    after: int
    parts: int


class LongArray:
    """Array in `text`, scanned only for strings and brackets so far."""

    __slots__ = ("_pieces", "_text")

    def __init__(self, text: bytes, pieces: list[_Piece]) -> None:
        self._text = text
        self._pieces = pieces

    @property
    def start(self) -> int:
        return self._pieces[0].start

    @property
    def stop(self) -> int:
        return self._pieces[-1].stop

    @property
    def parts(self) -> int:
        """Number of elements and empty arrays, at any depth."""
        return sum(self.parts_of_lists())

    def parts_of_lists(self) -> list[int]:
        """Return `parts` for each of `lists`."""
        return [piece.parts for piece in self._pieces]

    def shape(self) -> tuple[int, ...]:
        """Return the lengths of the arrays at each depth, of an array without strings that `lists` can read.

        Raises `UnevenError` if they are no tensor's. What is taken for an element here may be none: then `lists` has
        another number of elements, or raises.
        """
        depth = _leading(self._text, self.start)
        below: list[int] = []  # elements of an array one level up, two levels up, and so on, as far as is known
        elements = closed = opened = 0
        for start, stop, _, _, _ in self._pieces:
            marks = np.frombuffer(self._text, np.uint8, min(stop + 1, self.stop) - start, start)
            opening, closing = marks == _OPEN, marks == _CLOSE
            commas = np.flatnonzero(marks == _COMMA)
            before = np.arange(elements + 1, elements + 1 + len(commas))
            closes = closed + np.cumsum(closing)[commas]
            opens = opened + np.cumsum(opening)[commas]
            while len(
                wrong := np.flatnonzero(closes != sum((before // each for each in below), np.zeros_like(before)))
            ):
                # Here arrays end that had not ended before: they are the first of their depth.
                first = int(wrong[0])
                index = int(before[first])
                ended = int(closes[first]) - sum((index - 1) // each for each in below)
                if not len(below) < ended < depth or any(index % each for each in below):
                    raise UnevenError(index)
                below += [index] * (ended - len(below))
            wrong = np.flatnonzero(opens != sum(((before - 1) // each for each in below), np.full_like(before, depth)))
            if len(wrong):
                raise UnevenError(int(before[wrong[0]]) - 1)
            elements += len(commas)
            closed += int(np.count_nonzero(closing))
            opened += int(np.count_nonzero(opening))
        elements += 1
        if any(elements % each for each in below) or opened != depth + sum((elements - 1) // each for each in below):
            raise UnevenError(elements - 1)
        below += [elements] * (depth - len(below))
        return tuple(outer // inner for inner, outer in reversed(list(pairwise([1, *below]))))

    def __len__(self) -> int:
        """Return the bytes of text, which are more than there are elements."""
        return self.stop - self.start

    def lists(self) -> Iterator[list[object]]:
        """Yield the array's pieces as arrays, each element nested as it is in the whole. Raises INVALID_ARG."""
        text = self._text
        for start, stop, before, after, _ in self._pieces:
            some = text[start:stop]
            # An array that is opened at the end of a piece, or closed at its beginning, would pass for an empty one.
            if (before and some.lstrip(_BLANK)[:1] in b"]") or (after and some.rstrip(_BLANK)[-1:] in b"["):
                raise syntax_error("Expecting value", stop if after else start)
            shift = start - before
            value = parse_any(b"[" * before + some + b"]" * after, lambda position: position + shift)  # noqa: B023
            assert isinstance(value, list), "a piece is in brackets: this is a bug"
            yield value


class UnevenError(ValueError):
    """Arrays of one depth with different lengths or depths. `element` is the first one after which that shows."""

    def __init__(self, element: int) -> None:
        super().__init__(f"uneven before element {element}")
        self.element = element


def find_end(text: bytes, start: int) -> LongArray | None:
    """Return the array that begins at `start`; None if it has no end, too much depth, or objects as elements.

    Text between its brackets, commas and strings is not checked.
    """
    return find_numbers(text, start) or _with_strings(text, start)


def find_numbers(text: bytes, start: int) -> LongArray | None:
    """Return the array as `find_end` does, for arrays without a string."""
    # Behind it there is a comma and a key, or the end of the object. Single bytes are found very quickly.
    quote = text.find(b'"', start)
    stop = len(text) if quote < 0 else quote
    brace = text.find(b"}", start, stop)
    stop = stop if brace < 0 else brace
    behind = text[max(start, stop - _PIECE) : stop]
    stop -= len(behind) - len(behind.rstrip(_BLANK + b","))
    if text[stop - 1] != _CLOSE:
        return None
    pieces: list[_Piece] = []
    depth = 0
    while start < stop:
        cut = stop
        if start + _PIECE < stop:
            cut = text.rfind(b",", start, start + _PIECE)
            if cut < 0:
                return None
        after = depth + _count(text, _OPEN, start, cut) - _count(text, _CLOSE, start, cut)
        if not 0 <= after < MAX_DEPTH or (not after) != (cut == stop):
            return None
        pieces.append(_Piece(start, cut, depth, after, _count(text, _COMMA, start, cut) + 1))
        start, depth = cut + 1, after
    return LongArray(text, pieces) if not depth else None


def _leading(text: bytes, start: int) -> int:
    """Count the arrays that begin before the first element."""
    depth = 0
    while text[start] in _BLANK or text[start] == _OPEN:
        depth += text[start] == _OPEN
        start += 1
    return depth


def _count(text: bytes, mark: int, start: int, stop: int) -> int:
    if text.find(mark, start, stop) < 0:
        return 0
    return int(np.count_nonzero(np.frombuffer(text, np.uint8, stop - start, start) == mark))


def _with_strings(text: bytes, start: int) -> LongArray | None:
    pieces: list[_Piece] = []
    depth, size = 0, _PIECE
    while True:
        piece = _cut(text, start, min(start + size, len(text)), depth)
        if piece is None or piece.after >= MAX_DEPTH:
            return None
        if piece.stop > start:
            pieces.append(piece)
            if not piece.after:
                return LongArray(text, pieces)
            start, depth, size = piece.stop + 1, piece.after, _PIECE
        elif start + size >= len(text):
            return None
        else:
            size *= 2  # one string that is longer than this


def _cut(text: bytes, start: int, limit: int, depth: int) -> _Piece | None:
    """Return the piece from `start` up to the array's end, or the last comma outside strings; empty without one.

    None if it is nested too deeply or has objects.
    """
    some = text[start:limit]
    if b"\\" in some:
        some = some.replace(rb"\\", b"__").replace(rb"\"", b"__")
    marks = np.frombuffer(some, np.uint8)
    outside = np.cumsum(marks == _QUOTE, dtype=np.uint8) & 1 == 0
    brackets = np.flatnonzero(((marks == _OPEN) | (marks == _CLOSE)) & outside)
    levels = depth + np.cumsum(np.where(marks[brackets] == _OPEN, 1, -1))
    ends = np.flatnonzero(levels == 0)
    if len(ends):
        stop, after = int(brackets[ends[0]]) + 1, 0
        levels = levels[: ends[0]]
    else:
        if len(levels) and int(levels.max()) > MAX_DEPTH:
            return None
        commas = np.flatnonzero((marks == _COMMA) & outside)
        if not len(commas):
            return _Piece(start, start, depth, depth, 0)
        stop = int(commas[-1])
        levels = levels[: int(np.searchsorted(brackets, stop))]
        after = int(levels[-1]) if len(levels) else depth
    if len(levels) and int(levels.max()) > MAX_DEPTH:
        return None
    if ((marks[:stop] == _BRACE) & outside[:stop]).any():
        return None
    parts = int(np.count_nonzero((marks[:stop] == _COMMA) & outside[:stop])) + 1
    return _Piece(start, start + stop, depth, after, parts)

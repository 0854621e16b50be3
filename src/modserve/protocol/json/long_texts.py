"""JSON of which long texts are cut out first: what is left is parsed as a whole, and they are read in pieces.

Parsing holds the interpreter for as long as it takes, and so does reading a long text in one go: the event loop
waits, on any thread.
"""

import secrets
from collections.abc import Callable
from typing import NamedTuple

WORTHWHILE = 64 * 1024
"""Bytes of a text that is cut out."""
_MOST_QUOTES = 100_000
"""Most quotes to examine. The rest of the text is then left as it is."""

_LEFT_IN = (b"\\", b"\n", b"\r", b"\t")
"""Texts with an escape, or with a control character that JSON forbids, are left to the parser."""


class CutJson(NamedTuple):
    """A document in which unguessable marks replace long texts without escapes."""

    rest: bytes
    texts: dict[str, memoryview]
    """Long texts by the marks that stand for them."""
    origin: Callable[[int], int]
    """Function from a position in the rest to its position in the document."""


def cut(document: bytes) -> CutJson:
    """Cut out what looks like a long text. Of a document that is no JSON, that may be anything."""
    view, mark = memoryview(document), secrets.token_hex(8)
    texts: dict[str, memoryview] = {}
    parts: list[bytes] = []
    ends: list[tuple[int, int]] = []  # of each text: in the rest and in the document
    position = size = 0
    for start, stop in _long_texts(document):
        name = f"{mark}{len(texts)}"
        texts[name] = view[start:stop]
        parts += (document[position:start], name.encode())
        size += start - position + len(name)
        ends.append((size, stop))
        position = stop
    parts.append(document[position:])

    def origin(position: int) -> int:
        for end, stop in reversed(ends):
            if position >= end:
                return position - end + stop
        return position

    return CutJson(b"".join(parts), texts, origin)


def _long_texts(document: bytes) -> list[tuple[int, int]]:
    """Find the long texts without escapes, as positions between their quotes."""
    places: list[tuple[int, int]] = []
    quotes = 0
    end = document.find(b'"')
    while end >= 0 and quotes < _MOST_QUOTES:
        start = end + 1
        at = start
        while (end := document.find(b'"', at)) >= 0 and _is_escaped(document, at, end) and quotes < _MOST_QUOTES:
            at = end + 1
            quotes += 1
        if end - start >= WORTHWHILE and all(document.find(each, start, end) < 0 for each in _LEFT_IN):
            places.append((start, end))
        quotes += 1
        end = document.find(b'"', end + 1) if end >= 0 else -1
    return places


def _is_escaped(document: bytes, start: int, quote: int) -> bool:
    """True if an odd number of backslashes precedes a quote, from `start` on."""
    if document[quote - 1 : quote] != b"\\":
        return False
    before = document[start:quote]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1

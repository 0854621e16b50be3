"""Detection of the end of a text that arrives in pieces, by the stop sequences of its request."""

import codecs
from collections.abc import Sequence

_DECODER = codecs.getincrementaldecoder("utf-8")


class TextEnd:
    """Turns pieces of UTF-8 into text, up to the first of the stop sequences, which is left out unless `keep`.

    What may be the beginning of a stop sequence is held back until that is known, as are bytes of a character that is
    not complete. Models that know of stop sequences themselves are not hurt by it.
    """

    __slots__ = ("_decode", "_held", "_keep", "_stops", "reached")

    def __init__(self, stops: Sequence[str] = (), keep: bool = False) -> None:
        self._decode = _DECODER("replace").decode
        self._stops = stops
        self._keep = keep
        self._held = ""
        self.reached = False
        """True once a stop sequence has come: the rest is dropped."""

    def feed(self, piece: bytes, final: bool = False) -> str:
        """Add a piece and return the text that is certain by now."""
        if self.reached:
            return ""
        text = self._decode(piece, final)
        if not self._stops:
            return text
        text = self._held + text
        places = [(place, -len(stop)) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.reached, self._held = True, ""
            place, length = min(places)
            return text[: place - length if self._keep else place]
        kept = 0 if final else max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def overlap(text: str, mark: str) -> int:
    """Return the number of characters at the end of `text` that begin `mark`, which is not all in it."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0

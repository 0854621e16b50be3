"""Counts tokens with a model's own tokenizer, for models that do not count them."""

from collections.abc import Sequence
from pathlib import Path

from ..description import TOKENIZER
from ..tokenizer import Tokenizer, load

PART_CHARACTERS = 2048
"""Characters per counted part: half a millisecond of work, and the most that is kept of a stream."""


class TokenCount:
    """Token count of a text that arrives in pieces.

    It is counted in parts that end before a space; the sum is right for tokenizers that begin words there, as nearly
    all do.
    """

    __slots__ = ("_count", "_pieces", "_size", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: list[str] = []
        self._size = 0
        """Number of uncounted characters in the pieces."""
        self._count = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._size += len(piece)

    @property
    def uncounted(self) -> int:
        """Number of uncounted characters."""
        return self._size

    def advance(self) -> None:
        """Count the complete parts, if any."""
        if self._size >= PART_CHARACTERS:
            self._keep(self._count_parts("".join(self._pieces)))

    def total(self) -> int:
        """Return the number of tokens in all added text."""
        rest = self._count_parts("".join(self._pieces))
        self._keep("")
        self._count += self._tokenizer.count(rest) if rest else 0
        return self._count

    def _count_parts(self, text: str) -> str:
        """Count the complete parts of a text and return the rest."""
        start = 0
        while len(text) - start >= PART_CHARACTERS:
            end = start + PART_CHARACTERS
            space = text.rfind(" ", start + 1, end)
            end = space if space > 0 else end
            self._count += self._tokenizer.count(text[start:end])
            start = end
        return text[start:]

    def _keep(self, rest: str) -> None:
        self._pieces = [rest]
        self._size = len(rest)


def read_tokenizer(folder: Path | None) -> Tokenizer | None:
    """Return the tokenizer of a text generation model, from its file's or the model's directory; None if missing.

    Raises INTERNAL for an unusable file, UNSUPPORTED without the library.
    """
    places = () if folder is None else (folder, folder.parent)
    place = next((place for place in places if (place / TOKENIZER).is_file()), None)
    return None if place is None else load(place)


def count_prompts(tokenizer: Tokenizer, prompts: Sequence[str], special: bool) -> list[int]:
    """Return the number of tokens in prompts. `special`: add the tokenizer's own tokens; chat templates write these."""
    counts = []
    for prompt in prompts:
        count = TokenCount(tokenizer)
        count.add(prompt)
        counts.append(count.total() + (tokenizer.added if special else 0))
    return counts

"""Conversion of texts to tokens by the ``tokenizers`` library. Thread-safe."""

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from modserve.core.errors import ModserveError, invalid, unsupported
from modserve.core.pip_command import pip_install

from .description import TOKENIZER
from .files import broken, read_bytes

Text: TypeAlias = str | tuple[str, str]
"""A text, or a pair of texts, such as a query and a document."""
Ids: TypeAlias = NDArray[np.int64]

PIECE_CHARACTERS: Final = 64 * 1024
"""Characters that a thread tokenizes at a time: some 15 ms of work."""
PIECE_TEXTS: Final = 256


class Tokens:
    """Input of a model for a text: INT64 arrays of equal lengths.

    `types`: text of the pair for each token; None if all belong to the first. `cut`: number of tokens omitted from a
    long text. `places`: an element for each token; None if `encode` was not asked for them.
    """

    __slots__ = ("cut", "ids", "places", "types")

    def __init__(self, ids: Ids, types: Ids | None, cut: int = 0, places: "list[TokenPlace] | None" = None) -> None:
        self.ids = ids
        self.types = types
        self.cut = cut
        self.places = places


class TokenPlace(NamedTuple):
    """Position of a token in its text, which is number `part` of the pair; None for tokens that the tokenizer adds."""

    token: str
    part: int | None
    offsets: tuple[int, int]


class Tokenizer:
    """Tokenizer of a model's directory. Its file's truncation and padding are off: both depend on the request."""

    def __init__(self, library_object: Any) -> None:
        self._tokenizer = library_object
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._added = {pair: self._tokenizer.num_special_tokens_to_add(pair) for pair in (False, True)}
        self._types_texts = 1 in self._tokenizer.encode("a").type_ids  # also for single texts

    def encode(self, texts: Sequence[Text], most: int, *, keep_end: bool = False, places: bool = False) -> list[Tokens]:
        """Encode texts to at most `most` tokens each; of a pair, the longer text is truncated first. Raises
        INVALID_ARG.

        `keep_end`: truncate the beginning. `places`: include the tokens' positions, which takes longer.
        """
        encode = self._tokenizer.encode_batch if places else self._tokenizer.encode_batch_fast
        try:
            encodings = encode(list(texts))
        except Exception as error:  # the library has no error types of its own
            raise unreadable(error) from error
        return [self._tokens(one, text, most, keep_end, places) for text, one in zip(texts, encodings, strict=True)]

    @property
    def added(self) -> int:
        """Number of tokens that it adds to a single text."""
        return int(self._added[False])

    def count(self, text: str) -> int:
        """Return the number of tokens in a text, without added ones. Raises INVALID_ARG."""
        try:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception as error:  # the library has no error types of its own
            raise unreadable(error) from error
        return len(encoding)

    def prompt_length(self, prompt: str) -> int:
        """Return the number of tokens of a prompt at the beginning of a text, including added ones."""
        encoding = self._tokenizer.encode(prompt)
        return len(encoding.ids) - int(encoding.special_tokens_mask[-1:] == [1])

    def pieces(self, text: str, special: bool = True) -> Any:
        """Return an ``Encoding`` with the tokens' positions in the text."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=special)
        except Exception as error:
            raise unreadable(error) from error

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def of_ids(self, ids: Sequence[int], most: int) -> Tokens:
        """Return tokens supplied by a client. Raises INVALID_ARG for tokens outside the vocabulary."""
        for place, token in enumerate(ids):
            if not 0 <= token < self.size:
                raise invalid(f"token {place} is {token}, and the model's tokens are 0 to {self.size - 1}")
        return Tokens(np.array(ids[:most], np.int64), None, max(0, len(ids) - most))

    def _tokens(self, encoding: Any, text: Text, most: int, keep_end: bool, places: bool) -> Tokens:
        length, first = len(encoding), 0
        if length > most:
            encoding, first = self._encode_truncated(text, most, keep_end)
        elif places:
            first = encoding.sequence_ids.count(0)
        types = encoding.type_ids if self._types_texts or isinstance(text, tuple) else ()
        return Tokens(
            np.array(encoding.ids, np.int64),
            np.array(types, np.int64) if 1 in types else None,
            length - len(encoding),
            _places(encoding, first) if places else None,
        )

    def _encode_truncated(self, text: Text, most: int, keep_end: bool) -> tuple[Any, int]:
        """Return the encoding of a truncated text or pair, and how many of its tokens are of the first text."""
        pair = text if isinstance(text, tuple) else (text,)
        parts = [self._tokenizer.encode(one, add_special_tokens=False) for one in pair]
        room = max(0, most - self._added[len(parts) == 2])
        direction = "left" if keep_end else "right"
        sizes = shares([len(part) for part in parts], room)
        for part, size in zip(parts, sizes, strict=True):
            part.truncate(size, direction=direction)
        return self._tokenizer.post_process(*parts), sizes[0]


def _places(encoding: Any, first: int) -> list[TokenPlace]:
    """Return the tokens' positions by number: the library loses the ``sequence_ids`` of some truncated encodings."""
    places, count = [], 0
    for token, special, offsets in zip(encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True):
        places.append(TokenPlace(token, None if special else int(count >= first), offsets))
        count += not special
    return places


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """Return the number of tokens kept of each part within `room`: the longest part is always truncated first."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first + second <= room:
        return [first, second]
    shorter = min(first, second, room // 2)
    return [room - shorter, shorter] if first > second else [shorter, room - shorter]


def load(folder: Path) -> Tokenizer:
    """Load a directory's tokenizer. Raises UNSUPPORTED without the library, and INTERNAL for an unusable file."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # requests already use several threads
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError as error:
        raise unsupported(f"no tokenizer can be loaded: {pip_install('text')}") from error
    path = folder / TOKENIZER
    content = read_bytes(path)
    if content is None:
        raise broken(path, "there is no such file")
    try:
        return Tokenizer(tokenizers.Tokenizer.from_buffer(content))
    except Exception as error:  # the library has no error types of its own
        raise broken(path, f"it is no tokenizer of the library 'tokenizers' ({error})") from error


def pieces(texts: Sequence[Text]) -> Iterator[slice]:
    """Yield parts of a list of texts, each for one turn on a thread. A text is never divided."""
    start = characters = 0
    for place, text in enumerate(texts):
        characters += characters_of(text)
        if characters >= PIECE_CHARACTERS or place + 1 - start == PIECE_TEXTS:
            yield slice(start, place + 1)
            start, characters = place + 1, 0
    if start < len(texts):
        yield slice(start, len(texts))


def characters_of(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def unreadable(error: Exception) -> ModserveError:
    """Return INVALID_ARG for a text that the library refuses, without its message, which may repeat the text."""
    return invalid(f"the tokenizer cannot read a text: {type(error).__name__}")

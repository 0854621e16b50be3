"""Texts to tokens, by the ``tokenizers`` library. All of it may run on any thread, several at a time."""

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
"""A text, or a pair of them, such as a query and a document."""
Ids: TypeAlias = NDArray[np.int64]

PIECE_CHARACTERS: Final = 64 * 1024
"""Characters that a thread tokenizes at a time: some 15 ms of work, then others have their turn."""
PIECE_TEXTS: Final = 256


class Tokens:
    """Input of a model for a text. INT64, of equal lengths.

    `types` say which of a pair each token is of; None: all are of the first. `cut` counts the tokens that were left
    out, since the text is too long. `places` has an element for each token; None where `encode` was to make none.
    """

    __slots__ = ("cut", "ids", "places", "types")

    def __init__(self, ids: Ids, types: Ids | None, cut: int = 0, places: "list[TokenPlace] | None" = None) -> None:
        self.ids = ids
        self.types = types
        self.cut = cut
        self.places = places


class TokenPlace(NamedTuple):
    """The place of a token in its text, whose number in the pair is `part`; None for tokens that the tokenizer adds."""

    token: str
    part: int | None
    offsets: tuple[int, int]


class Tokenizer:
    """Tokenizer of a model's folder. Truncation and padding of its file are off: both depend on the request."""

    def __init__(self, library_object: Any) -> None:
        self._tokenizer = library_object
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._added = {pair: self._tokenizer.num_special_tokens_to_add(pair) for pair in (False, True)}
        self._types_texts = 1 in self._tokenizer.encode("a").type_ids  # also those that are no pairs

    def encode(self, texts: Sequence[Text], most: int, *, keep_end: bool = False, places: bool = False) -> list[Tokens]:
        """Encode texts to at most `most` tokens each; of a pair, the longer one is cut first. Raises INVALID_ARG.

        `keep_end`: the beginning is cut. `places`: with the places of the tokens, which takes longer.
        """
        encode = self._tokenizer.encode_batch if places else self._tokenizer.encode_batch_fast
        try:
            encodings = encode(list(texts))
        except Exception as error:  # of the library: it has no types of its own
            raise unreadable(error) from error
        return [self._tokens(one, text, most, keep_end, places) for text, one in zip(texts, encodings, strict=True)]

    @property
    def added(self) -> int:
        """Tokens that it adds to a single text."""
        return int(self._added[False])

    def count(self, text: str) -> int:
        """Return the tokens of a text, without those that it adds. Raises INVALID_ARG."""
        try:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception as error:  # of the library: it has no types of its own
            raise unreadable(error) from error
        return len(encoding)

    def prompt_length(self, prompt: str) -> int:
        """The tokens at the beginning of a text that are the prompt before it, with those that the tokenizer adds."""
        encoding = self._tokenizer.encode(prompt)
        return len(encoding.ids) - int(encoding.special_tokens_mask[-1:] == [1])

    def pieces(self, text: str, special: bool = True) -> Any:
        """Return an ``Encoding`` with the places of the tokens in the text."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=special)
        except Exception as error:
            raise unreadable(error) from error

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def of_ids(self, ids: Sequence[int], most: int) -> Tokens:
        """Tokens as a client has made them. Raises INVALID_ARG for those that the vocabulary lacks."""
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
        """Return the encoding of a text, or a pair, that is cut; and how many of its tokens are of the first text."""
        pair = text if isinstance(text, tuple) else (text,)
        parts = [self._tokenizer.encode(one, add_special_tokens=False) for one in pair]
        room = max(0, most - self._added[len(parts) == 2])
        direction = "left" if keep_end else "right"
        sizes = shares([len(part) for part in parts], room)
        for part, size in zip(parts, sizes, strict=True):
            part.truncate(size, direction=direction)
        return self._tokenizer.post_process(*parts), sizes[0]


def _places(encoding: Any, first: int) -> list[TokenPlace]:
    """Return the tokens' places by number: the library loses the ``sequence_ids`` of some encodings that were cut."""
    places, count = [], 0
    for token, special, offsets in zip(encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True):
        places.append(TokenPlace(token, None if special else int(count >= first), offsets))
        count += not special
    return places


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """Return the tokens kept of each part within `room`: the longest part is cut until another one is as long."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first + second <= room:
        return [first, second]
    shorter = min(first, second, room // 2)
    return [room - shorter, shorter] if first > second else [shorter, room - shorter]


def load(folder: Path) -> Tokenizer:
    """Load a folder's tokenizer. Raises UNSUPPORTED without the library, and INTERNAL for a file that it cannot use."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts of several requests are several threads' already
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
    except Exception as error:  # of the library: it has no types of its own
        raise broken(path, f"it is no tokenizer of the library 'tokenizers' ({error})") from error


def pieces(texts: Sequence[Text]) -> Iterator[slice]:
    """Parts of a list of texts, each for one turn on a thread. A text is in one piece, however long it is."""
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
    """INVALID_ARG: the library refuses a text. Its own words are left out, since they may repeat the text."""
    return invalid(f"the tokenizer cannot read a text: {type(error).__name__}")

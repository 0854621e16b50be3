"""Conversion of the tokens of outputs to text as they come: characters of several tokens, and stop texts."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

_PROMPT_TOKENS = 6
"""Number of the prompt's last tokens that are decoded with the first ones of the output: some tokenizers drop a space
at the beginning of a text."""
_MOST_WAITING = 32
"""Tokens without any text, such as special ones, after which the window moves on."""
_REPLACEMENT = "\ufffd"
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
_SPACE = "\u2581".encode()
"""Stands for a space in vocabularies that have `_BYTE` for single bytes."""


class Vocabulary:
    """The bytes of single tokens: a token may be a part of a character, which has no text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def words(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token; empty for special ones."""
        texts = self._tokenizer.decode([[token] for token in tokens])
        return [self._word(token, text) for token, text in zip(tokens, texts, strict=True)]

    def _word(self, token: int, text: str) -> bytes:
        piece = self._pieces.get(token, text.encode())
        try:
            return piece if text or piece.decode().isspace() else b""
        except UnicodeDecodeError:
            return piece

    @cached_property
    def _pieces(self) -> Mapping[int, bytes]:
        """Bytes by token; empty if the tokenizer does not list them. Takes 60 ms for 50,000 tokens."""
        try:
            pieces: dict[bytes, int] = self._tokenizer.get_vocab()
        except RuntimeError:
            return {}
        if b"<0x00>" not in pieces or b"<0xFF>" not in pieces:
            return {token: piece for piece, token in pieces.items()}
        return {token: _unescape(piece) for piece, token in pieces.items()}


def _unescape(piece: bytes) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, b" ")


class TokenText:
    """The text of a growing list of tokens.

    Text is decoded in a window that begins before the last tokens that gave any, so spaces are right, and a character
    of several tokens appears with its last one. `rows` are to be decoded, and `advance` takes their texts.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = list(prompt[-_PROMPT_TOKENS:])
        self._read = len(self._tokens)
        """Number of tokens of the window with their text already returned."""
        self._shown: str | None = None
        """Text of these tokens."""

    def add(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def rows(self) -> list[list[int]]:
        return [self._tokens] if self._shown is not None else [self._tokens[: self._read], self._tokens]

    def advance(self, texts: Sequence[str], *, final: bool = False) -> str:
        """Return the new text. Half a character waits, unless this is the `final` call."""
        shown = self._shown = texts[0] if self._shown is None else self._shown
        text = texts[-1]
        waits = len(text) <= len(shown) or (text.endswith(_REPLACEMENT) and not final)
        if waits and len(self._tokens) - self._read < _MOST_WAITING:
            return ""
        self._tokens = self._tokens[self._read :]
        self._read = len(self._tokens)
        self._shown = None
        return text[len(shown) :]


class StopTexts:
    """Search for the first of several stop texts in the output; holds back a possible beginning of one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def feed(self, text: str, *, final: bool = False) -> tuple[str, bool]:
        """Return the text to send now, and whether a stop text ended it. With `final`, no text is held back."""
        if not self._stops:
            return text, False
        text = self._held + text
        places = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            at, _, stop = min(places)
            self._held = ""
            return text[: at + len(stop) if self._include else at], True
        keep = 0 if final else max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0

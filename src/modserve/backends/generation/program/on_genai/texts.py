"""Turns the tokens of outputs into text as they come: characters of several tokens, and texts to stop at."""

from collections.abc import Sequence

_PROMPT_TOKENS = 6
"""As many of the prompt's last tokens are decoded with the first ones of the output: some tokenizers drop a space at
the beginning of a text."""
_MOST_WAITING = 32
"""Tokens without any text, such as special ones, after which the window moves on."""
_REPLACEMENT = "\ufffd"


class TokenText:
    """The text of a growing list of tokens.

    Text is decoded in a window that begins before the last tokens that gave any, so spaces are right, and a character
    of several tokens appears with its last one. `rows` are to be decoded, and `advance` takes their texts.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = list(prompt[-_PROMPT_TOKENS:])
        self._read = len(self._tokens)
        """So many tokens of the window have given their text."""
        self._shown: str | None = None
        """What these are as text."""

    def add(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def rows(self) -> list[list[int]]:
        return [self._tokens] if self._shown is not None else [self._tokens[: self._read], self._tokens]

    def advance(self, texts: Sequence[str], *, final: bool = False) -> str:
        """The text that is new. Half a character waits, unless this is the `final` call."""
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
    """Finds the first of several texts in what is said, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def feed(self, text: str, *, final: bool = False) -> tuple[str, bool]:
        """What can be said now, and whether one of the texts ended it. All that is held back comes with `final`."""
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
    """The length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0

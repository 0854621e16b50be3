"""Cuts text format into tokens, exactly as `google.protobuf.text_format` does, and keeps the position of each.

Only placeholders of templates, which text_format refuses at their first character, are one token here.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .problems import Position

_SPACE_OR_COMMENT = re.compile(r"(?:\s|#.*)+")
_PLACEHOLDER = "${"
_TOKEN = re.compile(
    r"\$\{[^{}\"'\n]*\}"  # a template's, such as ${max_batch_size}: no value, but one mistake and not five
    r"|[a-zA-Z_][0-9a-zA-Z_+-]*"  # an identifier
    r"|(?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*"  # a number
    r'|"[^"\n\\]*(?:(?:\\.)+[^"\n\\]*)*(?:"|\\?$)'  # a string up to its quote, or else the end of the line
    r"|'[^'\n\\]*(?:(?:\\.)+[^'\n\\]*)*(?:'|\\?$)"
)
_QUOTES = ("'", '"')
_AFTER_STRING = re.compile(r"[\s,;\]}>]+(?:#.*)?$")
"""The end of a line with an unclosed string that is unlikely to belong to the string."""
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U00[0-9a-fA-F]{6}"
    r"|(?P<bad>.?))"
)


class Token(NamedTuple):
    """A piece of the text; the last one of a text is empty."""

    text: str
    line: int
    column: int

    @property
    def position(self) -> Position:
        return Position(self.line, self.column)

    @property
    def is_identifier(self) -> bool:
        return self.text[:1].isalpha() or self.text[:1] == "_"

    @property
    def is_placeholder(self) -> bool:
        return self.text.startswith(_PLACEHOLDER)

    @property
    def is_string(self) -> bool:
        return self.text.startswith(_QUOTES)

    @property
    def is_closed_string(self) -> bool:
        return self.is_string and len(self.text) >= 2 and self.text[-1] == self.text[0]

    def describe(self) -> str:
        if self.is_string:
            return f"the string {self.text}"
        if self.is_placeholder:
            return f"the placeholder {self.text} of a template; fill it in"
        return f"the number {self.text}" if re.match(r"[0-9+-]|\.[0-9]", self.text) else f"'{self.text}'"


def tokenize(text: str) -> list[Token]:
    tokens = [token for number, line in enumerate(text.split("\n"), 1) for token in _line_tokens(line, number)]
    last = tokens[-1] if tokens else Token("", 1, 1)
    tokens.append(Token("", last.line, last.column + len(last.text)))
    return tokens


def _line_tokens(line: str, number: int) -> Iterator[Token]:
    column = 0
    while True:
        space = _SPACE_OR_COMMENT.match(line, column)
        if space:
            column = space.end()
        if column >= len(line):
            return
        match = _TOKEN.match(line, column)
        token = Token(match[0] if match else line[column], number, column + 1)
        if token.is_string and not token.is_closed_string:
            token = _cut(token)
        yield token
        column += len(token.text)


def _cut(token: Token) -> Token:
    """Gives back the brackets at the end of a line that an unclosed string has swallowed: each would be missed too."""
    tail = _AFTER_STRING.search(token.text, 1)
    return token._replace(text=token.text[: tail.start()]) if tail else token


class StringFault(NamedTuple):
    """A mistake in a string, `offset` characters behind its start."""

    token: Token
    offset: int
    text: str
    unreadable: bool = False
    """text_format must not read the string: it would misunderstand an escape."""


def string_faults(tokens: Iterable[Token]) -> Iterator[StringFault]:
    """The mistakes that a string can have wherever it stands."""
    for token in tokens:
        if not token.is_string:
            continue
        if not token.is_closed_string:
            yield StringFault(token, 0, f"a string that starts with {token.text[0]} must end with it on the same line")
        else:
            for escape in _ESCAPE.finditer(token.text[:-1]):
                if escape["bad"] is not None:
                    text = f"unknown escape {escape[0]} in a string; a backslash itself is written \\\\"
                    yield StringFault(token, escape.start(), text, unreadable=True)

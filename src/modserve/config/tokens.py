"""Cuts text-format into tokens, just as `google.protobuf.text_format` does, and remembers where each stood."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from .problems import Position

_SPACE_OR_COMMENT = re.compile(r"(?:\s|#.*)+")
_TOKEN = re.compile(
    r"[a-zA-Z_][0-9a-zA-Z_+-]*"  # an identifier
    r"|(?:[0-9+-]|\.[0-9])[0-9a-zA-Z_.+-]*"  # a number
    r'|"[^"\n\\]*(?:(?:\\.)+[^"\n\\]*)*(?:"|\\?$)'  # a string up to its quote, or else the end of the line
    r"|'[^'\n\\]*(?:(?:\\.)+[^'\n\\]*)*(?:'|\\?$)"
)
_QUOTES = ("'", '"')
_AFTER_STRING = re.compile(r"[\s,;\]}>]+(?:#.*)?$")
"""What ends a line whose string was not closed and is unlikely to belong to the string."""


class Token(NamedTuple):
    """A piece of the text; the one that ends every list of them is empty."""

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
    def is_number(self) -> bool:
        return re.match(r"[0-9+-]|\.[0-9]", self.text) is not None

    @property
    def is_string(self) -> bool:
        return self.text.startswith(_QUOTES)

    @property
    def is_closed_string(self) -> bool:
        return self.is_string and len(self.text) >= 2 and self.text[-1] == self.text[0]

    def describe(self) -> str:
        kind = "the string " if self.is_string else "the number " if self.is_number else ""
        return f"{kind}{self.text}" if kind else f"'{self.text}'"


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        tokens.extend(_line_tokens(line, number))
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
    """An unclosed string has swallowed the brackets that end its line; give them back, or each would be missed too."""
    tail = _AFTER_STRING.search(token.text, 1)
    return token._replace(text=token.text[: tail.start()]) if tail else token

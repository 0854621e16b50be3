"""Escapes and shortens foreign texts in log lines, so that they cannot forge lines or fill the log."""

import re
from typing import Final

MOST_NAME: Final = 100
MOST_MESSAGE: Final = 1000
"""The length, in characters, of names and ids, and of messages, which may repeat what the client sent."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


def escaped(text: str, most: int = 0) -> str:
    """The text on one line, with everything escaped that is not printable: line separators, bidirectional marks, ...

    Longer than `most` characters, it is cut; 0: it never is.
    """
    shown = text[:most] if most else text
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown if not most or len(text) <= most else f"{shown}..."


def quoted(text: str) -> str:
    """A name or id in quotes, on one line, and not for long."""
    return repr(text) if len(text) <= MOST_NAME else f"{text[:MOST_NAME]!r}..."


def colourless(text: str) -> str:
    """The text without the sequences by which libraries colour what they write."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def indented(text: str) -> str:
    """The text on several lines, all but the first of them indented: none looks like the beginning of a record."""
    return "\n    ".join(map(escaped, text.replace("\r\n", "\n").split("\n")))

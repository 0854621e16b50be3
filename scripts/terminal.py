"""Pictures of a terminal, as SVG, of what commands have really printed."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

_COLUMNS, _WIDTH, _LINE, _PAD = 108, 7.3, 17, 14
"""Characters in a line; a character's and a line's size."""
_HANGING = " " * 6
_STYLE = """
  text { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; fill: #d7dee8 }
  .bold { font-weight: bold; fill: #ffffff }
  .red { font-weight: bold; fill: #ff7b72 }
  .cyan { font-weight: bold; fill: #76d9e6 }
  .green { fill: #7ee787 }
  .prompt { fill: #9aa7b5 }
"""
_CLASSES = {"1;31": "red", "1;36": "cyan", "1": "bold", "32": "green", "90": "prompt", "0": ""}
_ANSI = re.compile(r"\x1b\[([0-9;]*)m")


def plain(text: str) -> str:
    return _ANSI.sub("", text)


def draw(title: str, steps: Sequence[tuple[str, str]]) -> str:
    """The picture: each command, and what it has printed below it. Its description is all of that as text."""
    rows: list[list[tuple[str, int, str]]] = []
    for command, screen in steps:
        rows.append([("prompt", 0, "$"), ("bold", 2, command)])
        rows += [row for line in screen.splitlines() for row in _rows(line)]
    width, height = _COLUMNS * _WIDTH + 2 * _PAD, len(rows) * _LINE + 2 * _PAD
    shown = "".join(f"$ {command}\n{plain(screen)}" for command, screen in steps)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(shown, quote=False)}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1}" rx="8" fill="#161d27" stroke="#46535f"/>',
    ]
    for number, row in enumerate(rows):
        y = _PAD + number * _LINE + 12
        for style, column, text in row:
            # Each piece is as wide as its characters, whatever the font, so that carets stand where they belong.
            place = f'x="{_PAD + column * _WIDTH:.1f}" y="{y}" textLength="{len(text) * _WIDTH:.1f}"'
            kind = f' class="{style}"' if style else ""
            parts.append(f'<text{kind} {place} xml:space="preserve">{escape(text, quote=False)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _rows(line: str) -> Iterator[list[tuple[str, int, str]]]:
    """A line as one row or more, each of them pieces of one style: the style, the column and the text."""
    styles: list[str] = []
    style, at = "", 0
    for match in [*_ANSI.finditer(line), None]:
        styles += [style] * ((len(line) if match is None else match.start()) - at)
        if match is not None:
            style, at = _CLASSES[match[1]], match.end()
    start = 0
    text = plain(line)
    for index, row in enumerate(_wrapped(text)):
        start = text.index(row, start)
        indentation = len(_HANGING) if index else 0
        yield [
            (styles[start + piece.start()], indentation + piece.start(), piece[0])
            for piece in _pieces(row, styles[start : start + len(row)])
        ]
        start += len(row)


def _wrapped(text: str) -> list[str]:
    """A line cut at spaces; a row that is not the first begins further to the right, and has less room."""
    if len(text) <= _COLUMNS:
        return [text]
    rows = textwrap.wrap(
        text, _COLUMNS, subsequent_indent=_HANGING, break_on_hyphens=False, drop_whitespace=True, tabsize=1
    )
    return [rows[0], *(row.removeprefix(_HANGING) for row in rows[1:])]


def _pieces(row: str, styles: list[str]) -> Iterator[re.Match[str]]:
    """The runs of one style, without the spaces around them."""
    start = 0
    for end in range(1, len(row) + 1):
        if end == len(row) or styles[end] != styles[start]:
            if piece := re.compile(r"\S(?:.*\S)?").search(row, start, end):
                yield piece
            start = end

"""Problems of a configuration, their positions, and the report."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from modserve.core.errors import Code, ModserveError

FieldPath: TypeAlias = tuple[str | int, ...]
"""Path to a field: field names, element numbers and map keys, such as ``("input", 0, "dims")``."""
Faults: TypeAlias = Iterator[tuple[FieldPath, str]]
"""Broken rules, as field path and fault. An empty path stands for the whole configuration."""

_MOST = 50
_SHOWN_WIDTH = 120
_ELLIPSIS = "…"


class Position(NamedTuple):
    """Position in the file; both numbers start at 1."""

    line: int
    column: int


class Problem(NamedTuple):
    text: str
    position: Position | None = None
    """None for a problem of the whole file."""
    default: bool = False
    """True for a note on a value that the server filled in, which is likely to be right."""


@dataclass(frozen=True)
class SourceText:
    """Text of a configuration, with the position of each field."""

    path: Path
    text: str = ""
    positions: Mapping[FieldPath, Position] = field(default_factory=dict)
    label: str = ""
    """Name of the source in reports; the path if empty."""

    def locate(self, path: FieldPath) -> Position | None:
        """Return the position of a field, or of the innermost block around an absent field; None if neither exists."""
        for length in range(len(path), 0, -1):
            position = self.positions.get(path[:length])
            if position is not None:
                return position
        return None

    def headline(self, problem: Problem) -> str:
        if problem.default and problem.position is None:
            return problem.text  # the text names the model, and there may be no file
        place = "" if problem.position is None else f":{problem.position.line}:{problem.position.column}"
        return f"{self.label or self.path}{place}: {problem.text}"

    def render(self, problem: Problem) -> str:
        """Return the headline, followed by the line and a caret for a problem with a position."""
        return "\n".join([self.headline(problem), *(f"    {line}" for line in self.excerpt(problem))])

    def excerpt(self, problem: Problem) -> tuple[str, ...]:
        """Return the line of a problem and a line with a caret, cut to the screen; empty without a position."""
        if problem.position is None:
            return ()
        return _excerpt(self.text.split("\n")[problem.position.line - 1], problem.position.column - 1)


class ConfigurationError(ModserveError):
    """Invalid configuration. The message is the report of all problems; `problems` lists them."""

    def __init__(self, message: str, source: SourceText = SourceText(Path()), problems: Sequence[Problem] = ()) -> None:
        super().__init__(Code.INVALID_ARG, message)
        self.source = source
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ModserveError], tuple[Code, str]]:
        return ModserveError, (self.code, self.message)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters that a terminal might interpret, except tabs and line ends."""


class Problems:
    """Collects distinct problems, and notes on settings without their usual effect.

    `only` decides by field which new problems count; the initial `problems` always count.
    """

    def __init__(
        self,
        model: str,
        source: SourceText,
        problems: Iterable[Problem] = (),
        only: Callable[[FieldPath], bool] = lambda path: True,
    ) -> None:
        self._only = only
        self._model = model
        self._source = source
        self._problems: dict[Problem, None] = dict.fromkeys(problems)
        self.notes: list[Problem] = []

    @property
    def warnings(self) -> list[str]:
        """Notes on settings without their usual effect, as lines for the log."""
        return [self._source.headline(note) for note in self.notes if not note.default]

    @property
    def defaults(self) -> list[str]:
        """Notes on values that the server filled in, as lines for the log."""
        return [self._source.headline(note) for note in self.notes if note.default]

    def add(self, path: FieldPath, text: str) -> None:
        """Add a problem of a field; an empty path stands for the whole file."""
        if self._only(path):
            self._problems[Problem(text, self._source.locate(path))] = None

    def add_all(self, faults: Faults) -> None:
        for path, text in faults:
            self.add(path, text)

    def warn(self, path: FieldPath, text: str) -> None:
        self.notes.append(Problem(text, self._source.locate(path)))

    def fill_in(self, path: FieldPath, text: str) -> None:
        """Add a note on a value that the server filled in."""
        self.notes.append(Problem(text, self._source.locate(path), default=True))

    def raise_if_any(self) -> None:
        """Raise ConfigurationError with all problems by position, followed by problems of the whole file."""
        if self._problems:
            order = sorted(self._problems, key=lambda each: (each.position is None, each.position or (0, 0)))
            raise ConfigurationError(self._report(order), self._source, order)

    def _report(self, problems: Sequence[Problem]) -> str:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        head = f"{count} in the configuration of model '{self._model}'"
        rest = [f"and {len(problems) - _MOST} more"] if len(problems) > _MOST else []
        return printable("\n".join([head, *map(self._source.render, problems[:_MOST]), *rest]))


def printable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, and control characters, which a terminal might interpret."""
    # Lone surrogates stand for bytes that are not UTF-8.
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def show(path: FieldPath) -> str:
    """Format a field path, such as ``input[0].dims``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _excerpt(line: str, column: int) -> tuple[str, str]:
    """Return a line without indentation and a line with the caret. A long line is cut around the column."""
    line = line.rstrip()
    indentation = min(len(line) - len(line.lstrip()), column)
    line, column = line[indentation:], column - indentation
    if len(line) > _SHOWN_WIDTH:
        start = max(0, column - _SHOWN_WIDTH // 2)
        end = start + _SHOWN_WIDTH
        line, column = (
            (_ELLIPSIS if start else "") + line[start:end] + (_ELLIPSIS if end < len(line) else ""),
            column - start + bool(start),
        )
    # Tabs are kept, so that the caret is in the right column whatever their width.
    return line, re.sub(r"[^\t]", " ", line[:column].ljust(column)) + "^"

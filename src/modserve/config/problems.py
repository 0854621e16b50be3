"""What is wrong with a configuration, where, and the report that a person reads."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from modserve.core.errors import invalid

FieldPath: TypeAlias = tuple[str | int, ...]
"""A place in the message: field names, element numbers and map keys, e.g. ``("input", 0, "dims")``."""

_MOST = 50
_SHOWN_WIDTH = 120
_ELLIPSIS = "…"


class Position(NamedTuple):
    """A character of the file; both numbers start at 1."""

    line: int
    column: int


class Problem(NamedTuple):
    text: str
    position: Position | None = None
    """None for what concerns the file as a whole."""


@dataclass(frozen=True)
class Source:
    """A configuration's text, and where in it each field stands."""

    path: Path
    text: str = ""
    positions: Mapping[FieldPath, Position] = field(default_factory=dict)
    label: str = ""
    """What reports call it; the path if empty."""

    def locate(self, path: FieldPath) -> Position | None:
        """Where a field stands; for one that is not there, the nearest block around it; None for the file."""
        for length in range(len(path), 0, -1):
            position = self.positions.get(path[:length])
            if position is not None:
                return position
        return None

    def headline(self, problem: Problem) -> str:
        where = self.label or str(self.path)
        if problem.position is not None:
            where = f"{where}:{problem.position.line}:{problem.position.column}"
        return f"{where}: {problem.text}"

    def render(self, problem: Problem) -> str:
        """The headline, and below it the line and a caret, where there is one."""
        if problem.position is None:
            return self.headline(problem)
        shown, caret = _excerpt(self.text.split("\n")[problem.position.line - 1], problem.position.column - 1)
        return f"{self.headline(problem)}\n    {shown}\n    {caret}"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal might obey instead of show; tabs and line ends are harmless."""


class Problems:
    """Collects problems, each kept once, and warnings."""

    def __init__(self, model: str, source: Source, found: Iterable[Problem] = ()) -> None:
        self._model = model
        self._source = source
        self._found: dict[Problem, None] = dict.fromkeys(found)
        self.warnings: list[str] = []

    def add(self, path: FieldPath, text: str) -> None:
        """A problem of a field; an empty path stands for the whole file."""
        self._found[Problem(text, self._source.locate(path))] = None

    def warn(self, path: FieldPath, text: str) -> None:
        self.warnings.append(self._source.headline(Problem(text, self._source.locate(path))))

    def raise_if_any(self) -> None:
        """Raises INVALID_ARG with the report of all problems."""
        if self._found:
            raise invalid(self._report(sorted(self._found, key=_order)))

    def _report(self, problems: Sequence[Problem]) -> str:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        head = f"{count} in the configuration of model '{self._model}'"
        # Bytes that are no UTF-8 were kept as lone surrogates, which no wire can carry.
        rest = [f"and {len(problems) - _MOST} more"] if len(problems) > _MOST else []
        text = "\n".join([head, *map(self._source.render, problems[:_MOST]), *rest])
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def show(path: FieldPath) -> str:
    """A field path as people write it: ``input[0].dims``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _order(problem: Problem) -> tuple[bool, Position]:
    """By position; what concerns the whole file comes last."""
    return problem.position is None, problem.position or Position(0, 0)


def _excerpt(line: str, column: int) -> tuple[str, str]:
    """A line without its indentation, and the line below with the caret; a long line is cut around the column."""
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
    # Tabs stay tabs, that the caret stands right whatever their width.
    return line, re.sub(r"[^\t]", " ", line[:column].ljust(column)) + "^"

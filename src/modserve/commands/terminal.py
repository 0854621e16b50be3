"""Terminal output of commands: tables, colours, numbers with units, and repeated output."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from modserve.core.errors import ModserveError

from .errors import UnreachableError
from .syntax import print_error, printable

RED, GREEN, YELLOW, CYAN, BOLD, PLAIN = "\x1b[1;31m", "\x1b[32m", "\x1b[33m", "\x1b[1;36m", "\x1b[1m", "\x1b[0m"
GREY = "\x1b[90m"
COLOURS = {"READY": GREEN, "LOADING": YELLOW, "UNLOADING": YELLOW, "UNAVAILABLE": RED, "ok": GREEN, "warning": YELLOW}
COLOURS |= {"problem": RED}
"""By the words of states."""
_CLEAR = "\x1b[H\x1b[2J"


def takes_colours(stream: TextIO | None = None) -> bool:
    return (stream or sys.stdout).isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "", *, colours: bool = False) -> list[str]:
    """Lines with columns below each other: a heading, a rule, and a line for each row.

    `right` has an ``r`` for each column to be aligned at its right; what is left out is at its left.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    sides = right.ljust(len(widths))

    def line(row: Sequence[str], coloured: bool) -> str:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ]
        if coloured:
            cells = [f"{COLOURS[each.strip()]}{each}{PLAIN}" if each.strip() in COLOURS else each for each in cells]
        return "  ".join(cells).rstrip()

    return [line(head, False), "  ".join("-" * width for width in widths), *(line(row, colours) for row in rows)]


def pairs(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Names with values beside them."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        yield f"{name.ljust(width)}  {value}".rstrip()


def indented(text: str) -> Iterator[str]:
    """The lines of a reason, indented."""
    yield from (f"    {printable(line)}" for line in text.splitlines())


def count(number: float) -> str:
    """With commas between thousands."""
    return f"{number:,.0f}"


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """In the unit that fits."""
    for limit, unit, factor in ((1e-3, "us", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def size(bytes: float) -> str:
    """In the binary unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes < 1024:
            return f"{bytes:.3g} {unit}" if bytes < 100 else f"{bytes:.0f} {unit}"
        bytes /= 1024
    return f"{bytes:.3g} TiB"


def again(
    seconds: float | None, draw: Callable[[], tuple[int, str]], sleep: Callable[[float], None] = time.sleep
) -> int:
    """Print what `draw` makes, once, or every `seconds` until Ctrl-C; returns its exit code.

    Where it repeats, a server that does not respond is waited for.
    """
    if seconds is None:
        code, text = draw()
        print(text)
        return code
    clear = sys.stdout.isatty()
    try:
        while True:
            try:
                text = draw()[1]
            except UnreachableError as error:
                text = f"{error.message}"
            print(f"{_CLEAR}{text}" if clear else f"{text}\n", flush=True)
            sleep(seconds)
    except KeyboardInterrupt:
        return 0


def each(names: Sequence[str], work: Callable[[str], str]) -> int:
    """Apply `work` to several models and print the result of each; returns the exit code."""
    code = 0
    for name in names:
        try:
            print(work(name), flush=True)
        except UnreachableError:
            raise
        except ModserveError as error:
            print_error(error.message, getattr(error, "advice", ""))
            code = 1
    return code

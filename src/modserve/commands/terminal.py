"""Commands and the terminal: their table, tables and colours, standard output during loads, and Ctrl-C.

The commands of ``modserve``: a row for each, and the module of the same name, imported when the command runs.

Standard output while a command loads models.

Ctrl-C while a command changes servers: changes begun are finished or undone, and reported.
"""

import importlib
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TextIO, cast

from modserve.core.errors import ModserveError

from .errors import UnreachableError
from .syntax import print_error, printable

if TYPE_CHECKING:
    from .syntax import Parser

RED, GREEN, YELLOW, CYAN, BOLD, PLAIN = "\x1b[1;31m", "\x1b[32m", "\x1b[33m", "\x1b[1;36m", "\x1b[1m", "\x1b[0m"
GREY = "\x1b[90m"
COLOURS = {"READY": GREEN, "LOADING": YELLOW, "UNLOADING": YELLOW, "UNAVAILABLE": RED, "ok": GREEN, "warning": YELLOW}
COLOURS |= {"problem": RED}
"""Colours of states and levels."""
_CLEAR = "\x1b[H\x1b[2J"


def takes_colours(stream: TextIO | None = None) -> bool:
    return (stream or sys.stdout).isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "", *, colours: bool = False) -> list[str]:
    """Format aligned columns: a heading, a rule, and a line for each row.

    `right` has an ``r`` for each right-aligned column; columns after its end are left-aligned.
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
    """Yield lines of names and values in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        yield f"{name.ljust(width)}  {value}".rstrip()


def indent_lines(text: str) -> Iterator[str]:
    """Yield the lines of a reason, indented."""
    yield from (f"    {printable(line)}" for line in text.splitlines())


def count(number: float) -> str:
    """Format a number with commas between thousands."""
    return f"{number:,.0f}"


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration in the unit that fits."""
    for limit, unit, factor in ((1e-3, "us", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def size(bytes: float) -> str:
    """Format a number of bytes in the binary unit that fits."""
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


class Command(NamedTuple):
    """A row: what stands in the list that ``modserve --help`` prints."""

    words: str
    """Arguments behind the command's name."""
    summary: str
    section: str = ""
    """The heading that begins with this command."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "check": Command("DIR …", "Check the models in DIR.", "commands for models"),
        "config": Command("MODEL_FILE", "Write a config.pbtxt for a model file."),
        "init": Command("NAME --from WHAT", "Create a new model from a file or a template."),
        "keys": Command("add|list|revoke|rotate", "Manage the keys of callers.", "commands for this machine"),
        "engines": Command("", "List installed engines, and how to install others."),
        "doctor": Command("", "Check this machine for problems."),
        "ray": Command("deploy", "Serve models on a cluster of Ray."),
        "completion": Command("bash|zsh|fish", "Print a shell completion script."),
        "status": Command("", "Show whether a server is ready, and its counts.", "commands for a running server"),
        "models": Command("[MODEL …]", "List its models, or describe the named ones."),
        "top": Command("", "Watch requests, queues, batches, latencies and errors."),
        "infer": Command("MODEL [NAME=VALUE …]", "Send a request and show the response."),
        "chat": Command("MODEL [PROMPT]", "Talk to a language model."),
        "load": Command("MODEL …", "Load or reload models."),
        "unload": Command("MODEL …", "Unload models."),
        "drain": Command("", "Take a server out of service, and wait until it is idle."),
        "rollout": Command("MODEL[:VERSION]", "Load a version on one of several servers, then on all."),
        "replay": Command("FILE …", "Send recorded requests again, and compare the responses."),
        "bench": Command("MODEL", "Measure the latency and throughput of a model.", "commands for measuring"),
        "tune": Command("MODEL --goal-ms N", "Find the fastest configuration within a goal."),
    }
)
"""The commands except `serve`, in the order of the help."""


class CommandModule(Protocol):
    """Definitions of a command's module."""

    PARSER: "Parser"

    def work(self, options: Namespace, /) -> int:
        """Run the command and return the exit code."""


def module(name: str) -> CommandModule:
    return cast(CommandModule, importlib.import_module(f"{__package__}.{name}"))


def run(name: str, words: Sequence[str]) -> int:
    """Run a command with the words after its name, or print its help. Returns the exit code."""
    from . import syntax

    command = module(name)
    if "--help" in words or "-h" in words:
        print(command.PARSER.format_help().rstrip())
        return 0
    return syntax.run(command.PARSER, words, command.work)


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, for what engines and models print."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Context manager of the main thread that only notes the first Ctrl-C or termination signal.

    It calls `on_first` then. The second signal raises KeyboardInterrupt.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.happened = False
        self._on_first = on_first
        self._former: list[Any] = []

    def __enter__(self) -> Self:
        self._former = [signal.signal(number, self._handle) for number in _SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in zip(_SIGNALS, self._former, strict=True):
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.happened:
            raise KeyboardInterrupt
        self.happened = True
        self._on_first()

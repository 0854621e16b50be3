"""Command lines: options by argparse, help texts, and messages for mistakes."""

import argparse
import contextlib
import os
import re
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from modserve.core.errors import ModserveError
from modserve.core.texts import is_unicode, unicode_text
from modserve.settings.options import did_you_mean

DEFAULT_URL = "http://localhost:8000"
URL_VARIABLE = "MODSERVE_URL"
SERVER_OPTIONS = "the server"
"""The heading of the options that all commands for a running server have."""
FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
_WIDTH = 100
T = TypeVar("T")
_OPTION = re.compile(r"^--[\w-]+")


class UsageError(Exception):
    """A wrong command line: the text names the option, its value, and what would be right."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_WIDTH)


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError where argparse would end the process."""

    takes_server_options = False
    """True if other words are options of a server: `read` puts them into `server_words`."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (?:-\w/)?(--[\w-]+)", r"option '\1'", message)
        raise UsageError(message.replace("': expected one argument", "' requires a value"))

    @property
    def command(self) -> str:
        return self.prog.removeprefix("modserve ")

    def options(self) -> list[str]:
        return [spelling for action in self._actions for spelling in action.option_strings]

    def read(self, words: Sequence[str]) -> Namespace:
        """Read the values; options may stand between other words, with - or _ in their names. Raises UsageError."""
        for word in words:
            if not is_unicode(word):
                raise UsageError(unicode_text(f"argument '{word}' is not UTF-8"))
        words = [_OPTION.sub(lambda match: match[0].replace("_", "-"), word) for word in words]
        if self.takes_server_options:
            options, rest = self.parse_known_args(words)
            options.server_words = rest
            return options
        options, rest = self.parse_known_intermixed_args(words)
        if rest:
            name = rest[0].partition("=")[0]
            if not name.startswith("-"):
                raise UsageError(f"unexpected argument: {rest[0]}")
            hint = did_you_mean(name, self.options())
            raise UsageError(f"unknown option '{name}'{hint or f'; those of this command: {self._list_options()}'}")
        return options

    def _list_options(self) -> str:
        return ", ".join(each for each in self.options() if each.startswith("--"))


def parser(command: str, text: str, examples: str = "", codes: str = "", usage: str | None = None) -> Parser:
    """Make a command without options yet. `text` is its description, `codes` the meaning of its exit codes.

    One with a `usage` takes the options of ``modserve serve`` as well.
    """
    parts = ["\n".join(_wrap(f"exit codes: {codes}"))] if codes else []
    parts += [f"examples:\n{examples}"] if examples else []
    made = Parser(
        f"modserve {command}",
        usage and f"modserve {command} {usage} [options of 'modserve serve']",
        description="\n".join(_wrap(text)),
        epilog="\n\n".join(parts) or None,
        formatter_class=_Formatter,
        add_help=False,
        allow_abbrev=False,
    )
    made._optionals.title = "options"
    made.takes_server_options = usage is not None
    made.add_argument("-h", "--help", action="store_true", help="Print this help and exit.")
    return made


def _wrap(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(line, _WIDTH, break_on_hyphens=False, break_long_words=False) or [""]


def option(group: argparse._ActionsContainer, spelling: str, help: str, **settings: Any) -> None:
    """Add an option with a value, written as its help shows it: ``-o, --output FILE``. The default is an empty text."""
    names, _, metavar = spelling.rpartition(" ")
    if not settings.keys() & {"type", "action"}:
        settings.setdefault("default", "")
    group.add_argument(*names.split(", "), metavar=metavar, help=help, **settings)


def add_destination(made: Parser, seconds: float = 60.0, *, several: bool = False) -> None:
    """Add the options of commands that call a server, or `several`; `seconds` is the default of ``--timeout``."""
    group = made.add_argument_group(SERVER_OPTIONS)
    kinds = ", several with commas between them, or dns:///NAME:PORT" if several else ""
    option(group, "--url URL", f"The server's address{kinds}. [default: {DEFAULT_URL}] [env: {URL_VARIABLE}]")
    option(
        group,
        "--header NAME:VALUE",
        "Header for every call; @FILE reads headers from a file; may be repeated.",
        action="append",
        default=[],
    )
    option(group, "--ca-file FILE", "PEM file of certificate authorities to trust, for TLS.")
    option(group, "--cert FILE", "PEM file of the client certificate.")
    option(group, "--key FILE", "PEM file of the key of --cert.")
    group.add_argument("--insecure", action="store_true", help="Do not check the server's certificate.")
    option(
        group,
        "--timeout SECONDS",
        f"Time limit of a call, including all responses of a stream. [default: {seconds:g}]",
        type=positive,
        default=seconds,
    )


def add_json(made: Parser) -> None:
    made.add_argument("--json", action="store_true", help="Print one JSON document.")


def add_watch(made: Parser) -> None:
    made.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=positive,
        const=2.0,
        help="Repeat every SECONDS (default: 2) until Ctrl-C.",
    )


def number_type(expected: str, accepts: Callable[[float], bool]) -> Callable[[str], float]:
    """Return an argparse type for numbers that `accepts` allows; the error message names what is `expected`."""

    def number(text: str) -> float:
        with contextlib.suppress(ValueError):
            if accepts(value := float(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, got: {text}")

    return number


def reading(read: Callable[[str], T]) -> Callable[[str], T]:
    """Adapt `read` to argparse: its ValueError, which says what it expects, becomes an ArgumentTypeError."""

    def read_argument(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, got: {text}") from None

    return read_argument


def add_shape(group: argparse._ActionsContainer) -> None:
    """Add ``--shape``, for generated data."""
    option(
        group,
        "--shape NAME:SIZES",
        "Shape of an input with variable dimensions, without the batch: image:3,224,224.",
        type=reading(_read_named_shape),
        action="append",
        default=[],
    )


def _read_named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``name:3,224,224``, or with ``x`` between the sizes."""
    name, _, sizes = text.rpartition(":")
    parts = sizes.replace("x", ",").split(",")
    if not name or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError("NAME:SIZE,SIZE,…")
    return name, tuple(map(int, parts))


positive = number_type("a number above 0", lambda value: 0 < value < 1e6)


def run(made: Parser, words: Sequence[str], work: Callable[[Namespace], int]) -> int:
    """Read `words`, do the work, and return its exit code; a failure becomes its text and what helps."""
    try:
        return work(made.read(words))
    except UsageError as error:
        print_error(str(error), f"see 'modserve {made.command} --help'")
        return USAGE_ERROR
    except ModserveError as error:
        print_error(error.message, getattr(error, "advice", ""))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # such as in 'modserve models | head'
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def print_error(text: str, advice: str = "") -> None:
    """Write an error to standard error, and below it what helps."""
    sys.stdout.flush()
    for line in (*text.splitlines(), *advice.splitlines()):
        print(f"modserve: {printable(line)}", file=sys.stderr)


def printable(text: str) -> str:
    """Return a server's or a file's text without control characters of the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)

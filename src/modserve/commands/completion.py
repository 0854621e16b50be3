"""``modserve completion SHELL``: a script with which a shell completes commands, their options and files."""

import argparse
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence

from modserve.settings import usage

from .syntax import UsageError, parser, run
from .table import COMMANDS, CommandModule, program

SHELLS = ("bash", "zsh", "fish")
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/modserve",
    "zsh": "~/.zfunc/_modserve",
    "fish": "~/.config/fish/completions/modserve.fish",
}

PARSER = parser(
    "completion",
    "Prints a script that completes commands, options and files in a shell. Save it as:\n"
    + "\n".join(f"  {shell.ljust(5)} {place}" for shell, place in _PLACES.items()),
    "\n".join(f"  modserve completion {shell} > {place}" for shell, place in _PLACES.items()),
    "0 printed, 2 wrong command line",
)
PARSER.add_argument("shell", metavar="|".join(SHELLS), help="The shell.")
HELP = PARSER.format_help()


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    return run(PARSER, words, _work)


def _work(options: Namespace) -> int:
    if options.shell not in SHELLS:
        raise UsageError(f"expected {', '.join(SHELLS)}, got: {options.shell}")
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The script for one of `SHELLS`."""
    import shtab

    top = usage.parser(COMMANDS)
    commands = top.add_subparsers(title="commands")
    serve = commands.add_parser("serve", help="Serve models.", parents=[usage.parser({})], add_help=False)
    serve.add_argument("file", nargs="*", metavar="FILE", help="Model files, or MODULE:OBJECT.")
    parsers = [top, serve]
    for name, command in COMMANDS.items():
        own = _parser(program(name))
        parsers.append(commands.add_parser(name, help=command.summary, parents=[own], add_help=False))
    for each in parsers:
        for action in each._actions:
            _prepare(action, shtab)
    return str(shtab.complete(top, shell))


def _prepare(action: argparse.Action, shtab: object) -> None:
    """Files complete as files, and a help text is one line."""
    if action.help:
        action.help = action.help.partition("\n")[0]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    kind = "FILE" if metavar.endswith("FILE") else "DIRECTORY" if metavar.endswith("DIR") else ""
    if kind:
        action.complete = getattr(shtab, kind)  # type: ignore[attr-defined]


def _parser(command: CommandModule) -> argparse.ArgumentParser:
    """That of a command; made of its help text if it reads its words otherwise."""
    own = getattr(command, "PARSER", None)
    if isinstance(own, argparse.ArgumentParser):
        return own
    made = argparse.ArgumentParser(add_help=False)
    for option, text in _options(command.HELP):
        made.add_argument(option, action="store_true", help=text)
    made.add_argument("file", nargs="*", metavar="FILE", help="Files.")
    return made


def _options(text: str) -> Iterator[tuple[str, str]]:
    """The options that a help text lists, a line each or more, with the beginning of what it says of them."""
    seen = set()
    for match in re.finditer(r"^ +(?:-\w[^,\n]*, )?(--[a-z][a-z-]*)(?: [A-Z]\S*)?(?:\n? +(.*))?", text, re.MULTILINE):
        if match[1] not in seen:
            seen.add(match[1])
            yield match[1], match[2] or ""

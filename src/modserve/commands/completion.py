"""``modserve completion SHELL``: a script with which a shell completes commands, their options and files."""

import argparse
from argparse import Namespace

from modserve.settings import usage

from .syntax import UsageError, parser
from .terminal import COMMANDS, module

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


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    if options.shell not in SHELLS:
        raise UsageError(f"expected {', '.join(SHELLS)}, got: {options.shell}")
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """Return the script for one of `SHELLS`."""
    import shtab

    top = usage.parser(COMMANDS)
    commands = top.add_subparsers(title="commands")
    serve = commands.add_parser("serve", help="Serve models.", parents=[usage.parser({})], add_help=False)
    serve.add_argument("file", nargs="*", metavar="FILE", help="Model files, or MODULE:OBJECT.")
    parsers = [top, serve]
    for name, command in COMMANDS.items():
        own = module(name).PARSER
        parsers.append(commands.add_parser(name, help=command.summary, parents=[own], add_help=False))
    for each in parsers:
        for action in each._actions:
            _prepare(action, shtab)
    return str(shtab.complete(top, shell))


def _prepare(action: argparse.Action, shtab: object) -> None:
    """Prepare the options: files complete as files, and a help text is one line."""
    if action.help:
        action.help = action.help.partition("\n")[0]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    kind = "FILE" if metavar.endswith("FILE") else "DIRECTORY" if metavar.endswith("DIR") else ""
    if kind:
        action.complete = getattr(shtab, kind)  # type: ignore[attr-defined]

"""The pages of ``--help``, and the parser from which shells complete options, both from the options of the settings.

The first page has the commands and the common options; each section of options is a page of its own, too.
"""

import argparse
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Protocol

from .options import Option
from .settings import OPTIONS


class CommandUsage(Protocol):
    """A row of the table of commands."""

    @property
    def words(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def section(self) -> str: ...


Commands = Mapping[str, CommandUsage]

_USAGE = """modserve [serve] --model-repository DIR [options]
       modserve [serve] [NAME=]MODEL_FILE … [options]
       modserve [serve] [NAME=]MODULE:OBJECT … [options]
       modserve COMMAND …
       modserve COMMAND --help
       modserve --help [TOPIC] | --help-all | --version"""

_DESCRIPTION = """\
Serves the models in DIR, and decorated Python functions, over KServe v2: HTTP, gRPC, and
Prometheus metrics."""

_SOURCES = """\
You can also set each option with an environment variable, or in a YAML or TOML file that
--config names: --http-port 80 is MODSERVE_HTTP_PORT=80, and 'http-port: 80' in YAML. The
command line overrides the environment, and the environment overrides the file. Other
options of tritonserver are accepted without effect, or refused with the reason."""

_CONFIG = "YAML or TOML file with options."
_COMMON = (
    "model-repository",
    "model-file",
    "python-model",
    "example",
    "model-control-mode",
    "load-model",
    "backend-config",
    "workers",
    "http-address",
    "http-port",
    "grpc-port",
    "metrics-port",
    "access-log",
    "log-verbose",
)
"""Most used options, with --config, in the order of the first page."""

_EPILOG = """\
examples:
  modserve --model-repository models
  modserve --model-repository models --http-port 0 --allow-grpc false --log-verbose 1
  modserve --model-repository models --model-control-mode explicit --load-model simple
  modserve serve resnet50.onnx
  modserve serve my_module:my_model
  modserve check models --load
  modserve --config modserve.yaml"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Names and variables are never broken."""

    column = 8
    """Column of the options' texts."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, 100)
        super().__init__(prog, max_help_position=self.column, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [
            line
            for part in text.splitlines()
            for line in textwrap.wrap(part, width, break_on_hyphens=False, break_long_words=False)
        ]


class _TwoColumns(_Formatter):
    column = 26


def topics() -> Mapping[str, Sequence[Option]]:
    """Return the options of each section by the first word of its heading."""
    sections: dict[str, list[Option]] = {}
    for option in OPTIONS.values():
        if option.section:
            own = sections[option.section.partition(" ")[0].lower()] = []
        own.append(option)
    return sections


def first_page(commands: Commands) -> str:
    """Return the text of ``--help``: the common options, the commands, and the pointers to the rest."""
    made = _parser(_TwoColumns, epilog="\n\n".join((_commands(commands), _SOURCES, _EPILOG)))
    group = made.add_argument_group("common options")
    group.add_argument("--config", metavar="FILE", help=_CONFIG)
    for name in _COMMON:
        _add(group, OPTIONS[name], variable=False)
    group = made.add_argument_group(f"more options ({len(OPTIONS) + 1} in all)")
    _add_help(group)
    return made.format_help()


def topic_page(topic: str) -> str:
    """Return the options of one of the `topics`."""
    made = _parser(_Formatter, f"modserve [serve] [options]\n       modserve --help {topic}", None)
    options = topics()[topic]
    group = made.add_argument_group(options[0].section)
    for option in options:
        _add(group, option)
    return made.format_help()


def full_page(commands: Commands) -> str:
    """Return the text of ``--help-all``."""
    return parser(commands).format_help()


def parser(commands: Commands) -> argparse.ArgumentParser:
    """Return the options by section, for help and completion. It does not parse: see `sources.from_words`."""
    top = _parser(_Formatter, description="\n\n".join((_DESCRIPTION, *filter(None, [_commands(commands)]), _SOURCES)))
    group = top.add_argument_group("command")
    _add_help(group)
    group.add_argument("--print-completion", metavar="bash|zsh|fish", help="Same as 'modserve completion'.")
    group.add_argument("--config", metavar="FILE", help=f"{_CONFIG}\n[env: MODSERVE_CONFIG]")
    for options in topics().values():
        group = top.add_argument_group(options[0].section)
        for option in options:
            _add(group, option)
    return top


def _parser(
    formatter: type[_Formatter], usage: str = _USAGE, description: str | None = _DESCRIPTION, epilog: str = _EPILOG
) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        "modserve", usage, description, epilog, formatter_class=formatter, add_help=False, allow_abbrev=False
    )


def _commands(commands: Commands) -> str:
    """Return the commands, each with its line, under their headings."""
    heads = {name: f"  modserve {name} {command.words}".rstrip() for name, command in commands.items()}
    width = max(map(len, heads.values()), default=0)
    lines: list[str] = []
    for name, command in commands.items():
        if command.section:
            lines += [f"{command.section}:"] if not lines else ["", f"{command.section}:"]
        lines.append(f"{heads[name].ljust(width)}  {command.summary}")
    return "\n".join(lines)


def _add_help(group: argparse._ArgumentGroup) -> None:
    listed = ", ".join(topics())
    text = f"Print the first page, the options of a TOPIC ({listed}), or the help of a command, and exit."
    group.add_argument("--help", action="store", nargs="?", metavar="TOPIC", help=text)
    group.add_argument("--help-all", action="help", help="Print all options and exit.")
    group.add_argument("--version", action="version", help="Print the version and exit.")


def _add(group: argparse._ArgumentGroup, option: Option, *, variable: bool = True) -> None:
    default = f"[default: {option.default_in_words}] " if option.default_in_words else ""
    group.add_argument(
        f"--{option.name}",
        metavar=option.value,
        nargs="?" if option.flag else None,
        choices=option.value.split("|") if "|" in option.value else None,
        help=f"{option.help}\n{default}[env: {option.variable}]" if variable else f"{option.help} {default}".rstrip(),
    )

"""The text of ``--help``, and scripts that complete options in a shell, both from the options of the settings."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Protocol

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
       modserve --version | --help"""

_DESCRIPTION = """\
Serves the models in DIR, and decorated Python functions, over KServe v2: HTTP, gRPC, and
Prometheus metrics.
%s
You can also set each option with an environment variable, or in a YAML or TOML file that
--config names: --http-port 80 is MODSERVE_HTTP_PORT=80, and 'http-port: 80' in YAML. The
command line overrides the environment, and the environment overrides the file. Other
options of tritonserver are accepted without effect, or refused with the reason."""

_EPILOG = """\
examples:
  modserve --model-repository models
  modserve --model-repository models --http-port 0 --allow-grpc false --log-verbose 1
  modserve --model-repository models --model-control-mode explicit --load-model simple
  modserve serve resnet50.onnx
  modserve serve my_module:my_model
  modserve check models --load
  modserve --config modserve.yaml
  modserve completion bash > ~/.local/share/bash-completion/completions/modserve"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Names and variables are never broken."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=8, width=min(shutil.get_terminal_size().columns - 2, 100))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [
            line
            for part in text.splitlines()
            for line in textwrap.wrap(part, width, break_on_hyphens=False, break_long_words=False)
        ]


def _listed(commands: Commands) -> Iterator[str]:
    """The commands, each with its line, under their headings."""
    heads = {name: f"  modserve {name} {command.words}".rstrip() for name, command in commands.items()}
    width = max(map(len, heads.values()), default=0)
    for name, command in commands.items():
        if command.section:
            yield f"\n{command.section}:"
        yield f"{heads[name].ljust(width)}  {command.summary}"


def parser(commands: Commands) -> argparse.ArgumentParser:
    """The options by section, for help and completion. It does not parse: see `sources.from_words`."""
    description = _DESCRIPTION % "".join(f"{line}\n" for line in _listed(commands))
    top = argparse.ArgumentParser(
        "modserve", _USAGE, description, _EPILOG, formatter_class=_Formatter, add_help=False, allow_abbrev=False
    )
    group = top.add_argument_group("command")
    group.add_argument("--help", action="help", help="Print this help and exit.")
    group.add_argument("--version", action="version", help="Print the version and exit.")
    group.add_argument("--print-completion", metavar="bash|zsh|fish", help="Same as 'modserve completion'.")
    group.add_argument("--config", metavar="FILE", help="YAML or TOML file with options.\n[env: MODSERVE_CONFIG]")
    for option in OPTIONS.values():
        if option.section:
            group = top.add_argument_group(option.section)
        default = f"[default: {option.default_in_words}] " if option.default_in_words else ""
        group.add_argument(
            f"--{option.name}",
            metavar=option.value,
            nargs="?" if option.flag else None,
            choices=option.value.split("|") if "|" in option.value else None,
            help=f"{option.help}\n{default}[env: {option.variable}]",
        )
    return top

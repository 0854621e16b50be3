"""The text of ``--help``, and scripts that complete options in a shell, both from the options of the settings."""

import argparse
import shutil
import textwrap

from .options import OptionError
from .settings import OPTIONS

SHELLS = ("bash", "zsh", "fish")
COMMANDS = ("serve", "check", "config", "engines")

_OPTIONS_OF_COMMANDS = {
    "--load": "check: load each model, too.",
    "--against": "check: compare with a running server.",
    "--tolerance": "check: how much outputs may differ.",
    "--json": "check: print one JSON document.",
    "--max-batch-size": "config: the most rows of a batch.",
    "--output": "config: the file to write.",
}
"""Options that `serve` does not have, for completion."""

_USAGE = """modserve [serve] --model-repository DIR [options]
       modserve [serve] [NAME=]MODEL_FILE … [options]
       modserve [serve] [NAME=]MODULE:OBJECT … [options]
       modserve check DIR … [--load] [--against URL] [--json] [options]
       modserve config MODEL_FILE [--max-batch-size N] [-o FILE]
       modserve engines
       modserve --version | --help | --print-completion bash|zsh|fish"""

_DESCRIPTION = """\
Serves the models in DIR, and decorated Python functions, over KServe v2: HTTP, gRPC, and
Prometheus metrics. 'modserve engines' lists what can run models here; 'modserve check' says what
is wrong with the models in DIR, and serves nothing; 'modserve config' writes a config.pbtxt.

Each option can also be set by an environment variable, and in the YAML or TOML file that
--config names: --http-port 80 is MODSERVE_HTTP_PORT=80, and 'http-port: 80' in YAML. The
command line wins over the environment, and the environment over the file. tritonserver's
options that are not listed here are accepted without effect, or refused with the reason."""

_EPILOG = """\
examples:
  modserve --model-repository models
  modserve --model-repository models --http-port 0 --allow-grpc false --log-verbose 1
  modserve --model-repository models --model-control-mode explicit --load-model simple
  modserve serve resnet50.onnx
  modserve serve my_module:my_model
  modserve check models --load
  modserve --config modserve.yaml
  modserve --print-completion bash > ~/.local/share/bash-completion/completions/modserve"""


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


def parser() -> argparse.ArgumentParser:
    """The options by section, for help and completion. It does not parse: see `sources.from_words`."""
    top = argparse.ArgumentParser(
        "modserve", _USAGE, _DESCRIPTION, _EPILOG, formatter_class=_Formatter, add_help=False, allow_abbrev=False
    )
    group = top.add_argument_group("command")
    group.add_argument("--help", action="help", help="Print this, and exit.")
    group.add_argument("--version", action="version", help="Print the version, and exit.")
    group.add_argument(
        "--print-completion",
        metavar="|".join(SHELLS),
        choices=SHELLS,
        help="Print a script that completes options in this shell, and exit.",
    )
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


def completion(shell: str) -> str:
    """A script that completes options in a shell. Raises OptionError."""
    if shell not in SHELLS:
        raise OptionError(f"option '--print-completion': expected {', '.join(SHELLS)}, got: {shell}")
    import shtab  # only here, since every start would pay for it

    top = parser()
    top.add_argument("command", nargs="?", choices=COMMANDS, help="What to do.")
    top.add_argument("file", nargs="*", metavar="FILE", help="Repositories, or a model file.")
    for option, text in _OPTIONS_OF_COMMANDS.items():
        top.add_argument(option, action="store_true", help=text)
    for action in top._actions:
        action.help = str(action.help).partition("\n")[0]
        if action.metavar in ("FILE", "DIR"):
            action.complete = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(top, shell))

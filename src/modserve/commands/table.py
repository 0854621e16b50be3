"""The commands of ``modserve``: a line for each, and the module of the same name that does it.

A module has `HELP`, the text of ``modserve NAME --help``, and ``main(words)``, which takes the words behind the
command's name and returns the exit code. It is imported when its command runs, and at no other time.
"""

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast


class Command(NamedTuple):
    """A row: what stands in the list that ``modserve --help`` prints."""

    words: str
    """What follows the command's name."""
    summary: str
    section: str = ""
    """The heading that begins with this command."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "check": Command("DIR …", "Check the models in DIR.", "commands for models"),
        "config": Command("MODEL_FILE", "Write a config.pbtxt for a model file."),
        "init": Command("NAME --from WHAT", "Create a new model from a file or a template."),
        "engines": Command("", "List installed engines, and how to install others.", "commands for this machine"),
        "doctor": Command("", "Check this machine for problems."),
        "completion": Command("bash|zsh|fish", "Print a shell completion script."),
        "status": Command("", "Show whether a server is ready, and its counts.", "commands for a running server"),
        "models": Command("[MODEL …]", "List its models, or describe the named ones."),
        "top": Command("", "Watch requests, queues, batches, latencies and errors."),
        "infer": Command("MODEL [NAME=VALUE …]", "Send a request and show the response."),
        "load": Command("MODEL …", "Load or reload models."),
        "unload": Command("MODEL …", "Unload models."),
        "bench": Command("MODEL", "Measure the latency and throughput of a model.", "commands for measuring"),
        "tune": Command("MODEL --goal-ms N", "Find the fastest configuration within a goal."),
    }
)
"""All but `serve`, in the order of the help."""


class CommandModule(Protocol):
    """What a command's module has."""

    HELP: str

    def main(self, words: Sequence[str], /) -> int: ...


def program(name: str) -> CommandModule:
    """The module of a command."""
    return cast(CommandModule, importlib.import_module(f"{__package__}.{name}"))

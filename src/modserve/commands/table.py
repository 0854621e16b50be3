"""The commands of ``modserve``: a row for each, and the module of the same name, imported when the command runs."""

import importlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from .syntax import Parser


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
"""All but `serve`, in the order of the help."""


class CommandModule(Protocol):
    """What the module of a command defines."""

    PARSER: "Parser"

    def work(self, options: Namespace, /) -> int:
        """Runs the command; returns the exit code."""


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

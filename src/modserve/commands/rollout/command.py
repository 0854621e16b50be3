"""The command line of ``modserve rollout``."""

import json
import os
import select
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from modserve.commands.terminal import Interruption
from modserve.core.errors import invalid

from ..destination import Destination, destinations
from ..load import parameters
from ..server_set import connect_all
from ..syntax import (
    FAILED,
    INTERRUPTED,
    UsageError,
    add_destination,
    add_json,
    number_type,
    option,
    parser,
    positive,
    print_error,
    reading,
)
from ..terminal import plural
from ..top.source import METRICS_VARIABLE, SnapshotSource, add_metrics_url, metrics_pages
from .rule import RolloutRules
from .show import document, lines
from .steps import Rollout, RolloutPlan

_DEFAULTS = RolloutRules()
_SOON = 10.0
"""Seconds for a server to tell its counts."""
_FIRST_INTERRUPT = "going back when the call in progress ends; Ctrl-C again leaves all servers as they are"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("a whole number")
    return int(text)


PARSER = parser(
    "rollout",
    "Loads a model again, or another version of it, on the first of several servers, and watches it\n"
    "beside the others: errors and latencies of the requests that clients send meanwhile. If it is as\n"
    "good, the others load it one after another and are watched for as long; if one is worse, or a load\n"
    "fails, or after Ctrl-C, all servers go back to what they had. They must run with --model-control-mode\n"
    "explicit.",
    "  modserve rollout resnet:2 --url dns:///modserve.svc:8000\n"
    "  modserve rollout resnet --url http://a:8000,http://b:8000 --watch 300 --yes\n"
    "  modserve rollout resnet --config config.json --url http://a:8000,http://b:8000 --json --yes",
    "0 rolled out, 1 not rolled out (the reason is printed), 2 wrong command line, 130 interrupted",
)
PARSER.add_argument("model", metavar="MODEL[:VERSION]", help="The model; without a version what its repository has.")
option(PARSER, "--config FILE", "Configuration in JSON, instead of the one that each server has.")
option(
    PARSER,
    "--watch SECONDS",
    f"How long to watch the first server, and then the others together. [default: {_DEFAULTS.watch:g}]",
    type=positive,
    default=_DEFAULTS.watch,
)
option(
    PARSER,
    "--requests N",
    "Requests that the new version needs in that time, on each server, and the old one; with fewer, all go back. "
    f"[default: {_DEFAULTS.requests}]",
    type=reading(_count),
    default=_DEFAULTS.requests,
)
option(
    PARSER,
    "--factor F",
    f"How many times the errors and latencies of the others are too much. [default: {_DEFAULTS.factor:g}]",
    type=number_type("a number of 1 or more", lambda value: 1 <= value < 1e6),
    default=_DEFAULTS.factor,
)
PARSER.add_argument("--yes", action="store_true", help="Go on to the others without asking.")
add_json(PARSER)
add_destination(PARSER, 600.0, several=True)
add_metrics_url(PARSER)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    plan = read(options)
    places = destinations(options)
    if len(places) < 2:
        raise UsageError("option '--url': a rollout needs two servers or more; 'modserve load' is for one")
    if not options.yes and (options.json or not sys.stdin.isatty()):
        raise UsageError("option '--yes' is required without a terminal to ask at, and with '--json'")
    pages = metrics_pages(places, options.metrics_url or os.environ.get(METRICS_VARIABLE, ""))
    with ExitStack() as stack:
        servers = stack.enter_context(closing(connect_all(places)))
        sources = [
            stack.enter_context(closing(SnapshotSource(_soon(place), pages[str(place.address)]))) for place in places
        ]
        interruption = stack.enter_context(Interruption(lambda: print_error(_FIRST_INTERRUPT)))

        def say(text: str) -> None:
            print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

        def agree(others: int) -> bool:
            return options.yes or _confirmed(f"go on to {plural(others, 'other server')}? [y/N] ", interruption)

        report = Rollout(plan, servers, sources, interruption, agree, say, time.sleep, time.monotonic).run()
    print(json.dumps(document(report), indent=2, ensure_ascii=False) if options.json else "\n".join(lines(report)))
    if report.done:
        return 0
    return INTERRUPTED if interruption.happened else FAILED


def read(options: Namespace) -> RolloutPlan:
    """Read the options. Raises UsageError, INVALID_ARG."""
    model, colon, text = options.model.partition(":")
    if not model or (colon and not (text.isascii() and text.isdigit() and len(text) < 19 and int(text))):
        raise UsageError(f"expected MODEL or MODEL:VERSION with a number, got: {options.model}")
    config: Mapping[str, Any] | None = None
    if options.config:
        config = json.loads(str(parameters(options.config, [])["config"]))
        if not isinstance(config, dict):
            raise invalid(f"option '--config': {options.config} is not a JSON object")
    rules = RolloutRules(options.watch, options.requests, options.factor)
    return RolloutPlan(model, int(text) if colon else None, config, rules)


def _soon(place: Destination) -> Destination:
    return replace(place, seconds=min(place.seconds, _SOON))


def _confirmed(question: str, interruption: Interruption) -> bool:
    print(question, end="", flush=True)
    while not interruption.happened:
        if select.select([sys.stdin], [], [], 0.2)[0]:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
    return False

"""``modserve doctor``: checks this machine for a server, or what a server is open to, with advice for each problem."""

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence

from modserve.settings import OptionError, Settings, from_command_line

from .destination import address
from .doctor_checks import PROBLEM, Check, all_checks
from .syntax import UsageError, add_json, option, parser
from .terminal import COLOURS, PLAIN, plural, takes_colours

PARSER = parser(
    "doctor",
    "Checks this machine for a server with the same options, and suggests what to do: versions,\n"
    "libraries, ports, cores, memory, open files, shared memory, engines, GPUs, clock. It serves nothing.\n"
    "With --security, it says instead what such a server, or a running one, lets strangers do.",
    "  modserve doctor\n  modserve doctor --http-port 80\n  modserve doctor --config modserve.yaml --json\n"
    "  modserve doctor --security --auth-file keys.yaml\n  modserve doctor --security --url http://host:8000",
    "0 no problems (there may be warnings), 1 problems, 2 wrong command line",
    usage="[--security [--url URL]] [--json]",
)
PARSER.add_argument("--security", action="store_true", help="Check what strangers may do, not the machine.")
option(PARSER, "--url URL", "With --security: ask a running server, without a key. Nothing is changed.")
add_json(PARSER)

_NO_MODELS = "no model repository given"


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    checks = list(_security(options) if options.security else _machine(options))
    if options.json:
        print(json.dumps([each._asdict() for each in checks], indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(checks, colours=takes_colours(sys.stdout))))
    return int(any(each.level == PROBLEM for each in checks))


def _machine(options: Namespace) -> Iterator[Check]:
    if options.url:
        raise UsageError("option '--url' is for 'modserve doctor --security'")
    return all_checks(*read(options.server_words))


def _security(options: Namespace) -> Iterator[Check]:
    from . import security_checks, security_probe

    if not options.url:
        return security_checks.all_checks(read(options.server_words)[0])
    if options.server_words:
        raise UsageError(
            f"'{options.server_words[0]}' is for a server that is to be started, and '--url' for a running one"
        )
    place = address(options.url)
    if place.over_grpc:
        raise UsageError("option '--url': expected the HTTP port, http://HOST:PORT, https://HOST:PORT or unix:PATH")
    return security_probe.all_checks(place)


def read(words: Sequence[str]) -> tuple[Settings, Sequence[str]]:
    """The settings of a server with these options, and warnings; they need not name models. Raises UsageError."""
    try:
        line = from_command_line(words)
    except OptionError as error:
        if _NO_MODELS not in str(error):
            raise UsageError(str(error)) from None
        line = from_command_line([*words, "--model-repository=."])
        return line.settings.model_copy(update={"model_repository": ()}), line.warnings
    return line.settings, line.warnings


def lines(checks: Sequence[Check], *, colours: bool = False) -> Iterator[str]:
    """The report as text."""
    width = max(len(each.name) for each in checks)
    for each in checks:
        level = each.level.ljust(7)
        shown = f"{COLOURS[each.level]}{level}{PLAIN}" if colours else level
        yield f"{shown}  {each.name.ljust(width)}  {each.text}"
        if each.advice:
            yield f"{' ' * (width + 11)}→ {each.advice}"
    levels = Counter(each.level for each in checks)
    yield ""
    yield f"{levels['ok']} ok, {plural(levels['warning'], 'warning')}, {plural(levels['problem'], 'problem')}"

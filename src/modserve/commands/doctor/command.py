"""``modserve doctor``: checks this machine for a server, or the access that a server allows, with advice."""

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from modserve.client.address import Address
from modserve.settings import OptionError, Settings, from_command_line

from ..destination import addresses
from ..errors import UnreachableError
from ..syntax import UsageError, add_json, option, parser
from ..terminal import COLOURS, PLAIN, plural, takes_colours
from .checks import PROBLEM, Check, all_checks

PARSER = parser(
    "doctor",
    "Checks this machine for a server with the same options, and suggests what to do: versions,\n"
    "libraries, ports, cores, memory, open files, shared memory, engines, GPUs, clock. It serves nothing.\n"
    "With --security, it says instead what such a server, or a running one, lets strangers do.",
    "  modserve doctor\n  modserve doctor --http-port 80\n  modserve doctor --config modserve.yaml --json\n"
    "  modserve doctor --security --auth-file keys.yaml\n  modserve doctor --security --url http://host:8000\n"
    "  modserve doctor --security --url grpcs://host:8001",
    "0 no problems (there may be warnings), 1 problems, 2 wrong command line",
    usage="[--security [--url URL]] [--json]",
)
PARSER.add_argument("--security", action="store_true", help="Check what strangers may do, not the machine.")
option(PARSER, "--url URL", "With --security: ask running servers, without a key. Nothing is changed.")
add_json(PARSER)

_NO_MODELS = "no model repository given"


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    groups = _security(options) if options.security else {"": list(_machine(options))}
    checks = [each for group in groups.values() for each in group]
    if options.json:
        rows = [
            {**({"server": url} if url else {}), **each._asdict()} for url, group in groups.items() for each in group
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(groups, colours=takes_colours(sys.stdout))))
    return int(any(each.level == PROBLEM for each in checks))


def _machine(options: Namespace) -> Iterator[Check]:
    if options.url:
        raise UsageError("option '--url' is for 'modserve doctor --security'")
    return all_checks(*read(options.server_words))


def _security(options: Namespace) -> Mapping[str, Sequence[Check]]:
    """Return the security checks by server address; by an empty text for a single server."""
    from . import security_checks

    if not options.url:
        return {"": list(security_checks.all_checks(read(options.server_words)[0]))}
    if options.server_words:
        raise UsageError(
            f"'{options.server_words[0]}' is for a server that is to be started, and '--url' for a running one"
        )
    places = addresses(options.url)
    if len(places) == 1:
        return {"": list(_checks(places[0]))}
    with ThreadPoolExecutor(len(places)) as threads:
        return dict(zip(map(str, places), threads.map(_probe, places), strict=True))


def _checks(place: Address) -> Iterable[Check]:
    if place.over_grpc:
        from . import grpc_probe

        return grpc_probe.all_checks(place)
    from . import security_probe

    return security_probe.all_checks(place)


def _probe(place: Address) -> Sequence[Check]:
    """Check one of several servers; report a server that does not respond as a problem."""
    try:
        return list(_checks(place))
    except UnreachableError as error:
        return [Check(PROBLEM, "server", error.message)]


def read(words: Sequence[str]) -> tuple[Settings, Sequence[str]]:
    """Read the settings of a server's options, and warnings; they need not name models. Raises UsageError."""
    try:
        line = from_command_line(words)
    except OptionError as error:
        if _NO_MODELS not in str(error):
            raise UsageError(str(error)) from None
        line = from_command_line([*words, "--model-repository=."])
        return line.settings.model_copy(update={"model_repository": ()}), line.warnings
    return line.settings, line.warnings


def lines(groups: Mapping[str, Sequence[Check]], *, colours: bool = False) -> Iterator[str]:
    """Yield the report as text. The checks of a group follow its name, if it has one."""
    checks = [each for group in groups.values() for each in group]
    width = max(len(each.name) for each in checks)
    for title, group in groups.items():
        if title:
            yield f"{title}:"
        for each in group:
            level = each.level.ljust(7)
            shown = f"{COLOURS[each.level]}{level}{PLAIN}" if colours else level
            yield f"{shown}  {each.name.ljust(width)}  {each.text}"
            if each.advice:
                yield f"{' ' * (width + 11)}→ {each.advice}"
        if title:
            yield ""
    levels = Counter(each.level for each in checks)
    if "" in groups:
        yield ""
    yield f"{levels['ok']} ok, {plural(levels['warning'], 'warning')}, {plural(levels['problem'], 'problem')}"

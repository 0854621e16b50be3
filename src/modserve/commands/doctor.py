"""``modserve doctor``: what on this machine is in the way of a server, each with what to do."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from modserve.settings import OptionError, Settings, from_command_line

from .doctor_checks import PROBLEM, Check, all_checks
from .syntax import USAGE_ERROR, print_error
from .terminal import COLOURS, PLAIN, plural, takes_colours

HELP = """\
usage: modserve doctor [--json] [options of 'modserve serve']

Checks this machine for a server with the same options, and suggests what to do: versions,
libraries, ports, cores, memory, open files, shared memory, engines, GPUs, clock. It serves nothing.

  --json  Print one JSON document.

exit codes: 0 no problems (there may be warnings), 1 problems, 2 wrong command line

examples:
  modserve doctor
  modserve doctor --http-port 80
  modserve doctor --config modserve.yaml --json"""

_NO_MODELS = "no model repository given"


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    rest = [word for word in words if word != "--json"]
    try:
        settings, remarks = read(rest)
    except OptionError as error:
        print_error(str(error), "see 'modserve doctor --help'")
        return USAGE_ERROR
    checks = list(all_checks(settings, remarks))
    if len(rest) < len(words):
        print(json.dumps([each._asdict() for each in checks], indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(checks, colours=takes_colours(sys.stdout))))
    return int(any(each.level == PROBLEM for each in checks))


def read(words: Sequence[str]) -> tuple[Settings, Sequence[str]]:
    """The settings of a server with these options, which need not name models, and warnings. Raises OptionError."""
    try:
        line = from_command_line(words)
    except OptionError as error:
        if _NO_MODELS not in str(error):
            raise
        line = from_command_line([*words, "--model-repository=."])
    return line.settings, line.warnings


def lines(checks: Sequence[Check], *, colours: bool = False) -> Iterator[str]:
    """What a person reads."""
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

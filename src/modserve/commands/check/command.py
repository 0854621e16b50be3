"""``modserve check DIR …``: reports all problems of all models, in a form that editors understand."""

import asyncio
import json
import logging
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from modserve.commands.terminal import stdout_as_stderr
from modserve.config import printable
from modserve.core.errors import ModserveError
from modserve.observability.logging import Logs
from modserve.process.model_setup import repositories
from modserve.settings import OptionError, from_command_line

from ..remote_server import connect
from ..syntax import UsageError, add_json, number_type, option, parser, print_error
from ..terminal import BOLD, CYAN, GREEN, PLAIN, RED, plural, takes_colours
from .model_check import CheckReport, Counterpart, Finding, ModelReport, check

CANNOT_CHECK = 2

PARSER = parser(
    "check",
    "Checks all models in DIR as a server with the same options does, and reports each problem with\n"
    "file, line and column, and the line itself. It serves nothing. Settings without effect are notes.",
    """\
  modserve check model_repository
  modserve check model_repository --load
  modserve check model_repository --against http://triton:8000
  modserve check --config modserve.yaml --json""",
    "0 no problems (there may be notes), 1 problems, 2 the check failed, or compared no response",
    usage="DIR … [--load] [--against URL] [--json]",
)
PARSER.add_argument(
    "--load",
    action="store_true",
    help="Also load each model, one after the other, as a server does at its start, to find problems that only the "
    "engine can detect.",
)
option(
    PARSER,
    "--against URL",
    "Load each model, and compare it with the model of the same name in a running server, such as Triton: "
    "tensors, versions, configuration, and the responses to some requests with generated data. URL is "
    "http://HOST:PORT, https://…, grpc://HOST:PORT or grpcs://….",
    default=None,
)
option(
    PARSER,
    "--tolerance X",
    "Relative tolerance for floating-point outputs. [default: 0.001]",
    type=number_type("a number of 0 or more", lambda value: 0 <= value < math.inf),
)
add_json(PARSER)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    if options.tolerance is not None and not options.against:
        raise UsageError("option '--tolerance' is for '--against'")
    try:
        settings = from_command_line(options.server_words, argument="model-repository").settings
        against = None
        if options.against:
            tolerance = _TOLERANCE if options.tolerance is None else options.tolerance
            against = Counterpart(connect(options.against), options.against, tolerance)
    except (OptionError, ModserveError) as error:
        text = str(error).replace("no model repository given; set '--model-repository DIR'", "no directory given")
        raise UsageError(text) from None
    if settings.log_verbose:
        Logs(settings.log).install()
    else:
        logging.getLogger().addHandler(logging.NullHandler())  # the report has what the log would have
    try:
        with stdout_as_stderr():
            load = options.load or against is not None
            report = asyncio.run(check(repositories(settings), settings, load=load, against=against))
    except ModserveError as error:
        print_error(error.message)
        return CANNOT_CHECK
    finally:
        if against is not None:
            against.server.close()
    if options.json:
        print(json.dumps(to_json(report), indent=2, ensure_ascii=False))
    else:
        places = {str(path.absolute()): str(path) for path in settings.repositories if isinstance(path, Path)}
        print("\n".join(lines(report, places, colours=takes_colours())))
    if report.inconclusive:
        return CANNOT_CHECK
    return 1 if report.problems else 0


_TOLERANCE = 1e-3
_NOWHERE: Mapping[str, str] = MappingProxyType({})


def lines(report: CheckReport, places: Mapping[str, str] = _NOWHERE, *, colours: bool = False) -> Iterator[str]:
    """Yield the report as text: problems, notes, and a summary line.

    `places` maps absolute paths of directories to the spelling on the command line.
    """

    def as_written(text: str) -> str:
        for absolute, written in places.items():
            text = text.replace(f"{absolute}/", f"{written}/").replace(f"'{absolute}'", f"'{written}'")
        return text

    for model in report.models:
        for kind, colour, each in _all(model):
            yield from map(as_written, _format_finding(kind, colour if colours else "", each))
    for remark in report.remarks:
        yield f"{_colour('note:', CYAN if colours else '')} {as_written(printable(remark))}"
    if report.models and (report.problems or report.notes):
        yield ""
    wrong = sum(bool(model.problems) for model in report.models)
    done = "loaded" if report.loaded else "checked"
    if report.against:
        done = f"loaded and compared with {report.against} ({plural(report.compared, 'response')})"
    head = f"{plural(len(report.models), 'model')} {done}: "
    if report.inconclusive:
        head += _colour("no verdict, because no response was compared", RED if colours else "")
    elif not wrong:
        head += _colour("no problems", GREEN if colours else "")
    else:
        head += f"{_colour(plural(report.problems, 'problem'), RED if colours else '')} in {plural(wrong, 'model')}"
    head += f", {plural(report.notes, 'note')}" if report.notes else ""
    # Problems are to be mended first; without any, the line must not claim more than was done.
    yield head if wrong or report.loaded or not report.models else f"{head} (files read, nothing loaded; --load loads)"


def _all(model: ModelReport) -> Iterator[tuple[str, str, Finding]]:
    yield from (("error:", RED, each) for each in model.problems)
    yield from (("note:", CYAN, each) for each in model.notes)


def _format_finding(kind: str, colour: str, each: Finding) -> Iterator[str]:
    """Yield a finding in the format of compilers, which editors know: ``file:line:column: error: text``."""
    place = each.file if each.line is None else f"{each.file}:{each.line}:{each.column}"
    place = _colour(f"{printable(place)}:", BOLD if colour else "")
    yield f"{place} {_colour(kind, colour)} {printable(each.text)}"
    for index, line in enumerate(each.excerpt):
        yield f"    {_colour(printable(line), colour if index else '')}"
    yield from (f"    {printable(line)}" for line in each.advice.splitlines())


def _colour(text: str, colour: str) -> str:
    return f"{colour}{text}{PLAIN}" if colour else text


def to_json(report: CheckReport) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
    return {
        "ok": not report.problems and not report.inconclusive,
        "loaded": report.loaded,
        "against": report.against or None,
        "problems": report.problems,
        "notes": report.notes,
        "models": [
            {
                "name": model.name,
                "path": model.path,
                "versions": list(model.versions),
                "compared": model.compared,
                "ok": not model.problems,
                "problems": [_finding(each) for each in model.problems],
                "notes": [_finding(each) for each in model.notes],
            }
            for model in report.models
        ],
        "remarks": [printable(remark) for remark in report.remarks],
    }


def _finding(each: Finding) -> dict[str, Any]:
    return {
        "file": printable(each.file),
        "line": each.line,
        "column": each.column,
        "text": printable(each.text),
        "excerpt": [printable(line) for line in each.excerpt],
        "suggestion": each.suggestion,
        "advice": printable(each.advice),
    }

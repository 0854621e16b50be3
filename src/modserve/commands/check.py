"""``modserve check DIR …``: all problems of all models, as an editor would show them. Nothing is served."""

import asyncio
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from modserve.config import printable
from modserve.core.errors import ModserveError
from modserve.observability.logging import Logs
from modserve.process.model_setup import repositories
from modserve.settings import OptionError, from_command_line

from .model_check import Counterpart, Finding, ModelReport, Report, check
from .remote_server import connect
from .stdout import stdout_as_stderr

CANNOT_CHECK = 2

HELP = """\
usage: modserve check DIR … [--load] [--against URL] [--json] [options of 'modserve serve']

Checks all models in DIR as a server with the same options does, and reports each problem with
file, line and column, and the line itself. It serves nothing. Settings without effect are notes.

  --load  Also load each model, one after the other, as a server does at its start, to find
          problems that only the engine can detect.
  --against URL
          Load each model, and compare it with the model of the same name in a running server, such
          as Triton: tensors, versions, configuration, and the responses to some requests with
          generated data. URL is http://HOST:PORT, https://…, grpc://HOST:PORT or grpcs://….
  --tolerance X
          Relative tolerance for floating-point outputs. [default: 0.001]
  --json  Print one JSON document.

exit codes: 0 no problems (there may be notes), 1 problems, 2 the check or comparison failed

examples:
  modserve check model_repository
  modserve check model_repository --load
  modserve check model_repository --against http://triton:8000
  modserve check --config modserve.yaml --json"""


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    as_json, load = "--json" in words, "--load" in words
    against = None
    try:
        words, own = _own_options(words)
        line = from_command_line(
            [word for word in words if word not in ("--json", "--load")], argument="model-repository"
        )
        if "--against" in own:
            against = Counterpart(connect(own["--against"]), own["--against"], _tolerance(own.get("--tolerance", "")))
        elif own:
            raise OptionError("option '--tolerance' is for '--against'")
    except (OptionError, ModserveError) as error:
        text = str(error).replace("no model repository given; set '--model-repository DIR'", "no directory given")
        print(f"modserve: {text}\nmodserve: see 'modserve check --help'", file=sys.stderr)
        return CANNOT_CHECK
    settings = line.settings
    if settings.log_verbose:
        Logs(settings.log).install()
    else:
        logging.getLogger().addHandler(logging.NullHandler())  # the report has what the log would have
    try:
        with stdout_as_stderr():
            load = load or against is not None
            report = asyncio.run(check(repositories(settings), settings, load=load, against=against))
    except ModserveError as error:
        print(f"modserve: {error.message}", file=sys.stderr)
        return CANNOT_CHECK
    finally:
        if against is not None:
            against.server.close()
    if as_json:
        print(json.dumps(to_json(report), indent=2, ensure_ascii=False))
    else:
        places = {str(path.absolute()): str(path) for path in settings.repositories if isinstance(path, Path)}
        print("\n".join(lines(report, places, colours=_takes_colours(sys.stdout))))
    return 1 if report.problems else 0


def _own_options(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The other words, and the values of options that only this command has. Raises OptionError."""
    rest: list[str] = []
    values: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name not in ("--against", "--tolerance"):
            rest.append(word)
            continue
        values[name] = value if equals else next(remaining, "")
        if not values[name]:
            raise OptionError(f"option '{name}' requires a value")
    return rest, values


def _tolerance(text: str) -> float:
    try:
        value = float(text or _TOLERANCE)
    except ValueError:
        value = -1
    if not 0 <= value < math.inf:
        raise OptionError(f"option '--tolerance': expected a number of 0 or more, got: {text}")
    return value


_TOLERANCE = 1e-3
_NOWHERE: Mapping[str, str] = MappingProxyType({})


def _takes_colours(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


_RED, _CYAN, _BOLD, _GREEN, _PLAIN = "\x1b[1;31m", "\x1b[1;36m", "\x1b[1m", "\x1b[32m", "\x1b[0m"


def lines(report: Report, places: Mapping[str, str] = _NOWHERE, *, colours: bool = False) -> Iterator[str]:
    """What a person reads: problems, notes, and a line that sums them up.

    `places` are directories by their absolute paths, as the person has written them.
    """

    def as_written(text: str) -> str:
        for absolute, written in places.items():
            text = text.replace(f"{absolute}/", f"{written}/").replace(f"'{absolute}'", f"'{written}'")
        return text

    for model in report.models:
        for kind, colour, each in _all(model):
            yield from map(as_written, _shown(kind, colour if colours else "", each))
    for remark in report.remarks:
        yield f"{_coloured('note:', _CYAN if colours else '')} {as_written(printable(remark))}"
    if report.models and (report.problems or report.notes):
        yield ""
    wrong = sum(bool(model.problems) for model in report.models)
    done = "loaded" if report.loaded else "checked"
    if report.against:
        responses = _count(sum(model.compared for model in report.models), "response")
        done = f"loaded and compared with {report.against} ({responses})"
    head = f"{_count(len(report.models), 'model')} {done}: "
    if not wrong:
        head += _coloured("no problems", _GREEN if colours else "")
    else:
        head += f"{_coloured(_count(report.problems, 'problem'), _RED if colours else '')} in {_count(wrong, 'model')}"
    yield head + (f", {_count(report.notes, 'note')}" if report.notes else "")


def _all(model: ModelReport) -> Iterator[tuple[str, str, Finding]]:
    yield from (("error:", _RED, each) for each in model.problems)
    yield from (("note:", _CYAN, each) for each in model.notes)


def _shown(kind: str, colour: str, each: Finding) -> Iterator[str]:
    """The form of compilers, which editors know: ``file:line:column: error: text``."""
    place = each.file if each.line is None else f"{each.file}:{each.line}:{each.column}"
    place = _coloured(f"{printable(place)}:", _BOLD if colour else "")
    yield f"{place} {_coloured(kind, colour)} {printable(each.text)}"
    for index, line in enumerate(each.excerpt):
        yield f"    {_coloured(printable(line), colour if index else '')}"
    yield from (f"    {printable(line)}" for line in each.advice.splitlines())


def _coloured(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if colour else text


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def to_json(report: Report) -> dict[str, Any]:
    """The report for programs. Names stay; more may be added."""
    return {
        "ok": not report.problems,
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

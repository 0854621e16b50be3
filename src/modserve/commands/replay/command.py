"""The command line of ``modserve replay``."""

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from modserve.client import remote
from modserve.client.errors import ClientError
from modserve.core.errors import invalid
from modserve.recording.record import RequestRecord

from ..destination import Destination, destination
from ..remote_server import failure
from ..syntax import UsageError, add_destination, add_json, number_type, option, parser, reading
from ..tensor_comparison import DEFAULT_TOLERANCES, ElementTolerance
from .record_index import RecordIndex, RecordPlace, files_of, index_of
from .replay_report import Replayed, ReplayReport, compare_record
from .replay_session import Pace, Target, replay

PARSER = parser(
    "replay",
    """\
Sends the requests of files that 'modserve serve --record' has written to a server, and compares its
responses with the recorded ones: a test for the next version of a model.

FILE may be a directory with such files. Requests of a sequence are sent in their order. Integers,
booleans and texts have to be equal, floating-point numbers within a tolerance.""",
    """\
  modserve replay /var/lib/records/resnet50 --model-version 2
  modserve replay records --url http://staging:8000 --tolerance FP32=0.001
  modserve replay records/resnet50 --model resnet50_int8 --tolerance 0.05:0.01 --json
  modserve replay records --rate original --concurrency 64""",
    "0 all responses are equal, 1 some differ, none could be compared, or a failure (the reason is printed), "
    "2 wrong command line",
)


def _pace(text: str) -> Pace:
    if text in ("max", "original"):
        return Pace(original=text == "original")
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise ValueError(f"expected 'original', 'max' or requests a second, got: {text}")
    return Pace(rate)


def _tolerance(text: str) -> tuple[str, ElementTolerance]:
    """Read ``[DATATYPE=]RELATIVE[:ABSOLUTE]``, with an empty datatype for all."""
    datatype, equals, numbers = text.rpartition("=")
    relative, colon, absolute = numbers.partition(":")
    try:
        parts = float(relative), float(absolute) if colon else 0.0
    except ValueError:
        parts = (-1.0, -1.0)
    if (equals and datatype.upper() not in DEFAULT_TOLERANCES) or not all(0 <= each < 1e300 for each in parts):
        names = ", ".join(DEFAULT_TOLERANCES)
        raise ValueError(f"expected [DATATYPE=]RELATIVE[:ABSOLUTE] with DATATYPE one of {names}, got: {text}")
    return datatype.upper(), ElementTolerance(*parts)


PARSER.add_argument("files", nargs="+", metavar="FILE", help="Files of recorded requests, or directories of these.")
_GROUP = PARSER.add_argument_group("the requests")
option(_GROUP, "--model NAME", "Send them to this model. [default: the recorded one]")
option(_GROUP, "--model-version N", "Send them to this version. [default: as the clients asked]", type=int)
option(
    _GROUP,
    "--rate RATE",
    "How many a second, 'original' for the recorded intervals, 'max' for no limit. [default: max]",
    type=reading(_pace),
    default=Pace(),
)
_COUNT = number_type("a number of 1 or more", lambda number: number >= 1 and number == int(number))
option(_GROUP, "--concurrency N", "The most requests at a time. [default: 8]", type=_COUNT, default=8.0)
_GROUP = PARSER.add_argument_group("the comparison")
option(
    _GROUP,
    "--tolerance [DATATYPE=]RELATIVE[:ABSOLUTE]",
    "Allow this much between floating-point numbers; may be repeated. [default: "
    + ", ".join(f"{name}={each.relative:g}:{each.absolute:g}" for name, each in DEFAULT_TOLERANCES.items())
    + "]",
    type=reading(_tolerance),
    action="append",
    default=[],
)
option(_GROUP, "--show N", "Print at most N differences. [default: 10]", type=_COUNT, default=10.0)
add_json(PARSER)
add_destination(PARSER)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    index = index_of(files_of([Path(file) for file in options.files]))
    names = sorted({place.model for place in index.places})
    if options.model and len(names) > 1:
        raise UsageError(f"option '--model' is for the requests of one model, and the files have {', '.join(names)}")
    to = destination(options)
    report = ReplayReport(index, str(to.address))
    begin = time.perf_counter()
    asyncio.run(_replay(index, to, options, report))
    report.end(time.perf_counter() - begin)
    if options.json:
        print(json.dumps(report.document(), ensure_ascii=False))
    else:
        print("\n".join(report.text(int(options.show))))
    if not report.equal + report.different:
        print("nothing was compared", file=sys.stderr)
        return 1
    return 1 if report.different else 0


def tolerances(changes: Sequence[tuple[str, ElementTolerance]]) -> dict[str, ElementTolerance]:
    """Return the tolerances by datatype: the defaults, changed by the options."""
    by_name = dict(DEFAULT_TOLERANCES)
    for datatype, tolerance in changes:
        by_name.update(dict.fromkeys([datatype] if datatype else by_name, tolerance))
    return by_name


async def _replay(index: RecordIndex, to: Destination, options: Namespace, report: ReplayReport) -> None:
    allowed = tolerances(options.tolerance)
    if to.address.over_grpc and to.address.secure and to.access.insecure:
        raise invalid("gRPC always checks certificates; '--ca-file' names a PEM file with the authority to trust")

    def compare(place: RecordPlace, record: RequestRecord, replayed: Replayed) -> None:
        report.add(place, record, replayed, None if record.cut else compare_record(record, replayed, allowed))

    places = [place for place in index.places if not place.hindrance]
    target = Target(options.model, options.model_version, to.seconds)
    try:
        transport = remote.async_transport(to.address, to.access)
        try:
            await transport.start()
            await replay(places, transport, target, options.rate, int(options.concurrency), compare)
        finally:
            await transport.close()
    except* ClientError as group:
        raise failure(_first(group), to) from None


def _first(group: BaseExceptionGroup[ClientError]) -> ClientError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

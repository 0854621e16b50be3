"""The command line of ``modserve bench``, and what it comes to."""

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from modserve.core.tensors.tensor import Shape

from ..destination import Destination, destination
from ..syntax import Parser, UsageError, add_destination, parser, positive
from .inputs import DataOptions
from .profiler import LatencyGoal, MeasurementRules
from .ranges import read_range, whole_range
from .search import LOWEST
from .sequences import DEFAULT_LENGTH, DEFAULT_VARIATION, SequenceLengths
from .session import CONNECTIONS, SEQUENCES

_DESCRIPTION = """\
Measures how fast a model of a running server responds: modserve, Triton, or any other server with
the KServe v2 protocol. Input data is generated from the model's metadata, or read from files. The
command measures windows of time until three in a row agree, and reports these three. Ctrl-C ends
it with the results so far."""
_CODES = """0 measured, 2 wrong command line, 130 ended by Ctrl-C, 1 otherwise: failed
            requests, no such model or server, no rate that keeps the goal"""
_EXAMPLES = """\
  modserve bench simple --concurrency 1:64:x2
  modserve bench simple --url grpc://127.0.0.1:8001 --rate 1000:5000:1000
  modserve bench resnet50 --shape image:3,224,224 --goal-ms 50 --html report.html"""

T = TypeVar("T")


def reading(read: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse: a value that `read` refuses, saying what it expects."""

    def wrapped(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(f"expected {error}, got: {text}") from None

    return wrapped


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ValueError("a whole number above 0")
    return int(text)


def _dims(text: str) -> tuple[str, Shape]:
    """``name:3,224,224``, or with ``x`` between the sizes."""
    name, _, sizes = text.rpartition(":")
    parts = sizes.replace("x", ",").split(",")
    if not name or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError("NAME:SIZE,SIZE,…")
    return name, tuple(map(int, parts))


def _input_file(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not equals or not name or not file.startswith("@") or len(file) < 2:
        raise ValueError("NAME=@FILE")
    return name, Path(file[1:])


def _percentile(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise ValueError("a number between 0 and 100")
    return value


def _variation(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise ValueError("a number from 0 to 100")
    return value


def bench_parser() -> Parser:
    made = parser("bench", _DESCRIPTION, _EXAMPLES, _CODES)
    made.add_argument("model", metavar="MODEL", help="Its name.")
    made.add_argument(
        "--model-version", metavar="N", type=reading(count), help="The version. [default: the server's choice]"
    )
    load = made.add_argument_group("the load")
    load.add_argument(
        "--concurrency",
        metavar="RANGE",
        type=reading(whole_range),
        help="Closed loop: number of requests at a time; each is sent when the previous one has its response. "
        "[default: 1] A RANGE is 8, or 1,4,16, or 100:2000:100, or 1:64:x2.",
    )
    load.add_argument(
        "--rate",
        metavar="RANGE",
        help="Open loop: requests per second, whatever comes back. Latency counts from when a request was due, so a "
        "stall of the server delays all requests that were due meanwhile.",
    )
    add_goal(load.add_argument)
    load.add_argument(
        "--poisson", action="store_true", help="Random gaps between the requests of a rate, as from many clients."
    )
    load.add_argument(
        "--connections",
        metavar="N",
        type=reading(count),
        help="Maximum number of requests in flight in an open loop; others wait. For models with sequences: the number "
        f"of sequences. [default: {CONNECTIONS}, and {SEQUENCES} sequences]",
    )
    load.add_argument(
        "--streaming",
        action="store_true",
        help="Send requests with ModelStreamInfer, one stream per connection (gRPC only). Decoupled models always use "
        "streams.",
    )
    sequences = made.add_argument_group("sequences, for models with sequence batching")
    sequences.add_argument(
        "--sequence-length",
        metavar="N",
        type=reading(count),
        help=f"Requests per sequence. [default: the steps of --input-data FILE, or {DEFAULT_LENGTH}]",
    )
    sequences.add_argument(
        "--sequence-length-variation",
        metavar="PERCENT",
        type=reading(_variation),
        default=DEFAULT_VARIATION,
        help=f"Random variation of the length. [default: {DEFAULT_VARIATION:g}]",
    )
    add_data(made)
    add_rules(made)
    results = made.add_argument_group("results")
    results.add_argument(
        "--json", metavar="FILE", default="", help="Also write the results as JSON; - is standard output."
    )
    results.add_argument("--html", metavar="FILE", default="", help="Write a self-contained page with plots.")
    add_destination(made)
    return made


def add_goal(add: Callable[..., object], *, required: bool = False) -> None:
    add(
        "--goal-ms",
        metavar="N",
        type=positive,
        required=required,
        help="Search for the highest rate with a latency of at most N ms."
        + ("" if required else " --rate LOW:HIGH bounds the search."),
    )
    add(
        "--percentile",
        metavar="P",
        type=reading(_percentile),
        default=99.0,
        help="Percentile of the latency for the goal and for stability. [default: 99]",
    )


def add_data(made: Parser) -> None:
    data = made.add_argument_group("the data")
    data.add_argument(
        "-b", "--batch-size", metavar="N", type=reading(count), default=1, help="Rows per request. [default: 1]"
    )
    data.add_argument(
        "--shape",
        metavar="NAME:SIZES",
        type=reading(_dims),
        action="append",
        default=[],
        help="Shape of an input with variable dimensions, without the batch: image:3,224,224.",
    )
    data.add_argument(
        "--input-data",
        metavar="WHAT",
        default="random",
        help="random (as most models accept it), zero, or a file in perf_analyzer's JSON. [default: random]",
    )
    data.add_argument(
        "--input",
        metavar="NAME=@FILE",
        type=reading(_input_file),
        action="append",
        default=[],
        help="Read an input from a .npy file, or a string from any other file.",
    )
    data.add_argument(
        "--string-length",
        metavar="N",
        type=reading(count),
        default=128,
        help="Length of random strings. [default: 128]",
    )
    data.add_argument("--string-data", metavar="TEXT", default="", help="A string to send instead of random ones.")
    data.add_argument(
        "--format",
        choices=("binary", "json"),
        default="",
        help="Format of tensors over HTTP. [default: binary if the server supports it]",
    )


def add_rules(made: Parser) -> None:
    exact = made.add_argument_group("how exact")
    exact.add_argument(
        "--window-secs", metavar="N", type=positive, default=1.0, help="Duration of a window. [default: 1]"
    )
    exact.add_argument(
        "--window-requests",
        metavar="N",
        type=reading(count),
        default=50,
        help="Minimum number of requests in a window, which lasts at most ten times as long for them. [default: 50]",
    )
    exact.add_argument(
        "--windows",
        metavar="N",
        type=reading(count),
        default=10,
        help="Maximum number of windows per load. [default: 10]",
    )
    exact.add_argument(
        "--stability",
        metavar="PERCENT",
        type=positive,
        default=10.0,
        help="Three windows agree if rates and latencies differ by at most this. [default: 10]",
    )
    exact.add_argument(
        "--warm-up-secs", metavar="N", type=positive, default=0.5, help="Warm-up before each load. [default: 0.5]"
    )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The command line, understood."""

    model: str
    version: int | None
    server: Destination
    data: DataOptions
    rules: MeasurementRules
    concurrencies: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    """The lowest and the highest rate of a search."""
    goal: LatencyGoal | None = None
    format: str = ""
    poisson: bool = False
    connections: int | None = None
    streaming: bool = False
    lengths: SequenceLengths = field(default_factory=SequenceLengths)
    json: str = ""
    html: str = ""


def read(options: Namespace) -> LoadPlan:
    """From the options of `bench_parser`. Raises UsageError, and INVALID_ARG for what is no address."""
    is_open = options.rate is not None or options.goal_ms is not None
    if options.concurrency and is_open:
        raise UsageError("option '--concurrency' is for a closed loop; --rate and --goal-ms are for an open one")
    rates, bounds = _rates(options.rate, options.goal_ms is not None)
    server = destination(options)
    if options.streaming and not server.address.over_grpc:
        raise UsageError("option '--streaming' is for gRPC: --url grpc://HOST:PORT names the server's port for it")
    return LoadPlan(
        options.model,
        options.model_version,
        server,
        data_options(options),
        rules(options),
        () if is_open else options.concurrency or (1,),
        rates,
        bounds,
        None if options.goal_ms is None else LatencyGoal(options.goal_ms, options.percentile),
        options.format,
        options.poisson,
        options.connections,
        options.streaming,
        SequenceLengths(options.sequence_length, options.sequence_length_variation),
        options.json,
        options.html,
    )


def data_options(options: Namespace) -> DataOptions:
    made_up = options.input_data in ("random", "zero")
    return DataOptions(
        options.batch_size,
        options.input_data == "zero",
        None if made_up else Path(options.input_data),
        tuple(options.input),
        tuple(options.shape),
        options.string_length,
        options.string_data,
    )


def rules(options: Namespace) -> MeasurementRules:
    return MeasurementRules(
        options.window_secs,
        options.window_requests,
        options.windows,
        options.warm_up_secs,
        options.stability,
        options.percentile,
        options.batch_size,
    )


def _rates(text: str | None, is_search: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The rates to measure, or the bounds of a search."""
    if text is None:
        return (), (LOWEST, math.inf) if is_search else ()
    try:
        if not is_search:
            return read_range(text), ()
        low, colon, high = text.partition(":")
        limits = float(low), float(high or 0)
        if not colon or not 0 < limits[0] < limits[1] < math.inf:
            raise ValueError
        return (), limits
    except ValueError as error:
        expected = "LOW:HIGH with --goal-ms" if is_search else str(error)
        raise UsageError(f"option '--rate': expected {expected}, got: {text}") from None

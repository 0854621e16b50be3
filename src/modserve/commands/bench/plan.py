"""The command line of ``modserve bench``.

The values of ``--concurrency`` and ``--rate``: ``8``, ``1,4,16``, ``100:2000:100``, ``1:64:x2``.
"""

import json
import math
from argparse import Namespace, _ActionsContainer
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modserve.commands.destination import Destination, destinations, openai_destinations
from modserve.commands.syntax import (
    Parser,
    UsageError,
    add_destination,
    add_shape,
    number_type,
    option,
    parser,
    positive,
    reading,
)

from .inputs import DEFAULT_LENGTH, DEFAULT_VARIATION, DataOptions, SequenceLengths
from .openai import PATHS
from .profiler import LOWEST, LatencyGoal, MeasurementRules
from .session import CONNECTIONS, SEQUENCES
from .text_measures import read_limits, stream_names
from .text_session import TextLoad

_MOST = 1000
_EXPECTED = "such as 8, or 1,4,16, or 100:2000:100, or 1:64:x2"


def read_range(text: str) -> tuple[float, ...]:
    """Read the values, in order. Raises ValueError, which says what is expected."""
    try:
        values = _values(text)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"numbers above 0, {_EXPECTED}")
    return values


def whole_range(text: str) -> tuple[int, ...]:
    """Read a range as `read_range` does, rounded to whole numbers of at least 1."""
    return tuple(dict.fromkeys(max(1, round(value)) for value in read_range(text)))


def _values(text: str) -> tuple[float, ...]:
    if ":" not in text:
        return tuple(float(part) for part in text.split(","))
    first, last, *step = text.split(":")
    if len(step) > 1:
        raise ValueError
    low, high = float(first), float(last)
    by = step[0] if step else "1"
    factor = float(by[1:]) if by.startswith("x") else 0.0
    gap = 0.0 if by.startswith("x") else float(by)
    if not 0 < low <= high < math.inf or not (factor > 1 or gap > 0):
        raise ValueError
    if (math.log(high / low) / math.log(factor) if factor else (high - low) / gap) > _MOST:
        raise ValueError(f"at most {_MOST} values")
    values = [low]
    while (value := low * factor ** len(values) if factor else low + gap * len(values)) <= high * (1 + 1e-9):
        values.append(value)
    return tuple(values)


_DESCRIPTION = """\
Measures how fast a model of a running server responds: modserve, Triton, or any other server with
the KServe v2 protocol, or with --openai any server of OpenAI's API. Input data is generated from
the model's metadata, or read from files. The command measures windows of time until three in a row
agree, and reports these three. Ctrl-C ends it with the results so far. On several servers, the
connections go to them in turns, and the figures of each are shown."""
_CODES = """0 measured, 2 wrong command line, 130 ended by Ctrl-C, 1 otherwise: failed
            requests, no such model or server, no rate that meets the goal"""
_EXAMPLES = """\
  modserve bench simple --concurrency 1:64:x2
  modserve bench simple --url grpc://127.0.0.1:8001 --rate 1000:5000:1000
  modserve bench resnet50 --shape image:3,224,224 --goal-ms 50 --html report.html
  modserve bench smol --openai chat --concurrency 1:32:x2 --goodput ttft:200,itl:50"""


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ValueError("a whole number above 0")
    return int(text)


def _input_file(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not equals or not name or not file.startswith("@") or len(file) < 2:
        raise ValueError("NAME=@FILE")
    return name, Path(file[1:])


_percentile = number_type("a number between 0 and 100", lambda value: 0 < value < 100)
_variation = number_type("a number from 0 to 100", lambda value: 0 <= value <= 100)


def bench_parser() -> Parser:
    made = parser("bench", _DESCRIPTION, _EXAMPLES, _CODES)
    made.add_argument("model", metavar="MODEL", help="Its name.")
    option(made, "--model-version N", "The version. [default: the server's choice]", type=reading(count))
    load = made.add_argument_group("the load")
    option(
        load,
        "--concurrency RANGE",
        "Closed loop: number of requests at a time; each is sent when the previous one has its response. "
        "[default: 1] A RANGE is 8, or 1,4,16, or 100:2000:100, or 1:64:x2.",
        type=reading(whole_range),
    )
    option(
        load,
        "--rate RANGE",
        "Open loop: requests per second, whatever comes back. Latency counts from when a request was due, so a "
        "stall of the server delays all requests that were due meanwhile.",
        default=None,
    )
    add_goal(load)
    load.add_argument(
        "--poisson", action="store_true", help="Random gaps between the requests of a rate, as from many clients."
    )
    option(
        load,
        "--connections N",
        "Maximum number of requests in flight in an open loop; others wait. For models with sequences: the number "
        f"of sequences. [default: {CONNECTIONS}, and {SEQUENCES} sequences]",
        type=reading(count),
    )
    load.add_argument(
        "--streaming",
        action="store_true",
        help="Send requests with ModelStreamInfer, one stream per connection (gRPC only). Decoupled models always use "
        "streams.",
    )
    sequences = made.add_argument_group("sequences, for models with sequence batching")
    option(
        sequences,
        "--sequence-length N",
        f"Requests per sequence. [default: the steps of --input-data FILE, or {DEFAULT_LENGTH}]",
        type=reading(count),
    )
    option(
        sequences,
        "--sequence-length-variation PERCENT",
        f"Random variation of the length. [default: {DEFAULT_VARIATION:g}]",
        type=_variation,
        default=DEFAULT_VARIATION,
    )
    add_data(made)
    add_texts(made)
    add_rules(made)
    results = made.add_argument_group("results")
    option(results, "--json FILE", "Also write the results as JSON; - is standard output.")
    option(results, "--csv FILE", "Also write them as CSV, a line for each load.")
    option(results, "--html FILE", "Write a self-contained page with plots.")
    add_destination(made, several=True)
    return made


def add_goal(group: _ActionsContainer, *, required: bool = False) -> None:
    option(
        group,
        "--goal-ms N",
        "Search for the highest rate with a latency of at most N ms."
        + ("" if required else " --rate LOW:HIGH bounds the search."),
        type=positive,
        required=required,
    )
    option(
        group,
        "--percentile P",
        "Percentile of the latency for the goal and for stability. [default: 99]",
        type=_percentile,
        default=99.0,
    )


def add_data(made: Parser) -> None:
    data = made.add_argument_group("the data")
    option(data, "-b, --batch-size N", "Rows per request. [default: 1]", type=reading(count), default=1)
    add_shape(data)
    option(
        data,
        "--input-data WHAT",
        "random (as most models accept it), zero, or a file in perf_analyzer's JSON. [default: random]",
        default="random",
    )
    option(
        data,
        "--input NAME=@FILE",
        "Read an input from a .npy file, or a string from any other file.",
        type=reading(_input_file),
        action="append",
        default=[],
    )
    option(data, "--string-length N", "Length of random strings. [default: 128]", type=reading(count), default=128)
    option(data, "--string-data TEXT", "A string to send instead of random ones.")
    data.add_argument(
        "--format",
        choices=("binary", "json"),
        default="",
        help="Format of tensors over HTTP. [default: binary if the server supports it]",
    )


def add_rules(made: Parser) -> None:
    exact = made.add_argument_group("how exact")
    option(exact, "--window-secs N", "Duration of a window. [default: 1]", type=positive, default=1.0)
    option(
        exact,
        "--window-requests N",
        "Minimum number of requests in a window, which lasts at most ten times as long for them. [default: 50]",
        type=reading(count),
        default=50,
    )
    option(exact, "--windows N", "Maximum number of windows per load. [default: 10]", type=reading(count), default=10)
    option(
        exact,
        "--stability PERCENT",
        "Three windows agree if rates and latencies differ by at most this. [default: 10]",
        type=positive,
        default=10.0,
    )
    option(exact, "--warm-up-secs N", "Warm-up before each load. [default: 0.5]", type=positive, default=0.5)


def add_texts(made: Parser) -> None:
    texts = made.add_argument_group("texts, for any server of OpenAI's API")
    texts.add_argument(
        "--openai",
        choices=tuple(PATHS),
        default="",
        help=f"Send texts to {', '.join(PATHS.values())}: chat and completions as streams.",
    )
    option(
        texts,
        "--input-tokens N",
        "Tokens of a made-up prompt, as the server counts them. [default: 128]",
        type=reading(count),
        default=128,
    )
    option(texts, "--prompts FILE", 'A prompt in each line, or in .jsonl an object with "prompt".')
    option(texts, "--output-tokens N", "max_tokens of a request. [default: 128]", type=reading(count), default=128)
    option(
        texts,
        "--goodput NAME:MS,…",
        "Count requests within these limits, as vLLM's benchmark does: ttft, tpot, itl, e2el.",
        type=reading(read_limits),
        default={},
    )
    option(
        texts,
        "--extra-body JSON",
        'Further fields of each request, such as \'{"ignore_eos": true, "temperature": 0}\'; null omits a field.',
        type=reading(_json_object),
        default={},
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("a JSON object")
    return document


_TEXT_OPTIONS = ("input_tokens", "prompts", "output_tokens", "goodput", "extra_body")
_TENSOR_OPTIONS = (
    *("model_version", "streaming", "sequence_length", "sequence_length_variation", "shape", "input_data"),
    *("input", "string_length", "string_data", "format"),
)


def _texts(options: Namespace, defaults: Callable[[str], Any]) -> TextLoad | None:
    """Read the options of texts. Raises UsageError if there are options of tensors as well."""
    kind = options.openai
    for name in _TENSOR_OPTIONS if kind else _TEXT_OPTIONS:
        if getattr(options, name) != defaults(name):
            spelling = f"--{name.replace('_', '-')}"
            raise UsageError(f"option '{spelling}' is for {'tensors, not for --openai' if kind else '--openai'}")
    if not kind:
        return None
    streams = kind != "embeddings"
    if streams and options.batch_size > 1:
        raise UsageError("option '--batch-size' is for --openai embeddings; a chat or completion has one text")
    if not streams and (names := stream_names(options.goodput)):
        raise UsageError(f"option '--goodput': embeddings have no {names[0]}; expected e2el:MS")
    prompts = Path(options.prompts) if options.prompts else None
    return TextLoad(
        kind,
        options.input_tokens,
        options.output_tokens,
        prompts,
        options.goodput,
        options.extra_body,
        options.batch_size,
    )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The parsed command line: which loads to send, with which data, and how to measure them."""

    model: str
    version: int | None
    servers: Sequence[Destination]
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
    csv: str = ""
    texts: TextLoad | None = None

    @property
    def url(self) -> str:
        """The addresses of all servers, joined by commas."""
        return ",".join(str(server.address) for server in self.servers)


def read(options: Namespace) -> LoadPlan:
    """Read the options of `bench_parser`. Raises UsageError, and INVALID_ARG for an invalid address."""
    is_open = options.rate is not None or options.goal_ms is not None
    if options.concurrency and is_open:
        raise UsageError("option '--concurrency' is for a closed loop; --rate and --goal-ms are for an open one")
    rates, bounds = _rates(options.rate, options.goal_ms is not None)
    texts = _texts(options, bench_parser().get_default)
    servers = destinations(options) if texts is None else openai_destinations(options)
    if len({server.address.over_grpc for server in servers}) > 1:
        raise UsageError("option '--url': expected servers of one protocol, got: HTTP and gRPC")
    if options.streaming and not all(server.address.over_grpc for server in servers):
        raise UsageError("option '--streaming' is for gRPC: --url grpc://HOST:PORT names the server's port for it")
    return LoadPlan(
        options.model,
        options.model_version,
        servers,
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
        options.csv,
        texts,
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
    """Return the rates to measure, or the bounds of a search."""
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

"""Measurement windows with the latencies of their requests, and their summary."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modserve.commands.status_report import VersionUsage

from . import text_measures
from .percentiles import PERCENTILES, percentiles_ms
from .slots import ServerShare
from .text_measures import TextMeasurement, TextWindow

AT_THE_EDGE = 3
"""Requests that begin before a window and end in it, or the other way round, more or less by chance."""
WINDOWS = 3
"""Number of consecutive windows that must agree, as for perf_analyzer; the result combines them."""


@dataclass(slots=True)
class MeasurementWindow:
    """The requests that ended in a span of time."""

    seconds: float
    latencies: "array[int]"
    """Nanoseconds of each request that succeeded; from its intended start where there is a rate."""
    errors: Counter[str] = field(default_factory=Counter)
    lags: "array[int]" = field(default_factory=lambda: array("q"))
    """Nanoseconds by which the client itself sent later than intended; none without a rate."""
    waiting: int = 0
    """Overdue requests without a free connection at the window's end."""
    server: VersionUsage | None = None
    firsts: "array[int]" = field(default_factory=lambda: array("q"))
    """Nanoseconds from the start of latency to the first response, of each request that has one; for decoupled models,
    which may respond any number of times."""
    gaps: "array[int]" = field(default_factory=lambda: array("q"))
    """Nanoseconds between two responses to one request."""
    sequences: int = 0
    """Sequences that ended with a successful request."""
    texts: TextWindow | None = None
    shares: list[ServerShare] = field(default_factory=list)
    """Shares of the servers, where there are several."""

    def add(self, more: "MeasurementWindow") -> None:
        """Append the window that follows this one."""
        for mine, others in (
            (self.latencies, more.latencies),
            (self.lags, more.lags),
            (self.firsts, more.firsts),
            (self.gaps, more.gaps),
        ):
            mine.extend(others)
        self.errors.update(more.errors)
        self.seconds += more.seconds
        self.waiting = more.waiting
        self.sequences += more.sequences
        if more.texts is not None:
            self.texts = self.texts or TextWindow()
            self.texts.add(more.texts)
        self.shares = self.shares or [ServerShare(each.url) for each in more.shares]
        for share, another in zip(self.shares, more.shares, strict=False):
            share.add(another)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile_ms(self, percentile: float) -> float:
        return percentiles_ms(self.latencies, (percentile,))[percentile]


def is_stable(windows: Sequence[MeasurementWindow], percent: float, percentile: float) -> bool:
    """Return True if the rates and latencies of the last three windows lie within `percent` percent of each other."""
    last = windows[-WINDOWS:]
    if len(last) < WINDOWS or not all(window.latencies for window in last):
        return False
    for values in ([window.rate for window in last], [window.percentile_ms(percentile) for window in last]):
        if max(values) > min(values) * (1 + percent / 100):
            return False
    return True


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A load: `value` concurrent requests, or requests per second."""

    is_rate: bool
    value: float

    def __str__(self) -> str:
        return f"rate {round_rate(self.value)}/s" if self.is_rate else f"concurrency {self.value:,.0f}"


def round_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Responses of a decoupled model. Times are in ms."""

    count: int
    rate: float
    """A second."""
    each: float
    """Mean number of responses per request."""
    first: Mapping[float, float]
    """Percentiles of the time to the first response, of requests that have one."""
    between: Mapping[float, float]
    """Percentiles of the time between two responses to one request."""


STREAM_PERCENTILES = (50.0, 99.0)


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """Figures of one server among several. Times are in ms."""

    url: str
    requests: int
    rate: float
    """Successful requests a second."""
    mean: float
    percentiles: Mapping[float, float]
    failed: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one load: the last windows combined. Times are in ms."""

    load: LoadLevel
    stable: bool
    windows: int
    """Number of windows measured in all."""
    seconds: float
    requests: int
    rate: float
    """Successful requests a second."""
    inferences: float
    """Successful requests a second, times the rows of a request."""
    mean: float
    percentiles: Mapping[float, float]
    errors: Mapping[str, int]
    lag: float
    """p99 of how much later the client sent than intended."""
    waiting: int
    server: VersionUsage | None
    unanswered: int = 0
    responses: ResponseTimes | None = None
    sequences: float = 0.0
    """Sequences ended per second."""
    texts: TextMeasurement | None = None
    servers: Sequence[ShareFigures] = ()
    """Each, where there are several."""

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def keeps_up(self) -> bool:
        """True if about as many requests ended as were to be sent."""
        return not self.load.is_rate or self.requests >= 0.95 * self.load.value * self.seconds - AT_THE_EDGE


def summary(
    load: LoadLevel, windows: Sequence[MeasurementWindow], rows: int, percent: float, percentile: float
) -> Measurement:
    """Combine the last three windows to one result."""
    last = windows[-WINDOWS:]
    whole = MeasurementWindow(0.0, array("q"))
    server: VersionUsage | None = None
    for window in last:
        whole.add(window)
        if window.server is not None:
            server = window.server if server is None else server.plus(window.server)
    latencies, seconds = whole.latencies, whole.seconds
    rate = len(latencies) / seconds if seconds else 0.0
    return Measurement(
        load,
        is_stable(windows, percent, percentile),
        len(windows),
        seconds,
        len(latencies),
        rate,
        rate * rows,
        sum(latencies) / len(latencies) / 1e6 if latencies else 0.0,
        percentiles_ms(latencies, tuple(sorted({*PERCENTILES, percentile}))),
        whole.errors,
        percentiles_ms(whole.lags, (99.0,))[99.0],
        whole.waiting,
        server,
        responses=_responses(whole) if whole.firsts else None,
        sequences=whole.sequences / seconds if seconds else 0.0,
        texts=None
        if whole.texts is None
        else text_measures.measurement(whole.texts, seconds, whole.firsts, whole.gaps),
        servers=[_figures(share, seconds) for share in whole.shares],
    )


def _figures(share: ServerShare, seconds: float) -> ShareFigures:
    latencies = share.latencies
    return ShareFigures(
        share.url,
        len(latencies),
        len(latencies) / seconds if seconds else 0.0,
        sum(latencies) / len(latencies) / 1e6 if latencies else 0.0,
        percentiles_ms(latencies, STREAM_PERCENTILES),
        share.failures,
    )


def _responses(window: MeasurementWindow) -> ResponseTimes:
    count = len(window.firsts) + len(window.gaps)
    return ResponseTimes(
        count,
        count / window.seconds if window.seconds else 0.0,
        count / len(window.latencies) if window.latencies else 0.0,
        percentiles_ms(window.firsts, STREAM_PERCENTILES),
        percentiles_ms(window.gaps, STREAM_PERCENTILES),
    )


def to_json(result: Measurement) -> dict[str, Any]:
    """Return the JSON result. Names are stable; more may be added."""
    kind = "request_rate" if result.load.is_rate else "concurrency"
    server = result.server
    return {
        kind: result.load.value,
        "stable": result.stable,
        "windows": result.windows,
        "seconds": result.seconds,
        "requests": result.requests,
        "requests_per_second": result.rate,
        "inferences_per_second": result.inferences,
        "sequences_per_second": result.sequences,
        "latency_ms": {"mean": result.mean} | {f"p{key:g}": value for key, value in result.percentiles.items()},
        "errors": dict(result.errors),
        "client_lag_p99_ms": result.lag,
        "waiting": result.waiting,
        "servers": [
            {
                "url": each.url,
                "requests": each.requests,
                "requests_per_second": each.rate,
                "latency_ms": {"mean": each.mean} | {f"p{key:g}": value for key, value in each.percentiles.items()},
                "failed": each.failed,
            }
            for each in result.servers
        ],
        "responses": None if result.responses is None else _responses_json(result.responses),
        "texts": None if result.texts is None else text_measures.to_json(result.texts),
        "server": None
        if server is None
        else {
            "requests": server.requests,
            "inferences": server.inferences,
            "executions": server.executions,
            "cache_hits": server.cache_hits,
            "mean_ms": {part: server.mean_ms(part) for part in ("total", "queue", "input", "infer", "output")},
        },
    }


def _responses_json(responses: ResponseTimes) -> dict[str, Any]:
    return {
        "count": responses.count,
        "per_second": responses.rate,
        "per_request": responses.each,
        "time_to_first_ms": {f"p{key:g}": value for key, value in responses.first.items()},
        "time_between_ms": {f"p{key:g}": value for key, value in responses.between.items()},
    }

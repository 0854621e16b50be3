"""``modserve top``: requests, queues, batches, latencies and errors of a running server, as they change."""

import os
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .access import Access, RefusedError, UnreachableError, access, address
from .facts import health, usage
from .http_calls import HttpCalls
from .syntax import WordsError, add_access, parser, positive, run
from .tables import count, duration, size, table
from .top_figures import Reading, Row, from_metrics, from_statistics, rows

METRICS_PORT = 8002
METRICS_VARIABLE = "MODSERVE_METRICS_URL"
_WINDOW = 10.0
"""Seconds over which latencies and batches are reckoned."""

PARSER = parser(
    "top",
    "Shows what a running server does, model by model, until Ctrl-C: requests/s, how many wait, and of\n"
    "the last 10 seconds mean batch, mean time, p50 and p99; errors. Without a terminal it prints lines.",
    "  modserve top\n  modserve top --interval 5\n  modserve top --count 2 | cat",
    "0 ended, 1 not reached at the start, 2 a wrong command line",
)
PARSER.add_argument(
    "--interval", metavar="SECONDS", type=positive, default=1.0, help="Time between two looks. [default: 1]"
)
PARSER.add_argument("--count", metavar="N", type=int, default=0, help="End after so many tables; 0: at Ctrl-C.")
PARSER.add_argument("--plain", action="store_true", help="Print lines on a terminal, too.")
add_access(PARSER, 10.0)
PARSER.add_argument(
    "--metrics-url",
    metavar="URL",
    default="",
    help=f"Where its metrics are. [default: port {METRICS_PORT} of --url's host] [env: {METRICS_VARIABLE}]",
)
HELP = PARSER.format_help()


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    return run(PARSER, words, _work)


def _work(options: Namespace) -> int:
    if options.count < 0:
        raise WordsError(f"option '--count': expected a number of 0 or more, got: {options.count}")
    source = Source(access(options), options.metrics_url or os.environ.get(METRICS_VARIABLE, ""))
    frames = Frames(source, options.interval, options.count)
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not options.plain
    try:
        if live:
            from .top_view import show

            show(frames)
        else:
            for frame in frames:
                print("\n".join(plain(frame)), flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
    return 0


class Source:
    """Where readings come from: the metrics page, or the statistics if that is not to be had."""

    def __init__(self, own: Access, metrics_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = own.address.url
        self._calls = HttpCalls(own)
        self._clock = clock
        place = address(metrics_url) if metrics_url else own.address.at_port(METRICS_PORT, "http")
        self._path = place.path or "/metrics"
        self._metrics: HttpCalls | None = HttpCalls(replace(own, address=replace(place, path="")))
        self._explicit = bool(metrics_url)
        self.remark = ""
        """What is missing, and the option that helps."""

    def read(self) -> Reading:
        """Raises UnreachableError, RefusedError."""
        if self._metrics is not None:
            try:
                page = self._metrics.call("GET", self._path).content.decode(errors="replace")
                if "nv_inference_" in page or "modserve_" in page:
                    return from_metrics(page, self._clock())
                why = f"{self._metrics.url} has no metrics of a server"
            except (UnreachableError, RefusedError) as error:
                if self._explicit:
                    raise
                why = error.message
            self.remark = f"without queue, p50 and p99: {why}; --metrics-url names the metrics port"
            self._metrics.close()
        reading = from_statistics(usage(self._calls), self._clock())
        self._metrics = None  # only now: a server that is not there at all may have one later
        reading.ready = health(self._calls).ready
        return reading

    def close(self) -> None:
        self._calls.close()
        if self._metrics is not None:
            self._metrics.close()


class Frame:
    """What is on the screen at one time. `history` has the requests/s of all models, one value for each look."""

    def __init__(self, url: str, reading: Reading, shown: Sequence[Row], history: Sequence[float], remark: str) -> None:
        self.url = url
        self.reading = reading
        self.rows = shown
        self.history = history
        self.remark = remark


class Frames:
    """The frames, one for each interval; the first comes after two readings. Iterating waits."""

    def __init__(self, source: Source, interval: float, most: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._source = source
        self._interval = interval
        self._most = most
        self._sleep = sleep
        self._readings: deque[Reading] = deque()
        self._history: deque[float] = deque(maxlen=60)

    def __iter__(self) -> Iterator[Frame]:
        """Raises UnreachableError for the first reading; later ones are tried again."""
        self._readings.append(self._source.read())
        made = 0
        while not self._most or made < self._most:
            self._sleep(self._interval)
            yield self._next()
            made += 1

    def _next(self) -> Frame:
        remark = self._source.remark
        try:
            self._readings.append(self._source.read())
            remark = self._source.remark
        except (UnreachableError, RefusedError) as error:
            remark = error.message
            last = self._readings[-1]
            self._readings.clear()
            self._readings.append(last)
            return Frame(self._source.url, last, [], list(self._history), remark)
        while len(self._readings) > 2 and self._readings[-1].at - self._readings[1].at >= _WINDOW:
            self._readings.popleft()
        shown = rows(self._readings)
        self._history.append(sum(max(0.0, row.per_second) for row in shown))
        return Frame(self._source.url, self._readings[-1], shown, list(self._history), remark)


HEAD = ("model", "version", "state", "req/s", "queue", "batch", "mean", "p50", "p99", "err/s", "errors")
RIGHT = "   rrrrrrrr"


def cells(row: Row) -> tuple[str, ...]:
    """The texts of a row."""
    return (
        row.model,
        row.version,
        row.state or "-",
        _number(row.per_second),
        "-" if row.waiting < 0 else count(row.waiting),
        "-" if row.batch < 0 else f"{row.batch:.1f}",
        *("-" if each < 0 else duration(each) for each in (row.mean, row.p50, row.p99)),
        _number(row.errors_per_second),
        count(row.errors),
    )


def _number(value: float) -> str:
    if value < 0:
        return "-"
    return count(value) if value >= 100 or value == 0 else f"{value:.1f}"


def summary(frame: Frame) -> str:
    """A line on the server as a whole."""
    reading = frame.reading
    parts = [frame.url]
    if reading.ready is not None:
        parts.append("ready" if reading.ready else "not ready")
    if frame.history:
        parts.append(f"{_number(frame.history[-1])} requests/s")
    for value, text in ((reading.in_flight, "in flight"), (reading.connections, "connections")):
        if value >= 0:
            parts.append(f"{count(value)} {text.removesuffix('s') if value == 1 else text}")
    if reading.memory >= 0:
        parts.append(f"{size(reading.memory)} resident")
    return ", ".join(parts)


def plain(frame: Frame) -> Iterator[str]:
    """A frame in lines."""
    yield f"{time.strftime('%H:%M:%S')} {summary(frame)}"
    if frame.remark:
        yield frame.remark
    if frame.rows:
        yield from table(HEAD, [cells(row) for row in frame.rows], RIGHT)
    yield ""

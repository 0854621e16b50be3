"""``modserve top``: a live view of requests, queues, batches, latencies and errors of a server."""

import contextlib
import os
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from .destination import Destination, address, destination
from .errors import RefusedError, UnreachableError
from .remote_server import RemoteServer, connect
from .server_status import health, index, usage
from .syntax import UsageError, add_destination, option, parser, positive
from .top_figures import TopSnapshot, from_metrics, from_statistics, rows
from .top_frame import Frame, text_lines

METRICS_PORT = 8002
METRICS_VARIABLE = "MODSERVE_METRICS_URL"
_WINDOW = 10.0
"""Seconds over which latencies and batches are reckoned."""

PARSER = parser(
    "top",
    "Shows the load of a running server per model until Ctrl-C: requests/s, queue, errors, and for the\n"
    "last 10 seconds mean batch, mean time, p50 and p99. Without a terminal it prints lines.",
    "  modserve top\n  modserve top --interval 5\n  modserve top --count 2 | cat",
    "0 ended, 1 unreachable at the start, 2 wrong command line",
)
option(PARSER, "--interval SECONDS", "Time between two updates. [default: 1]", type=positive, default=1.0)
option(PARSER, "--count N", "Number of tables to print; 0: until Ctrl-C.", type=int, default=0)
PARSER.add_argument("--plain", action="store_true", help="Print lines even on a terminal.")
add_destination(PARSER, 10.0)
option(
    PARSER,
    "--metrics-url URL",
    f"Address of the metrics page. [default: port {METRICS_PORT} of --url's host] [env: {METRICS_VARIABLE}]",
)


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    if options.count < 0:
        raise UsageError(f"option '--count': expected a number of 0 or more, got: {options.count}")
    source = SnapshotSource(destination(options), options.metrics_url or os.environ.get(METRICS_VARIABLE, ""))
    frames = Frames(source, options.interval, options.count)
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not options.plain
    try:
        if live:
            from .top_view import show

            show(frames)
        else:
            for frame in frames:
                print("\n".join(text_lines(frame)), flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
    return 0


class SnapshotSource:
    """Takes snapshots from the metrics page, or from the statistics if there is no such page."""

    def __init__(self, own: Destination, metrics_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = connect(own)
        self.url = self._server.url
        self._clock = clock
        place = address(metrics_url) if metrics_url else own.address.at_port(METRICS_PORT, "http")
        self._path = place.prefix or "/metrics"
        self._metrics: RemoteServer | None = connect(replace(own, address=replace(place, prefix="")))
        self._explicit = bool(metrics_url)
        self.remark = ""
        """What is missing, and the option that helps."""

    def read(self) -> TopSnapshot:
        """Raises UnreachableError, RefusedError."""
        if self._metrics is not None:
            try:
                page = self._metrics.page(self._path)
                if "nv_inference_" in page or "modserve_" in page:
                    return from_metrics(page, self._clock())
                why = f"{self._metrics.url}{self._path} has no server metrics"
            except (UnreachableError, RefusedError) as error:
                if self._explicit:
                    raise
                why = error.message
            self.remark = f"queue, p50 and p99 are missing: {why}; --metrics-url names the metrics port"
            self._metrics.close()
        snapshot = from_statistics(usage(self._server), self._clock())
        self._metrics = None  # only now: a server that does not respond yet may have a metrics page later
        snapshot.ready = health(self._server).ready
        with contextlib.suppress(RefusedError):  # the index may be restricted
            for row in index(self._server):
                if row.version and row.state:
                    snapshot.models[row.key].state = row.state
        return snapshot

    def close(self) -> None:
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()


class Frames:
    """One frame per interval; the first needs two snapshots. Iterating waits."""

    def __init__(
        self, source: SnapshotSource, interval: float, most: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._source = source
        self._interval = interval
        self._most = most
        self._sleep = sleep
        self._snapshots: deque[TopSnapshot] = deque()
        self._history: deque[float] = deque(maxlen=60)

    def __iter__(self) -> Iterator[Frame]:
        """Raises UnreachableError for the first snapshot; later ones are tried again."""
        self._snapshots.append(self._source.read())
        made = 0
        while not self._most or made < self._most:
            self._sleep(self._interval)
            yield self._next()
            made += 1

    def _next(self) -> Frame:
        remark = self._source.remark
        try:
            self._snapshots.append(self._source.read())
            remark = self._source.remark
        except (UnreachableError, RefusedError) as error:
            remark = error.message
            last = self._snapshots[-1]
            self._snapshots.clear()
            self._snapshots.append(last)
            return Frame(self._source.url, last, [], list(self._history), remark)
        while len(self._snapshots) > 2 and self._snapshots[-1].at - self._snapshots[1].at >= _WINDOW:
            self._snapshots.popleft()
        shown = rows(self._snapshots)
        self._history.append(sum(max(0.0, row.per_second) for row in shown))
        return Frame(self._source.url, self._snapshots[-1], shown, list(self._history), remark)

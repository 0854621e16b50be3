"""``modserve top``: a live view of requests, queues, batches, latencies and errors of a server."""

import os
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from modserve.client.address_list import changes

from ..destination import Destination, destinations, url_of
from ..errors import RefusedError, UnreachableError
from ..syntax import UsageError, add_destination, option, parser, positive
from .figures import rows
from .frame import Frame, text_lines
from .source import METRICS_VARIABLE, Snapshots, SnapshotSource, add_metrics_url, metrics_pages

if TYPE_CHECKING:
    from .source import SeveralFrames


PARSER = parser(
    "top",
    "Shows the load of a running server per model until Ctrl-C: requests/s, queue, errors, and for the\n"
    "last 10 seconds mean batch, mean time, p50 and p99. Without a terminal it prints lines.\n"
    "Of several servers: a row for each, their sum, and the models of all together. Names are looked up\n"
    "again every 10 seconds.",
    "  modserve top\n  modserve top --url dns:///modserve.svc:8000\n"
    "  modserve top --interval 5\n  modserve top --count 2 | cat",
    "0 ended, 1 unreachable at the start, 2 wrong command line",
)
option(PARSER, "--interval SECONDS", "Time between two updates. [default: 1]", type=positive, default=1.0)
option(PARSER, "--count N", "Number of tables to print; 0: until Ctrl-C.", type=int, default=0)
PARSER.add_argument("--plain", action="store_true", help="Print lines even on a terminal.")
add_destination(PARSER, 10.0, several=True)
add_metrics_url(PARSER)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    if options.count < 0:
        raise UsageError(f"option '--count': expected a number of 0 or more, got: {options.count}")
    frames = _frames(options)
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not options.plain
    try:
        if live:
            from .view import show

            show(frames)
        else:
            for frame in frames:
                print("\n".join(text_lines(frame)), flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        frames.close()
    return 0


def _frames(options: Namespace) -> "Frames | SeveralFrames":
    """Make the frames. Raises UnreachableError for a name without servers, UsageError for other metrics pages."""
    metrics_url = options.metrics_url or os.environ.get(METRICS_VARIABLE, "")
    places, changing = destinations(options), changes(url_of(options))
    if len(places) == 1 and not changing:
        return Frames(SnapshotSource(places[0], metrics_url), options.interval, options.count)
    from .source import SeveralFrames

    pages = metrics_pages(places, metrics_url)

    def open_source(place: Destination) -> SnapshotSource:
        url = str(place.address)
        page = pages.get(url) or metrics_pages([place], metrics_url.partition(",")[0])[url]
        return SnapshotSource(place, page)

    return SeveralFrames(lambda: destinations(options), open_source, options.interval, options.count, changing=changing)


class Frames:
    """Iterator of frames, one per interval; the first needs two snapshots. Iterating waits."""

    def __init__(
        self, source: SnapshotSource, interval: float, most: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._source = source
        self._interval = interval
        self._most = most
        self._sleep = sleep
        self._snapshots = Snapshots()
        self._history: deque[float] = deque(maxlen=60)

    def close(self) -> None:
        self._source.close()

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames. Raises UnreachableError for the first snapshot; later ones are tried again."""
        self._snapshots.add(self._source.read())
        made = 0
        while not self._most or made < self._most:
            self._sleep(self._interval)
            yield self._next()
            made += 1

    def _next(self) -> Frame:
        remark = self._source.remark
        try:
            self._snapshots.add(self._source.read())
            remark = self._source.remark
        except (UnreachableError, RefusedError) as error:
            self._snapshots.forget()
            return Frame(self._source.url, self._snapshots.all[-1], [], list(self._history), error.message)
        shown = rows(self._snapshots.all)
        self._history.append(sum(max(0.0, row.per_second) for row in shown))
        return Frame(self._source.url, self._snapshots.all[-1], shown, list(self._history), remark)

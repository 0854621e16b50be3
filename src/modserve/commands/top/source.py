"""Sources of the snapshots of ``modserve top``, and the snapshots of the last seconds.

``modserve top`` for several servers: all are read at the same time, and none holds up the others.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from modserve.commands.destination import Destination, address, addresses
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.remote_server import RemoteServer, connect
from modserve.commands.server_set import failure_text
from modserve.commands.status_report import health, index, usage
from modserve.commands.syntax import Parser, UsageError, option
from modserve.commands.terminal import duration, plural
from modserve.core.errors import ModserveError
from modserve.core.statistics.summary import FINE_QUERY

from .figures import (
    Activity,
    Key,
    ServerLine,
    TopSnapshot,
    activities,
    from_metrics,
    from_statistics,
    server_line,
    sort_rows,
    sum_line,
    total,
)
from .frame import Frame

METRICS_PORT = 8002
METRICS_VARIABLE = "MODSERVE_METRICS_URL"
_WINDOW = 10.0
"""Seconds over which latencies and batches are reckoned."""


class SnapshotSource:
    """Source of snapshots: the metrics page, or the statistics if there is no such page."""

    def __init__(self, own: Destination, metrics_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = connect(own)
        self.url = self._server.url
        self._clock = clock
        place = address(metrics_url) if metrics_url else own.address.at_port(METRICS_PORT, "http")
        self._path = place.prefix or "/metrics"
        self._page = f"{self._path}?{FINE_QUERY}"
        self._metrics: RemoteServer | None = connect(replace(own, address=replace(place, prefix="")))
        self._explicit = bool(metrics_url)
        self._reads_own = not (self._explicit or own.address.over_grpc)
        """True if the server itself may have the page, as admin ports do."""
        self.remark = ""
        """Remark on missing figures, with the option that helps."""

    def read(self) -> TopSnapshot:
        """Take a snapshot. Raises UnreachableError, RefusedError."""
        if self._metrics is not None:
            own = self._own_page()
            try:
                page = own or self._metrics.page(self._page)
                if _has_metrics(page):
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

    def _own_page(self) -> str:
        """Read the page of the address itself; empty if it has none. Raises UnreachableError."""
        if self._reads_own:
            with contextlib.suppress(RefusedError):
                page = self._server.page(f"/metrics?{FINE_QUERY}")
                if _has_metrics(page):
                    return page
            self._reads_own = False
        return ""

    def close(self) -> None:
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()


def _has_metrics(page: str) -> bool:
    return "nv_inference_" in page or "modserve_" in page


class Snapshots:
    """Snapshots of a server in the last seconds, the latest at the end."""

    def __init__(self) -> None:
        self.all: deque[TopSnapshot] = deque()

    @property
    def last(self) -> TopSnapshot | None:
        return self.all[-1] if self.all else None

    def add(self, snapshot: TopSnapshot) -> None:
        self.all.append(snapshot)
        while len(self.all) > 2 and self.all[-1].at - self.all[1].at >= _WINDOW:
            self.all.popleft()

    def forget(self) -> None:
        """Drop all snapshots but the last, since figures across a gap would mean nothing."""
        while len(self.all) > 1:
            self.all.popleft()


def add_metrics_url(made: Parser) -> None:
    """Add the option ``--metrics-url`` to a command that reads metrics."""
    option(
        made,
        "--metrics-url URL",
        f"Address of the metrics page. [default: --url's own, else port {METRICS_PORT} of its host] "
        f"[env: {METRICS_VARIABLE}]",
    )


def metrics_pages(places: Sequence[Destination], text: str) -> dict[str, str]:
    """Return the metrics page of each server: one URL names port and path on all of their hosts, several are in order.

    Raises UsageError for another number.
    """
    urls = [str(place.address) for place in places]
    pages = addresses(text) if text else []
    if not pages:
        return dict.fromkeys(urls, "")
    if len(pages) == 1:
        pages = [replace(pages[0], host=place.address.host, name=place.address.name) for place in places]
    if len(pages) != len(urls):
        raise UsageError(
            f"option '--metrics-url': expected one address, or one for each of {len(urls)} servers, got: {len(pages)}"
        )
    return dict(zip(urls, map(str, pages), strict=True))


RESOLVE_SECONDS = 10.0
"""Seconds between look-ups of a name."""
_AT_A_TIME = 64
_LONGEST = 1e6
"""Seconds: the sources have limits of their own."""

Wait = Callable[[Iterable["Future[TopSnapshot]"], float], object]


@dataclass(slots=True)
class _Server:
    """Server among several. `reading` is a read in progress since `since`; `trouble` is why there is no snapshot."""

    source: SnapshotSource
    snapshots: Snapshots = field(default_factory=Snapshots)
    reading: "Future[TopSnapshot] | None" = None
    since: float = 0.0
    trouble: str = ""


def _wait(futures: "Iterable[Future[TopSnapshot]]", seconds: float) -> object:
    return wait(list(futures), seconds)


class SeveralFrames:
    """Iterator of frames, one per interval. `places` returns the servers; with `changing`, it is called every 10 s.

    A frame waits for a server at most for another interval.
    """

    def __init__(
        self,
        places: Callable[[], Sequence[Destination]],
        open_source: Callable[[Destination], SnapshotSource],
        interval: float,
        most: int,
        *,
        changing: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = _wait,
    ) -> None:
        self._places, self._open = places, open_source
        self._interval, self._most, self._changing = interval, most, changing
        self._sleep, self._clock, self._wait = sleep, clock, wait
        self._servers: dict[str, _Server] = {}
        self._threads = ThreadPoolExecutor(_AT_A_TIME, "top")
        self._lookup: Future[Sequence[Destination]] | None = None
        self._next_lookup = clock() + RESOLVE_SECONDS
        self._remark = ""
        self._history: deque[float] = deque(maxlen=60)

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames. Raises UnreachableError if no server responds at first."""
        self._replace(self._places())
        self._read(self._interval)
        if not self._responding():
            self._read(_LONGEST)  # until the time limit of their calls
        if not self._responding():
            url, server = next(iter(self._servers.items()))
            raise UnreachableError(f"none of {plural(len(self._servers), 'server')} responds; {url}: {server.trouble}")
        made = 0
        while not self._most or made < self._most:
            self._sleep(self._interval)
            self._look_up()
            self._read(self._interval)
            yield self._frame()
            made += 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for server in self._servers.values():
            server.source.close()

    def _replace(self, places: Sequence[Destination]) -> None:
        """Replace the servers: close those no longer named, and open new ones."""
        named = {str(place.address): place for place in places}
        for url in self._servers.keys() - named.keys():
            self._servers.pop(url).source.close()
        self._servers = {url: self._servers.get(url) or _Server(self._open(place)) for url, place in named.items()}

    def _look_up(self) -> None:
        if not self._changing:
            return
        if self._lookup is None and self._clock() >= self._next_lookup:
            self._lookup = self._threads.submit(self._places)
        elif self._lookup is not None and self._lookup.done():
            try:
                self._replace(self._lookup.result())
                self._remark = ""
            except ModserveError as error:
                self._remark = f"{error.message}; these are the servers of before"
            self._lookup, self._next_lookup = None, self._clock() + RESOLVE_SECONDS

    def _responding(self) -> bool:
        return any(server.snapshots.all for server in self._servers.values())

    def _read(self, patience: float) -> None:
        now = self._clock()
        for server in self._servers.values():
            if server.reading is None:
                server.reading, server.since = self._threads.submit(server.source.read), now
        self._wait([server.reading for server in self._servers.values() if server.reading is not None], patience)
        for url, server in self._servers.items():
            assert server.reading is not None
            if not server.reading.done():
                server.trouble = f"no response for {duration(self._clock() - server.since)}"
                continue
            try:
                server.snapshots.add(server.reading.result())
                server.trouble = ""
            except ModserveError as error:
                server.trouble = failure_text(error, url)
            server.reading = None

    def _frame(self) -> Frame:
        lines: list[ServerLine] = []
        models: dict[Key, list[Activity]] = {}
        for url, server in self._servers.items():
            if server.trouble:
                server.snapshots.forget()
            own = {} if server.trouble else activities(server.snapshots.all)
            lines.append(server_line(url, server.trouble, server.snapshots.last, own))
            for key, activity in own.items():
                models.setdefault(key, []).append(activity)
        rows = sort_rows({key: total(parts) for key, parts in models.items()})
        self._history.append(sum(max(0.0, row.per_second) for row in rows))
        ready = sum(line.state == "ready" for line in lines)
        lines.append(sum_line(plural(len(lines), "server"), f"{ready} ready", models.values()))
        parts = [server.snapshots.last for server in self._servers.values() if not server.trouble]
        whole = _sum([part for part in parts if part is not None], self._clock())
        remarks = [self._remark, *(server.source.remark for server in self._servers.values())]
        remark = next(filter(None, remarks), "")
        return Frame(plural(len(self._servers), "server"), whole, rows, list(self._history), remark, lines)


def _sum(snapshots: Sequence[TopSnapshot], now: float) -> TopSnapshot:
    """Return the state of all servers as a whole: ready if all are."""
    whole = TopSnapshot(now)
    for name in ("in_flight", "connections", "memory"):
        values = [getattr(each, name) for each in snapshots if getattr(each, name) >= 0]
        setattr(whole, name, sum(values) if values else -1)
    if snapshots and all(each.ready is not None for each in snapshots):
        whole.ready = all(each.ready for each in snapshots)
    return whole

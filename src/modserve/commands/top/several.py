"""``modserve top`` for several servers: all are read at the same time, and none holds up the others."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from modserve.core.errors import ModserveError

from ..destination import Destination
from ..errors import UnreachableError
from ..server_set import failure_text
from ..terminal import duration, plural
from .figures import Activity, Key, ServerLine, TopSnapshot, activities, server_line, sorted_rows, sum_line, total
from .frame import Frame
from .source import Snapshots, SnapshotSource

RESOLVE_SECONDS = 10.0
"""How often a name is looked up again."""
_AT_A_TIME = 64
_LONGEST = 1e6
"""Seconds: the sources have limits of their own."""

Wait = Callable[[Iterable["Future[TopSnapshot]"], float], object]


@dataclass(slots=True)
class _Server:
    """`reading` is a read that has not ended, begun at `since`; `trouble` says why there is no snapshot now."""

    source: SnapshotSource
    snapshots: Snapshots = field(default_factory=Snapshots)
    reading: "Future[TopSnapshot] | None" = None
    since: float = 0.0
    trouble: str = ""


def _wait(futures: "Iterable[Future[TopSnapshot]]", seconds: float) -> object:
    return wait(list(futures), seconds)


class SeveralFrames:
    """One frame per interval. `places` has the servers now; with `changing`, it is called again every 10 s.

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
        """Raises UnreachableError if no server responds at first."""
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
        """Servers that are no longer named leave, others come."""
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
        rows = sorted_rows({key: total(parts) for key, parts in models.items()})
        self._history.append(sum(max(0.0, row.per_second) for row in rows))
        ready = sum(line.state == "ready" for line in lines)
        lines.append(sum_line(plural(len(lines), "server"), f"{ready} ready", models.values()))
        parts = [server.snapshots.last for server in self._servers.values() if not server.trouble]
        whole = _sum([part for part in parts if part is not None], self._clock())
        remarks = [self._remark, *(server.source.remark for server in self._servers.values())]
        remark = next(filter(None, remarks), "")
        return Frame(plural(len(self._servers), "server"), whole, rows, list(self._history), remark, lines)


def _sum(snapshots: Sequence[TopSnapshot], now: float) -> TopSnapshot:
    """Of what servers have as a whole. It is ready if all are."""
    whole = TopSnapshot(now)
    for name in ("in_flight", "connections", "memory"):
        values = [getattr(each, name) for each in snapshots if getattr(each, name) >= 0]
        setattr(whole, name, sum(values) if values else -1)
    if snapshots and all(each.ready is not None for each in snapshots):
        whole.ready = all(each.ready for each in snapshots)
    return whole

"""Where ``modserve top`` has its snapshots from, and those of the last seconds."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from modserve.core.statistics.sketch import FINE_QUERY

from ..destination import Destination, address, addresses
from ..errors import RefusedError, UnreachableError
from ..remote_server import RemoteServer, connect
from ..server_status import health, index, usage
from ..syntax import Parser, UsageError, option
from .figures import TopSnapshot, from_metrics, from_statistics

METRICS_PORT = 8002
METRICS_VARIABLE = "MODSERVE_METRICS_URL"
_WINDOW = 10.0
"""Seconds over which latencies and batches are reckoned."""


class SnapshotSource:
    """Takes snapshots from the metrics page, or from the statistics if there is no such page."""

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
        """Whether the server itself may have the page, as admin ports do."""
        self.remark = ""
        """What is missing, and the option that helps."""

    def read(self) -> TopSnapshot:
        """Raises UnreachableError, RefusedError."""
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
        """The page of the address itself; empty if it has none. Raises UnreachableError."""
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
    """Those of a server in the last seconds, the latest at the end."""

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
        """All but the last: figures over a gap would be those of no time."""
        while len(self.all) > 1:
            self.all.popleft()


def add_metrics_url(made: Parser) -> None:
    """The option, for commands that read metrics."""
    option(
        made,
        "--metrics-url URL",
        f"Address of the metrics page. [default: --url's own, else port {METRICS_PORT} of its host] "
        f"[env: {METRICS_VARIABLE}]",
    )


def metrics_pages(places: Sequence[Destination], text: str) -> dict[str, str]:
    """The metrics page of each server: one names port and path on all of their hosts, several are in their order.

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

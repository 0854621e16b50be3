"""The figures for all open pages: read once a second, as long as one is open, and written once for all of them."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from modserve.core.errors import OverloadedError, unavailable
from modserve.core.runtime.failures import count_failure
from modserve.server import Phase, Server

from .counters import Counters
from .snapshot import Snapshot, event

PERIOD_S = 1.0
MOST_PAGES = 64
"""Pages that may be open at the same time in one process; one more is refused."""
MOST_WAITING = 4
"""Events that wait for a browser which does not read. Then it gets the whole snapshot, when it reads again."""
_RETRY_NS = 5_000_000_000

Read = Callable[[], Awaitable[tuple[Counters, Mapping[str, int] | None]]]
"""A reading of all workers, and how many there are, if several."""


class Page:
    """Queue of the events for one browser."""

    __slots__ = ("_arrival", "_ended", "_sampler", "_waiting", "_whole")

    def __init__(self, sampler: "Sampler") -> None:
        self._sampler = sampler
        self._waiting: deque[bytes] = deque()
        self._whole = True
        self._ended = False
        self._arrival = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Events that the browser has not taken."""
        return len(self._waiting)

    def offer(self, changes: bytes) -> None:
        """Offer a new snapshot; `changes` is what is new in it."""
        if not self._whole:
            self._waiting.append(changes)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.clear()
                self._whole = True
        self._arrival.set()

    def end(self, last: bytes) -> None:
        """End the page: it gets `last` and nothing more."""
        self._waiting.clear()
        self._waiting.append(last)
        self._whole, self._ended = False, True
        self._arrival.set()

    async def next(self) -> bytes:
        """Wait for the next event, and return it; empty at the end. The next call says that the last was written."""
        while True:
            if self._whole and self._sampler.ready:
                self._whole = False
                return self._sampler.snapshot.whole()
            if self._waiting:
                return self._waiting.popleft()
            if self._ended:
                return b""
            self._arrival.clear()
            await self._arrival.wait()


class Sampler:
    """Reader of `server` for the open pages, by `read`. It runs and holds nothing while none is open."""

    def __init__(
        self,
        server: Server,
        read: Read,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._read = read
        self._sleep = sleep
        self._clock = clock
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self.snapshot = Snapshot()
        self.ready = False
        """True once there is a snapshot."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._pages)} pages)"

    @property
    def running(self) -> bool:
        return self._task is not None

    def open(self) -> Page:
        """Return a page, to be closed later. Raises UNAVAILABLE if there are too many, or the server is stopping."""
        if self._server.phase is Phase.STOPPING or self._server.retiring:
            raise unavailable("Server not ready")
        if len(self._pages) >= MOST_PAGES:
            raise OverloadedError(
                f"{MOST_PAGES} pages of the console are open, which is the limit; close some of them",
                _RETRY_NS,
            )
        page = Page(self)
        self._pages.add(page)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="console")
        return page

    def close(self, page: Page) -> None:
        self._pages.discard(page)
        if not self._pages and self._task is not None:
            self._task.cancel()
            self._task = None
            self.snapshot, self.ready = Snapshot(), False

    def _end(self, reason: str) -> None:
        last = event("end", {"reason": reason})
        for page in self._pages:
            page.end(last)

    def _look(self) -> None:
        """End the pages' connections as soon as the server stops, which waits for them."""
        if self._server.phase is Phase.STOPPING or self._server.retiring:
            self._end("the server is stopping")

    async def _run(self) -> None:
        with suppress(asyncio.CancelledError), self._server.changes.listening(self._look):
            try:
                await self._keep_reading()
            except Exception as error:
                count_failure("console", error)
                self._task = None  # the next page begins anew
                self._end("the figures could not be read; the server's log says why")

    async def _keep_reading(self) -> None:
        due = self._clock()
        while True:
            reading, workers = await self._read()
            now = self._clock()
            changes = self.snapshot.next(reading, now, int(time.time() * 1000), workers)
            self.ready = True
            for page in self._pages:
                page.offer(changes)
            due = max(due + PERIOD_S, now)
            await self._sleep(due - now)

"""Who sends when: so many requests at a time (closed loop), or so many a second whatever comes back (open loop).

An open loop counts a request's latency from the moment at which it was to be sent, not from when a connection was free
for it: a server that stalls for a second has then delayed all requests of that second, and not just one for each
connection. A closed loop cannot see that ("coordinated omission"): while it waits, it sends nothing.
"""

import asyncio
import contextlib
import random
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from .measures import Load, Window
from .slots import Slot, SlotFactory, clock
from .ticker import Ticker, ticker

MOST_ERRORS = 100
"""Texts of errors that are told apart."""


class Driver(Protocol):
    """Sends requests from `start` to `stop`. `cut` gives what ended since the last cut."""

    load: Load

    async def start(self) -> None:
        """Opens connections and sends. Raises OSError."""

    def cut(self) -> Window: ...

    async def stop(self, patience: float) -> int:
        """Send nothing more, and wait so many seconds for responses: how many did not come."""


class _Recording:
    """What both loops have in common: slots, the window that is open, and requests that get no response."""

    def __init__(self, load: Load, factory: SlotFactory, requests: int, timeout: float) -> None:
        self.load = load
        self._factory, self._requests, self._timeout = factory, requests, timeout
        self._slots: list[Slot] = []
        self._index = 0
        self._running = False
        self._latencies, self._lags = array("q"), array("q")
        self._errors = Counter[str]()
        self._begin = clock()
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_idle = asyncio.Event()

    def cut(self) -> Window:
        now = clock()
        window = Window((now - self._begin) / 1e9, self._latencies, self._errors, self._lags, self._waiting())
        self._latencies, self._lags, self._errors = array("q"), array("q"), Counter()
        self._begin = now
        return window

    def _waiting(self) -> int:
        return 0

    def _next(self) -> int:
        index = self._index
        self._index = index + 1 if index + 1 < self._requests else 0
        return index

    def _failed(self, error: str) -> None:
        if error not in self._errors and len(self._errors) >= MOST_ERRORS:
            error = "other errors"
        self._errors[error] += 1

    def _sweep(self) -> None:
        """Once a second: ends what has waited for too long."""
        now = clock()
        for slot in self._slots:
            if slot.start and now - slot.start > self._timeout * 1e9:
                slot.abort(f"no response within {self._timeout:g} s")
        self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def _idle(self, slot: Slot) -> None:
        """After the end, a slot has its last response."""
        slot.start = 0
        if not any(each.start for each in self._slots):
            self._all_idle.set()

    async def stop(self, patience: float) -> int:
        self._running = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._all_idle.clear()
        busy = sum(slot.start != 0 for slot in self._slots)
        if busy and patience:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_idle.wait(), patience)
            busy = sum(slot.start != 0 for slot in self._slots)
        for slot in self._slots:
            slot.close()
        return busy


class ClosedLoop(_Recording):
    """Each slot sends its next request when it has the response to the last one."""

    def __init__(self, concurrency: int, factory: SlotFactory, requests: int, timeout: float) -> None:
        super().__init__(Load(False, concurrency), factory, requests, timeout)

    async def start(self) -> None:
        self._slots += await self._factory.open(self, int(self.load.value))
        self._running = True
        self._sweep()
        for slot in self._slots:
            slot.start = clock()
            slot.send(self._next())

    def done(self, slot: Slot, error: str) -> None:
        now = clock()
        if error:
            self._failed(error)
        else:
            self._latencies.append(now - slot.start)
        if not self._running:
            self._idle(slot)
            return
        slot.start = now
        slot.send(self._next())


class OpenLoop(_Recording):
    """Sends by the clock. Slots are added as they are needed, up to `most`; then requests wait in line for one."""

    def __init__(
        self,
        rate: float,
        factory: SlotFactory,
        requests: int,
        timeout: float,
        *,
        most: int,
        first: int = 8,
        poisson: bool = False,
        make_ticker: Callable[[Callable[[], None]], Ticker] = ticker,
    ) -> None:
        super().__init__(Load(True, rate), factory, requests, timeout)
        self._most, self._first = most, min(first, most)
        self._gap = 1e9 / rate
        self._random = random.Random(0) if poisson else None
        self._make_ticker = make_ticker
        self._ticker: Ticker | None = None
        self._due = 0.0
        self._free: list[Slot] = []
        self._line: deque[int] = deque()
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._add(await self._factory.open(self, self._first))
        self._running = True
        self._sweep()
        self._ticker = self._make_ticker(self.tick)
        self._due = float(clock())
        self.tick()

    def _add(self, slots: Sequence[Slot]) -> None:
        self._slots += slots
        for slot in slots:
            if self._line:
                self._send(slot, self._line.popleft())
            else:
                self._free.append(slot)

    def tick(self) -> None:
        """Send what is due."""
        if not self._running:
            return
        now = clock()
        while self._due <= now:
            due = int(self._due)
            self._lags.append(now - due)
            if self._free:
                self._send(self._free.pop(), due)
            else:
                self._line.append(due)
                if self._opening is None and len(self._slots) < self._most:
                    self._opening = asyncio.create_task(self._open_more())
            self._due += self._gap if self._random is None else self._random.expovariate(1.0) * self._gap
        assert self._ticker is not None
        self._ticker.arm(int(self._due))

    async def _open_more(self) -> None:
        try:
            self._add(await self._factory.open(self, min(len(self._slots), self._most - len(self._slots))))
        except OSError as error:
            self._failed(f"cannot connect: {error.strerror or error}")
        finally:
            self._opening = None

    def _send(self, slot: Slot, due: int) -> None:
        slot.start = due
        slot.send(self._next())

    def done(self, slot: Slot, error: str) -> None:
        if error:
            self._failed(error)
        else:
            self._latencies.append(clock() - slot.start)
        if not self._running:
            self._idle(slot)
        elif self._line:
            self._send(slot, self._line.popleft())
        else:
            slot.start = 0
            self._free.append(slot)

    def _waiting(self) -> int:
        return len(self._line)

    async def stop(self, patience: float) -> int:
        self._running = False
        if self._ticker is not None:
            self._ticker.close()
            self._ticker = None
        if self._opening is not None:
            self._opening.cancel()
        return await super().stop(patience)

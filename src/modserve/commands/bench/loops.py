"""Load generators: a fixed concurrency (closed loop), or a fixed rate regardless of responses (open loop).

An open loop counts latency from when a request was due, not from when a connection was free for it: a server that
stalls for a second delays all requests of that second, not just one per connection. A closed loop cannot see that
("coordinated omission"): while it waits, it sends nothing.
"""

import asyncio
import contextlib
import random
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from modserve.core.runtime.clock import Alarm, Clock

from .inputs import Sequences
from .measures import LoadLevel, MeasurementWindow
from .slots import RequestSlot, SlotFactory, SpreadSlots, clock
from .text_measures import TextCounter

MOST_ERRORS = 100
"""Distinct error texts."""


class LoadGenerator(Protocol):
    """Sender of requests from `start` to `stop`. `take_window` returns the requests that ended since the last cut."""

    load: LoadLevel

    async def start(self) -> None:
        """Open connections and send. Raises OSError."""

    def take_window(self) -> MeasurementWindow: ...

    async def stop(self, patience: float) -> int:
        """Stop sending, wait up to this many seconds for responses, and return the number of missing ones."""


class _LoadLoop:
    """Shared by both loops: slots, the current window, and timeouts."""

    def __init__(
        self,
        load: LoadLevel,
        factory: SlotFactory,
        requests: int,
        timeout: float,
        sequences: Sequences | None,
        texts: TextCounter | None,
    ) -> None:
        self.load = load
        self._factory, self._requests, self._timeout = factory, requests, timeout
        self._spread = factory if isinstance(factory, SpreadSlots) else None
        self._sequences, self._texts = sequences, texts
        self._slots: list[RequestSlot] = []
        self._index = 0
        self._running = False
        self._latencies, self._lags = array("q"), array("q")
        self._errors = Counter[str]()
        self._firsts, self._gaps = array("q"), array("q")
        self._ended = 0
        """Number of ended sequences."""
        self._last_responses: dict[RequestSlot, int] = {}
        """Arrival of the latest response to each unfinished request that has one."""
        self._begin = clock()
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_idle = asyncio.Event()

    def take_window(self) -> MeasurementWindow:
        now = clock()
        window = MeasurementWindow(
            (now - self._begin) / 1e9, self._latencies, self._errors, self._lags, self._waiting()
        )
        window.firsts, window.gaps = self._firsts, self._gaps
        window.sequences, self._ended = self._ended, 0
        window.texts = None if self._texts is None else self._texts.take()
        window.shares = [] if self._spread is None else self._spread.take()
        self._latencies, self._lags, self._errors = array("q"), array("q"), Counter()
        self._firsts, self._gaps = array("q"), array("q")
        self._begin = now
        return window

    def _waiting(self) -> int:
        return 0

    def _send(self, slot: RequestSlot, start: int) -> None:
        slot.start = start
        if self._sequences is not None:
            slot.send(*self._sequences.next(slot))
            return
        index = self._index
        self._index = index + 1 if index + 1 < self._requests else 0
        slot.send(index, b"" if self._texts is None else self._texts.tag())

    def on_response(self, slot: RequestSlot) -> None:
        now = clock()
        last = self._last_responses.get(slot)
        if last is None:
            self._firsts.append(now - slot.start)
        else:
            self._gaps.append(now - last)
        self._last_responses[slot] = now

    def _record(self, slot: RequestSlot, error: str, now: int) -> None:
        """Record the end of the slot's request."""
        if self._last_responses:
            self._last_responses.pop(slot, None)
        if self._spread is not None:
            self._spread.record(slot, now - slot.start, error)
        if not error:
            self._latencies.append(now - slot.start)
            if self._sequences is not None and not self._sequences.under_way(slot):
                self._ended += 1
            return
        self._count_error(error)
        if self._sequences is not None:
            self._sequences.drop(slot)

    def _count_error(self, error: str) -> None:
        if error not in self._errors and len(self._errors) >= MOST_ERRORS:
            error = "other errors"
        self._errors[error] += 1

    def _sweep(self) -> None:
        """End overdue requests. Runs once a second."""
        now = clock()
        for slot in self._slots:
            if slot.start and now - slot.start > self._timeout * 1e9:
                slot.abort(f"no response within {self._timeout:g} s")
        self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def _idle(self, slot: RequestSlot) -> None:
        """Handle a slot's last response after the end. Its sequence, which the server would keep, is ended as well."""
        slot.start = 0
        if self._sequences is not None and self._sequences.under_way(slot):
            slot.start = clock()
            slot.send(*self._sequences.last(slot))
        elif not any(each.start for each in self._slots):
            self._all_idle.set()

    async def stop(self, patience: float) -> int:
        self._running = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._all_idle.clear()
        if patience and self._sequences is not None:
            for slot in self._slots:
                if not slot.start:
                    self._idle(slot)
        busy = sum(slot.start != 0 for slot in self._slots)
        if busy and patience:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_idle.wait(), patience)
            busy = sum(slot.start != 0 for slot in self._slots)
        for slot in self._slots:
            slot.close()
            if self._sequences is not None:
                self._sequences.drop(slot)
        return busy


class ClosedLoop(_LoadLoop):
    """Closed loop: each slot sends its next request when it has the response to the last one."""

    def __init__(
        self,
        concurrency: int,
        factory: SlotFactory,
        requests: int,
        timeout: float,
        *,
        sequences: Sequences | None = None,
        texts: TextCounter | None = None,
    ) -> None:
        super().__init__(LoadLevel(False, concurrency), factory, requests, timeout, sequences, texts)

    async def start(self) -> None:
        self._slots += await self._factory.open(self, int(self.load.value))
        self._running = True
        self._sweep()
        for slot in self._slots:
            self._send(slot, clock())

    def on_done(self, slot: RequestSlot, error: str) -> None:
        now = clock()
        self._record(slot, error, now)
        if self._running:
            self._send(slot, now)
        else:
            self._idle(slot)


class OpenLoop(_LoadLoop):
    """Open loop: sends by the clock. Slots are added as needed, up to `most`; then requests wait in line for one.

    With sequences there are `most` from the start on, each with its own, and they take turns.
    """

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
        sequences: Sequences | None = None,
        texts: TextCounter | None = None,
        timers: Clock,
    ) -> None:
        super().__init__(LoadLevel(True, rate), factory, requests, timeout, sequences, texts)
        self._most, self._first = most, min(first, most) if sequences is None else most
        self._gap = 1e9 / rate
        self._random = random.Random(0) if poisson else None
        self._alarm = Alarm(timers, self.tick)
        self._due = 0.0
        self._free: deque[RequestSlot] = deque()
        in_turns = sequences is not None or self._spread is not None
        self._take = self._free.popleft if in_turns else self._free.pop
        self._line: deque[int] = deque()
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._add(await self._factory.open(self, self._first))
        self._running = True
        self._sweep()
        self._due = float(clock())
        self.tick()

    def _add(self, slots: Sequence[RequestSlot]) -> None:
        self._slots += slots
        for slot in slots:
            if self._line:
                self._send(slot, self._line.popleft())
            else:
                self._free.append(slot)

    def tick(self) -> None:
        """Send the due requests."""
        if not self._running:
            return
        now = clock()
        while self._due <= now:
            due = int(self._due)
            self._lags.append(now - due)
            if self._free:
                self._send(self._take(), due)
            else:
                self._line.append(due)
                if self._opening is None and len(self._slots) < self._most:
                    self._opening = asyncio.create_task(self._open_more())
            self._due += self._gap if self._random is None else self._random.expovariate(1.0) * self._gap
        self._alarm.at(max(1, int(self._due)))

    async def _open_more(self) -> None:
        try:
            self._add(await self._factory.open(self, min(len(self._slots), self._most - len(self._slots))))
        except OSError as error:
            self._count_error(f"cannot connect: {error.strerror or error}")
        finally:
            self._opening = None

    def on_done(self, slot: RequestSlot, error: str) -> None:
        self._record(slot, error, clock())
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
        self._alarm.end()
        if self._opening is not None:
            self._opening.cancel()
        return await super().stop(patience)

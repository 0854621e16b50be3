"""Deadlines of all calls of a port, with a single timer.

One timer per call would take 1.08 times the CPU time of a unary inference (`benchmarks/wire_shortcuts.py`).
"""

import asyncio
import time
from typing import Final, Protocol

from modserve.core.runtime.failures import count_failure

_STEP_NS: Final = 8_000_000
"""Width of a bucket in nanoseconds; a call may end this much late."""


class WithDeadline(Protocol):
    def on_deadline(self) -> None:
        """End the call: its deadline has passed."""
        ...


class Deadlines:
    """Calls by deadline. Most calls end earlier and are removed again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[WithDeadline]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, call: WithDeadline, deadline_ns: int) -> int:
        """Add a call; return the number for `remove`."""
        number = deadline_ns // _STEP_NS + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = {call}
            if self._timer is None or number < self._next:
                self._set(number)
        else:
            bucket.add(call)
        return number

    def remove(self, call: WithDeadline, number: int) -> None:
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.discard(call)
            if not bucket:
                del self._buckets[number]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pass_by(self, now_ns: int) -> None:
        """End the calls with a deadline before `now_ns`."""
        self.close()
        last = now_ns // _STEP_NS
        for number in sorted([each for each in self._buckets if each <= last]):
            for call in self._buckets.pop(number, ()):
                try:
                    call.on_deadline()
                except Exception as error:  # other calls have deadlines, too
                    count_failure("grpc_deadlines", error)
        if self._buckets:
            self._set(min(self._buckets))

    def _set(self, number: int) -> None:
        self.close()
        self._next = number
        self._timer = self._loop.call_later(max(0.0, (number * _STEP_NS - time.monotonic_ns()) / 1e9), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.pass_by(time.monotonic_ns())

"""The interfaces on both sides of a scheduler, and the clock it reads."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.runtime.failures import count_failure, register_task
from modserve.core.runtime.turn import turn_of

from .timers import ExactTimers, exact_timers


class Scheduler(Protocol):
    """Owns the waiting requests of one model version. All methods run on the event loop's thread and never wait."""

    @property
    def count(self) -> int:
        """Number of waiting requests."""

    def waited_ns(self, now_ns: int) -> int:
        """Return how long the oldest waiting request has waited; 0 if none waits."""

    def dispatch(self) -> None:
        """Start every batch that can start now: called when a slot of the runner may have become free."""

    def enqueue(self, inflight: Inflight) -> None:
        """Take the request, or raise UNAVAILABLE and leave it alone when full or stopping."""

    def hurry(self) -> None:
        """Stop holding requests back to share a batch, from now on."""

    def stop(self) -> None:
        """Take nothing new; what waits still runs, and hurries."""

    def close(self, error: ModserveError) -> None:
        """Take nothing new and fail what waits."""

    def fail_waiting(self, error: ModserveError) -> None:
        """Fail what waits; what comes later is taken."""


SlotT = TypeVar("SlotT")
"""A place to run one batch. Only the runner knows what it is."""


class BatchRunner(Protocol[SlotT]):
    """Runner of batches; implemented by `execution/pool.py`."""

    def reserve(self) -> SlotT | None:
        """Reserve a free slot, or return None. Call `run` or `release` with each reserved slot."""

    def release(self, slot: SlotT) -> None: ...

    def run(self, slot: SlotT, batch: list[Inflight], close_reason: str) -> None:
        """Execute and settle all of a `batch`, never empty; returns at once. `close_reason`: a value of `Reason`."""


class PinnedRunner(BatchRunner[SlotT], Protocol):
    """A runner with numbered slots, for schedulers that keep requests in their places."""

    @property
    def count(self) -> int:
        """Number of slots."""

    def reserve_number(self, number: int) -> SlotT | None:
        """Reserve the slot with this number, 0 to `count` - 1, as `reserve` does."""

    def run(self, slot: SlotT, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        """Run a batch as all runners do. `rows` are the requests in the model's rows; fillers count nowhere."""


OnDrop: TypeAlias = Callable[[Inflight, ModserveError], None]
"""Settles a request that leaves the queue without having run, and counts it."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic time in nanoseconds, and calls at a later moment on the event loop's thread."""

    def now_ns(self) -> int: ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back when this turn of the event loop is over, or when the front end has handed its request over."""

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        """Call back at `when_ns` or up to some milliseconds earlier: look at the clock then, and call this again."""


_TASK = "scheduling"
register_task(_TASK)
_AGAIN_NS = 1_000_000_000
"""Time until an alarm with a failed callback rings again."""


@dataclass(slots=True, eq=False, repr=False)
class Alarm:
    """Movable alarm for a single moment. `when_ns` is that moment, 0 for none."""

    _clock: Clock
    _ring: Callable[[], None]
    when_ns: int = 0
    _timer: TimerHandle | None = None

    def at(self, when_ns: int) -> None:
        """Ring then, and at no other time; never if that is 0."""
        if when_ns == self.when_ns:
            return
        self.cancel()
        if when_ns:
            self.when_ns = when_ns
            self._timer = self._clock.call_at(when_ns, self._rings)

    def by(self, when_ns: int) -> None:
        """Ring then, unless that is done earlier anyway."""
        if not self.when_ns or when_ns < self.when_ns:
            self.at(when_ns)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.when_ns = 0

    def end(self) -> None:
        """Never ring again, and forget the callback."""
        self.cancel()
        self._ring = lambda: None

    def _rings(self) -> None:
        self._timer = None
        self.when_ns = 0
        try:
            self._ring()
        except Exception as error:
            count_failure(_TASK, error)
            self.by(self._clock.now_ns() + _AGAIN_NS)


_EARLY_NS = 1_500_000
"""Lead with which the event loop's own timer is to ring before a distant moment."""
_FAR_NS = _EARLY_NS + 2_500_000
"""Moments that are farther away are not yet for the exact timers, since these keep what was cancelled.

The loop's timer may ring two milliseconds sooner than it is to: delays are rounded down to milliseconds, and uvloop
counts them from a time that it has rounded down as well. What is left then is not far.
"""


class LoopClock:
    """The clock of an event loop. All schedulers of a loop share one, since it may hold a file descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now_ns = time.monotonic_ns
        self.call_soon = turn_of(loop).call_soon
        self._looked = False
        self._timers: ExactTimers | None = None

    @property
    def _exact(self) -> ExactTimers | None:
        if not self._looked:
            self._looked = True
            self._timers = exact_timers(self.loop)
        return self._timers

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> TimerHandle:
        left_ns = when_ns - time.monotonic_ns()
        if left_ns > _FAR_NS:
            # This rings early. Whoever calls again then gets an exact timer.
            return self.loop.call_later((left_ns - _EARLY_NS) // 1_000_000 / 1e3, callback)
        if self._exact is None:
            return self.loop.call_later(-(-max(0, left_ns) // 1_000_000) / 1e3, callback)
        return self._exact.call_at(when_ns, callback)

"""Replaces lost instances. The wait before each attempt grows as long as attempts fail.

A lost instance is in one of two states: it waits for an attempt, or an attempt is under way on a loading thread. A
successful attempt ends both; a failed one begins a new wait. The wait before an attempt doubles with each loss that
follows soon after the one before, and with each failed attempt.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias

from modserve.backends.api import Executor
from modserve.core.errors import ModserveError, from_exception
from modserve.core.runtime.failures import count_failure, guard

FIRST_WAIT_NS = 1_000_000_000
LONGEST_WAIT_NS = 60_000_000_000
STEADY_NS = 60_000_000_000
"""Lifetime after which an instance starts again from the shortest wait."""
_TASK = "revival"

Make: TypeAlias = Callable[[int, Callable[[], None]], Future[Executor]]
"""Makes a new instance with a number on a loading thread, after it has called a function there that may block."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class RevivalClock(Protocol):
    """Clock with timers, as `scheduling.scheduler.RevivalClock`."""

    def now_ns(self) -> int: ...
    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer: ...


class Revival:
    """Revival of the instances of one pool. Lives on the event loop's thread; `on_loop` reaches it from any other.

    `take` puts a new engine in the place of the lost one with that number, or closes it and raises. `failed` is called
    after each failed attempt with the number and the nanoseconds until the next one.
    """

    def __init__(
        self,
        make: Make,
        clock: RevivalClock,
        on_loop: Callable[[Callable[[], None]], object],
        take: Callable[[int, Executor], None],
        failed: Callable[[int, ModserveError, int], None],
    ) -> None:
        self._make = make
        self._clock = clock
        self._on_loop = on_loop
        self._take = take
        self._failed = failed
        self._waits: dict[int, int] = {}
        """The wait before the next attempt, by number."""
        self._since: dict[int, int] = {}
        """Time of each instance's latest revival."""
        self._timers: dict[int, Timer] = {}
        self._attempts: dict[int, Future[Executor]] = {}
        self._forgotten: set[int] = set()
        self._ended = False

    def __repr__(self) -> str:
        return f"Revival({len(self._timers)} waiting, {len(self._attempts)} under way)"

    def revive(self, number: int, close: Callable[[], None]) -> int:
        """Revive a lost instance, which `close` closes, blocking. Returns the nanoseconds until the first attempt."""
        if number in self._since and self._clock.now_ns() - self._since[number] >= STEADY_NS:
            self._waits.pop(number, None)
        return self._try_later(number, close)

    def forget(self, number: int) -> bool:
        """Give up the revival of an instance. Returns whether it is still to be closed.

        If not, `close` of it was called or is about to be; what comes of an attempt under way goes to `take`.
        """
        self._forgotten.add(number)
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def end(self) -> None:
        """Stop further attempts; `close` closes what comes of one that is under way."""
        self._ended = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        """Wait, after `end`, for attempts under way and close what they make. Blocks; any thread."""
        for attempt in self._attempts.values():
            try:
                engine = attempt.result()
            except BaseException:  # it failed, or was cancelled: there is nothing to close
                continue
            engine.close()

    def _try_later(self, number: int, close: Callable[[], None]) -> int:
        wait_ns = self._waits.get(number, FIRST_WAIT_NS)
        if not self._ended and number not in self._forgotten:
            self._waits[number] = min(2 * wait_ns, LONGEST_WAIT_NS)
            when_ns = self._clock.now_ns() + wait_ns
            self._timers[number] = self._clock.call_at(when_ns, lambda: self._try(number, close))
        return wait_ns

    def _try(self, number: int, close: Callable[[], None]) -> None:
        self._timers.pop(number, None)
        try:
            attempt = self._attempts[number] = self._make(number, close)
        except Exception as error:
            if self._ended or "after shutdown" in str(error):
                return  # the server has ended, and its loading threads with it
            count_failure(_TASK, error)
            failure = from_exception(error, "failed to replace a lost instance")
            self._failed(number, failure, self._try_later(number, close))
            return
        attempt.add_done_callback(lambda attempt: self._tell(number, attempt))

    def _tell(self, number: int, attempt: "Future[Executor]") -> None:
        """Report a finished attempt to the event loop, from the loading thread."""
        with suppress(RuntimeError):  # the event loop has closed
            self._on_loop(partial(guard(_TASK, self._on_made), number, attempt))

    def _on_made(self, number: int, attempt: "Future[Executor]") -> None:
        if self._ended or attempt.cancelled():
            return
        del self._attempts[number]
        error = attempt.exception()
        if error is None:
            try:
                self._take(number, attempt.result())
                self._since[number] = self._clock.now_ns()
                return
            except Exception as refusal:
                error = refusal
        failure = from_exception(error, "failed to replace a lost instance")
        self._failed(number, failure, self._try_later(number, _nothing))


def _nothing() -> None: ...

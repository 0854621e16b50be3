"""What a loaded model is doing, and how it comes and goes by its own rules."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from modserve.core.servable import Finisher, RequestHolder, SequenceKeeper, Servable
from modserve.scheduling.scheduler import Alarm, Clock


class StayRules(NamedTuple):
    """A model's own parameters over the server's options."""

    pin: bool = False
    idle_ns: int = 0
    """How long it stays in memory without requests; 0: for ever."""


class Borrowers(NamedTuple):
    """What is known of those that borrow servables, as `repository.locks.Loans` has it."""

    lent: Callable[[Servable], bool] = lambda servable: False
    returned: Callable[[Servable], Awaitable[None]] | None = None


def at_work(servable: object) -> str:
    """What a servable is doing, for people; empty if nothing: a `Finisher` knows of requests that nobody waits for."""
    idle = isinstance(servable, Finisher) and not servable.busy
    if not idle and (count := outstanding(servable)):
        return f"{count} requests in flight" if count > 1 else "1 request in flight"
    if begun := open_sequences(servable):
        return f"{begun} open sequences" if begun > 1 else "1 open sequence"
    return "busy" if isinstance(servable, Finisher) and not idle else ""


def outstanding(servable: object) -> int:
    return servable.outstanding if isinstance(servable, RequestHolder) else 0


def open_sequences(servable: object) -> int:
    return servable.open_sequences if isinstance(servable, SequenceKeeper) else 0


NO_RULES = StayRules()
NOBODY_BORROWS = Borrowers()


class IdleWatch:
    """Calls `on_idle` when a model has not been used for `idle_ns`; never if that is 0.

    `used_ns` says when it was used last: now, while it is in use.
    """

    def __init__(self, clock: Clock, idle_ns: int, used_ns: Callable[[], int], on_idle: Callable[[], None]) -> None:
        self._clock = clock
        self._idle_ns = idle_ns
        self._used_ns = used_ns
        self._on_idle = on_idle
        self._alarm = Alarm(clock, self._look)

    def __repr__(self) -> str:
        return f"IdleWatch({self._idle_ns / 1e9:g} s)"

    @property
    def seconds(self) -> float:
        return self._idle_ns / 1e9

    def start(self) -> None:
        if self._idle_ns:
            self._alarm.at(self._used_ns() + self._idle_ns)

    def stop(self) -> None:
        self._alarm.cancel()

    def _look(self) -> None:
        due_ns = self._used_ns() + self._idle_ns
        if self._clock.now_ns() >= due_ns:
            self._on_idle()
        else:
            self._alarm.at(due_ns)


def mark_seen(task: "asyncio.Task[None]") -> None:
    """Take note of a task's failure, which whoever waits has been told; asyncio would report it as never retrieved."""
    if not task.cancelled():
        task.exception()

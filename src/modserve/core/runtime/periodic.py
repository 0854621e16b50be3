"""Periodic work: a failure is logged and counted, and the work is tried again.

Otherwise an exception would silently end the work for good: event loops log it at best, and code that schedules the
next run at the end of the work never gets there.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from .failures import count_failure, register_task


class PeriodicTask:
    """Task that runs `work` from `start` to `stop`, with a pause of `seconds` from each end to the next beginning.

    A coroutine that `work` returns is awaited. Seconds that `work` returns are the next pause. On the event loop.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], Awaitable[None] | float | None]) -> None:
        self.name = name
        self._seconds = seconds
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running: asyncio.Future[None] | None = None
        register_task(name)

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin with a pause."""
        self._loop = loop or asyncio.get_running_loop()
        self._pause(self._seconds)

    def stop(self) -> None:
        """End, and cancel a run in progress. May be called again."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel()

    def _pause(self, seconds: float) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._timer = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        seconds = self._seconds
        try:
            outcome = self._work()
            if inspect.isawaitable(outcome):
                self._running = asyncio.ensure_future(outcome)
                self._running.add_done_callback(self._on_end)
                return
            if outcome is not None:
                seconds = outcome
        except Exception as error:
            count_failure(self.name, error)
        self._pause(seconds)

    def _on_end(self, running: "asyncio.Future[None]") -> None:
        self._running = None
        if not running.cancelled() and (error := running.exception()) is not None:
            count_failure(self.name, error)
        self._pause(self._seconds)

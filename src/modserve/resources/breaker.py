"""A circuit breaker: requests do not wait for a service that has failed recently."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

_MOST_FAILURES = 3
"""Failures in a row after which the service is taken for dead."""
_FIRST_S, _LONGEST_S = 1.0, 30.0
"""Seconds until the next attempt, from first to longest: twice as long after each attempt that fails."""
_LONG_AGO_S = 60.0
"""Seconds after closing; a breaker that opens again sooner continues the earlier failure."""


class Breaker:
    """Closed while all is well. Open after some failures: until `probe`, tried now and then, raises nothing.

    It writes one line to the log when it opens, and one when it closes; if that goes on and on, only the first of them.
    For the event loop's thread. The maker of `probe` limits its time; no request waits for it.
    """

    def __init__(
        self,
        service: str,
        without: str,
        probe: Callable[[], Awaitable[object]],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.open = False
        self._service = service
        self._without = without
        self._probe = probe
        self._sleep = sleep
        self._now = now or time.monotonic
        self._failures = 0
        self._wait_s = _FIRST_S
        self._closed_at = -_LONG_AGO_S
        self._task: asyncio.Task[None] | None = None

    def on_success(self) -> None:
        self._failures = 0

    def on_failure(self, why: object) -> None:
        self._failures += 1
        if self.open or self._failures < _MOST_FAILURES:
            _log.debug("%s: %s", self._service, why)
            return
        self.open = True
        again = self._now() - self._closed_at < _LONG_AGO_S
        self._wait_s = min(2 * self._wait_s, _LONGEST_S) if again else _FIRST_S
        level = logging.DEBUG if again else logging.WARNING
        _log.log(level, "%s: %s; %s until it is back", self._service, why, self._without)
        self._task = asyncio.get_running_loop().create_task(self._wait(level))

    async def _wait(self, level: int) -> None:
        while True:
            await self._sleep(self._wait_s)
            try:
                await self._probe()
            except Exception as error:
                _log.debug("%s: %s", self._service, error)
                self._wait_s = min(2 * self._wait_s, _LONGEST_S)
                continue
            break
        self._failures = 0
        self._closed_at = self._now()
        self.open = False
        _log.log(min(level, logging.INFO), "%s is back", self._service)

    def end(self) -> None:
        """Probe no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

"""A clock that tests turn by hand."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Implements `scheduling.scheduler.Clock`. Starts at one second, so that no stamp looks unset."""

    def __init__(self) -> None:
        self._now_ns = 1_000_000_000
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._order = itertools.count()

    def now_ns(self) -> int:
        return self._now_ns

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when_ns, next(self._order), timer))
        return timer

    def next_timer_ns(self) -> int | None:
        """Return the time of the earliest timer that was not cancelled; None without timers."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def run(self) -> None:
        """Run everything that is due now, and everything that becomes due by that."""
        while True:
            if self._soon:
                self._soon.popleft()()
                continue
            when_ns = self.next_timer_ns()
            if when_ns is None or when_ns > self._now_ns:
                return
            callback = heapq.heappop(self._timers)[2].callback
            assert callback is not None, "cancelled timers were skipped: this is a bug"
            callback()

    def advance(self, ns: int) -> None:
        """Advance the time, stopping at each timer on the way."""
        end_ns = self._now_ns + ns
        self.run()
        while (when_ns := self.next_timer_ns()) is not None and when_ns <= end_ns:
            self._now_ns = max(self._now_ns, when_ns)
            self.run()
        self._now_ns = end_ns
        self.run()

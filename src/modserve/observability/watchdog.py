"""Detects blocking of the event loop, its duration and cause.

All client connections share one thread. A callback that does not return blocks every connection, including liveness
probes. A timer beats on the loop every `PERIOD_S`; the loop's lag is the delay of a beat.

A thread watches the beats. When one is overdue by the limit, the thread logs the current stack of the loop's thread.
When the beat comes, the loop logs its delay, and how much of that time its own thread was computing. A stall without
computing is caused by the machine (a stopped process, a throttled container), or by a thread that keeps the interpreter
lock, as the import of an engine's library does.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import Self

from modserve.core.runtime.failures import count_failure, failures
from modserve.core.runtime.periodic import PeriodicTask
from modserve.core.statistics.histogram import Histogram

from .families import Family, family, format_labels, histogram_family

_log = logging.getLogger(__name__)

PERIOD_S = 0.05
"""Seconds between beats: short enough to detect every relevant stall, long enough to have no measurable cost."""

_MS = 1_000_000
_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
_FRAMES = 15
"""Number of innermost frames in the log."""
_PAUSE_NS = 1_000 * _MS
"""Minimum time between stacks in the log, so that a permanently blocked loop does not fill the disk."""
_ITS_OWN_DOING = 0.2
"""Computing fraction of a stall from which the process is considered the cause."""


class Watchdog:
    """Context manager that watches the running event loop, and collects its lag for Prometheus. For the loop's thread.

    Logs a lag of more than `limit_ms` milliseconds; 0 logs nothing. `imports` returns engines with imports after a
    moment of `time.monotonic_ns`: a lag in which the loop's own thread hardly computed is attributed to them, without a
    warning. Time spent on requested garbage collections since then, from `last_collection_ns`, is not reported either.
    """

    def __init__(
        self,
        limit_ms: int,
        imports: Callable[[int], Collection[str]] = lambda since_ns: (),
        collected_ns: Callable[[int], int] = lambda since_ns: 0,
    ) -> None:
        self.lag = Histogram([bound * _MS for bound in _BOUNDS_MS])
        """Delays of beats in nanoseconds."""
        self._limit_ns = limit_ms * _MS
        self._imports = imports
        self._collected_ns = collected_ns
        self._task = PeriodicTask("watchdog", PERIOD_S, self._beat)
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._ended = threading.Event()
        self._beat_ns = 0
        self._thread_cpu_ns = 0
        self._process_cpu_ns = 0
        self._logged_beat_ns = 0
        self._logged_ns = 0

    def __enter__(self) -> Self:
        self._loop_thread = threading.get_ident()
        self._stamp()
        self._task.start()
        if self._limit_ns:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._task.stop()
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def collect(self) -> Iterator[Family]:
        text = "Delay of due callbacks on the event loop"
        yield histogram_family("modserve_event_loop_lag_seconds", text, 1e9, [("", self.lag)])
        text = "Failures of work that the server does again and again"
        rows = [(format_labels({"task": name}), count) for name, count in sorted(failures.items())]
        yield family("modserve_background_task_failures_total", "counter", text, rows)

    def _stamp(self) -> None:
        self._thread_cpu_ns = time.thread_time_ns()
        self._process_cpu_ns = time.process_time_ns()
        self._beat_ns = time.monotonic_ns()

    def _beat(self) -> None:
        lag_ns = max(0, time.monotonic_ns() - self._beat_ns - int(PERIOD_S * 1e9))
        self.lag.observe(lag_ns)
        if self._limit_ns and lag_ns > self._limit_ns:
            self._report(lag_ns)
        self._stamp()

    def _report(self, lag_ns: int) -> None:
        collected_ns = self._collected_ns(self._beat_ns)
        lag_ns -= collected_ns
        if lag_ns <= self._limit_ns:
            _log.info("the event loop waited %.3f s for an ordered collection of garbage", collected_ns / 1e9)
            return
        own_ns = time.thread_time_ns() - self._thread_cpu_ns - collected_ns
        process_ns = time.process_time_ns() - self._process_cpu_ns - collected_ns
        engines = self._imports(self._beat_ns) if own_ns < _ITS_OWN_DOING * lag_ns else ()
        if engines:
            listed = ", ".join(f"'{name}'" for name in engines)
            _log.info("the event loop waited %.3f s for the import of %s", lag_ns / 1e9, listed)
        elif max(own_ns, process_ns) < _ITS_OWN_DOING * lag_ns:
            _log.warning(
                "the process did not run for %.3f s: it was stopped, or the machine or container gave it no CPU time",
                lag_ns / 1e9,
            )
        else:
            _log.warning(
                "the event loop was held for %.3f s: its thread computed for %.3f s of them, the process for %.3f s",
                lag_ns / 1e9,
                own_ns / 1e9,
                process_ns / 1e9,
            )

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self._keep_watching()
            except Exception as error:
                count_failure(self._task.name, error)
                self._ended.wait(PERIOD_S)

    def _keep_watching(self) -> None:
        limit_ns = self._limit_ns
        interval_s = max(0.01, limit_ns / 1e9 / 4)
        overdue_ns = limit_ns + int(PERIOD_S * 1e9)
        while True:
            before_ns = time.monotonic_ns()
            if self._ended.wait(interval_s):
                return
            now_ns, beat_ns = time.monotonic_ns(), self._beat_ns
            slept_ns = now_ns - before_ns
            # If the process was stopped, so was this thread: no callback is the cause.
            if now_ns - beat_ns < overdue_ns or beat_ns == self._logged_beat_ns or slept_ns > overdue_ns:
                continue
            computed_ns = time.process_time_ns() - self._process_cpu_ns
            if self._imports(beat_ns) or self._collected_ns(beat_ns):
                continue  # the loop's stack would not show the cause; the end of the lag is logged
            if now_ns - self._logged_ns < _PAUSE_NS or computed_ns < _ITS_OWN_DOING * limit_ns:
                continue
            self._logged_beat_ns, self._logged_ns = beat_ns, now_ns
            frame = sys._current_frames().get(self._loop_thread)
            stack = "".join(traceback.format_stack(frame)[-_FRAMES:])
            del frame
            held_s = (now_ns - beat_ns) / 1e9 - PERIOD_S
            _log.warning("the event loop has been held for %.3f s, by:\n%s", held_s, stack)

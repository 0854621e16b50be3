"""Load of a model's instances: at full load only throughput counts, at low load the latency of each request."""

from collections.abc import Callable, Sequence

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics

from .grouping import queue_weight

_BUSIEST = 0.98
_WINDOW = 16  # executions
_LOAD_KEPT = 0.92
"""The share of what was seen before that counts with each new window. Choices are made in busy times only; so what is
remembered must be longer than these usually are."""
_LOAD_REST = 8
"""Most executions that a pause counts as: what was before it says nothing about the load now."""
_SOONER = 0.8
"""Share of one batch's time that several of its parts, run in parallel, may take and still be better."""


class Utilisation:
    """The utilisation of the places where batches run, which goes into the statistics."""

    def __init__(self, statistics: ChoiceStatistics) -> None:
        self._places = 1
        self._free: Callable[[], int] = _none
        self._statistics = statistics
        self._end_ns = self._batches = 0
        self._window_ns = self._window_all_ns = 0
        self._mean_ns = 0.0
        self._busy_ns = self._all_ns = 0.0

    def use(self, places: int, free: Callable[[], int]) -> None:
        """Set the number of batches that run at a time; `free` returns how many could begin besides the chosen one."""
        self._places = max(1, places)
        self._free = free

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        start_ns, end_ns = timing.compute_start_ns, timing.compute_end_ns
        ns = end_ns - start_ns
        self._mean_ns += (ns - self._mean_ns) / _WINDOW if self._mean_ns else ns
        if self._end_ns:
            # With several instances an execution may end before this one that began before it.
            pause_ns = start_ns - self._end_ns
            self._window_all_ns += max(0, end_ns - self._end_ns) - max(0, pause_ns - int(_LOAD_REST * self._mean_ns))
            self._window_ns += ns
            if pause_ns > 0 and any(inflight.queue_start_ns < self._end_ns for inflight in members):
                self._window_ns += pause_ns * self._places  # nobody waited for work, but the work for the server
            self._batches += 1
        self._end_ns = max(self._end_ns, end_ns)
        self._statistics.run_ns += ns
        if self._batches >= _WINDOW:
            busy_ns = self._window_ns / self._places
            self._busy_ns = _LOAD_KEPT * self._busy_ns + busy_ns
            self._all_ns = _LOAD_KEPT * self._all_ns + max(busy_ns, self._window_all_ns)
            self._window_ns = self._window_all_ns = self._batches = 0
            if self._all_ns:
                self._statistics.utilisation = self._busy_ns / self._all_ns

    def weight(self, waiting: int, largest: int) -> float:
        """Return the weight of times for `grouping`. A long queue counts as full load, whatever the load was before."""
        return queue_weight(waiting, min(_BUSIEST, max(self._statistics.utilisation, waiting / (waiting + largest))))

    def share(self, waiting: int, times: Sequence[float]) -> int:
        """Return how many of `waiting` rows are for one place, if several are free: all, unless parts end sooner.

        `times` has that of a batch by its rows, up to the largest, as they were with the other places at work.
        """
        free = self._free()
        if not free:
            return waiting
        part, largest = -(-waiting // (1 + free)), len(times) - 1
        return part if times[min(part, largest)] < _SOONER * times[min(waiting, largest)] else waiting


def _none() -> int:
    return 0

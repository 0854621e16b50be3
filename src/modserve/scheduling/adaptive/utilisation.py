"""Load of a model's instances: at full load only throughput counts, at low load each request's latency."""

from collections.abc import Callable, Sequence

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics

from .grouping import queue_weight

_BUSIEST = 0.98
_WINDOW = 16  # in executions
_LOAD_KEPT = 0.92
"""Weight of earlier windows with each new one. Choices are made in busy times only, so the memory must be longer than
these usually last."""
_LOAD_REST = 8
"""Maximum length of a pause in executions, as earlier load does not affect the present one."""
_SOONER = 0.8
"""Fraction of a batch's time within which parallel parts of it must end to be better."""


class Utilisation:
    """Utilisation of the slots for batches, reported in the statistics."""

    def __init__(self, statistics: ChoiceStatistics) -> None:
        self._places = 1
        self._free: Callable[[], int] = _none
        self._statistics = statistics
        self._end_ns = self._batches = 0
        self._window_ns = self._window_all_ns = 0
        self._mean_ns = 0.0
        self._busy_ns = self._all_ns = 0.0

    def use(self, places: int, free: Callable[[], int]) -> None:
        """Set the number of concurrent batches; `free` returns how many more could begin besides the chosen one."""
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
                self._window_ns += pause_ns * self._places  # requests waited for the server, so the slots count as busy
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
        """Return the weight of times for `grouping`. A long queue counts as full load, whatever the earlier load."""
        return queue_weight(waiting, min(_BUSIEST, max(self._statistics.utilisation, waiting / (waiting + largest))))

    def share(self, waiting: int, times: Sequence[float]) -> int:
        """Return how many of `waiting` rows one slot should take if several are free: all, unless parts end sooner.

        `times`: time of a batch by rows, up to the maximum, measured with the other slots busy.
        """
        free = self._free()
        if not free:
            return waiting
        part, largest = -(-waiting // (1 + free)), len(times) - 1
        return part if times[min(part, largest)] < _SOONER * times[min(waiting, largest)] else waiting


def _none() -> int:
    return 0

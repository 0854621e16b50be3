"""How busy a model's instances are: at full load only the rate counts, at low load how soon each request is done."""

from modserve.core.statistics import ChoiceStatistics
from modserve.core.timing import ExecutionTiming

from .grouping import queue_weight

_BUSIEST = 0.98
_WINDOW = 16  # executions
_KEPT = 0.92
"""The share of what was seen before that counts with each new window. Choices are made in busy times only; so what is
remembered must be longer than these usually are."""
_REST = 4
"""A pause counts as no more than so many times the executions before it."""


class Load:
    """The utilisation of the instances, which goes into the statistics."""

    def __init__(self, statistics: ChoiceStatistics) -> None:
        self.instances = 1
        self._statistics = statistics
        self._since_ns = self._batches = 0
        self._window_ns = 0
        self._busy_ns = self._all_ns = 0.0

    def observe(self, timing: ExecutionTiming) -> None:
        ns, end_ns = timing.compute_end_ns - timing.compute_start_ns, timing.compute_end_ns
        if not self._since_ns:
            self._since_ns = timing.compute_start_ns
        self._statistics.run_ns += ns
        self._window_ns += ns
        self._batches += 1
        if self._batches >= _WINDOW:
            busy_ns = self._window_ns / self.instances
            # With several instances an execution may end before this one that began before it.
            all_ns = min(max(busy_ns, end_ns - self._since_ns), _REST * busy_ns)
            self._busy_ns = _KEPT * self._busy_ns + busy_ns
            self._all_ns = _KEPT * self._all_ns + all_ns
            self._since_ns, self._window_ns, self._batches = max(end_ns, self._since_ns), 0, 0
            if self._all_ns:
                self._statistics.utilisation = self._busy_ns / self._all_ns

    def weight(self, waiting: int, largest: int) -> float:
        """What `grouping` weighs times with. A long queue counts as full load, whatever was before it came."""
        return queue_weight(waiting, min(_BUSIEST, max(self._statistics.utilisation, waiting / (waiting + largest))))

"""Size up to which a batch pays, by measured run times: for models with requests of one length.

A batch that takes as long as its requests one by one gains nothing, and its first request waits for the last. The best
size depends on the number of waiting requests and on the load, as `grouping` says. Few sizes are compared, and only
after some executions, so that a decision is a lookup.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from modserve.core.configuration.merging import rows_of
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics

from ..batching import BatchCandidates, Decision, Dispatch, Reason, Rule, WaitUntil
from .costs import Costs
from .trials import SURE, Trials
from .utilisation import Utilisation

_SHORTEST_NS = 300_000
"""A model that takes less for one row is left alone: what surrounds its executions costs as much."""
_ENOUGH = 32
"""Executions before anything is decided, and from one comparison to the next."""
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class BatchSizes:
    """Cuts what `ready` dispatches down to a size that pays."""

    def __init__(self, config: ModelConfig, ready: Rule) -> None:
        most = max(1, config.max_batch_size)
        self._batch_sizes = config.batch_sizes
        self._ready = ready
        self._most = most
        self._costs = Costs(most)
        self._changes = 0
        self._due = _ENOUGH
        self._steps = [step for step in self._batch_sizes or _STEPS if step < most] + [most]
        self._crowds = [*self._steps, 2 * most, 4 * most, 8 * most]
        self._best: list[int] = []
        """Best size by place in `_crowds`, for that number of waiting rows. Empty while nothing is decided."""
        self.statistics = ChoiceStatistics()
        self.load = Utilisation(self.statistics)
        self._trials = Trials(self.statistics)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        ns = timing.compute_end_ns - timing.compute_start_ns
        if ns < _SHORTEST_NS:
            return
        costs = self._costs
        rows = rows_of(timing.batch_size, self._batch_sizes)
        if not 0 < rows <= self._most:
            return
        costs.observe(rows, 1, ns)
        self.load.observe(timing, members)
        self._trials.observe(members, ns)
        if costs.changes != self._changes:
            self._changes = costs.changes
            self._trials.start_again()
            self._due = 1
        self._due -= 1
        if not self._due:
            self._due = _ENOUGH
            self._learn()

    def expect(self, members: Sequence[Inflight]) -> int:
        """Return how long a batch of these is likely to take, in nanoseconds; 0 before the first."""
        if not self._costs.count:
            return 0
        rows = rows_of(sum([inflight.batch_size for inflight in members]), self._batch_sizes)
        return int(self._costs.of(1)[min(rows, self._most)])

    def rule(self, together: BatchCandidates, now_ns: int) -> Decision:
        decision = self._ready(together, now_ns)
        if not self._best or isinstance(decision, WaitUntil) or decision.count == 1:
            return decision
        size = together.size
        table = self._costs.of(1)
        best = self._best[min(bisect_left(self._crowds, size), len(self._crowds) - 1)]
        best = min(best, self.load.share(size, table))
        weight = self.load.weight(size, self._most)
        time = table[min(best, size)]
        self._trials.earn(time * (weight + 0.5 * best))
        if self._trials.due:
            other = self._find_untried(size)
            waiting = weight + 0.5 * other
            excess = table[other] * waiting - other / best * time * (weight + 0.5 * best)
            if other and self._trials.begin(max(0.0, excess), table[other], waiting, next(iter(together))):
                best = other
        size = 0
        for count, inflight in enumerate(islice(together, decision.count)):
            size += inflight.batch_size or 1
            if size > best and count:
                return Dispatch(count, Reason.NO_GAIN)
        return decision

    def _find_untried(self, size: int) -> int:
        """Return the size, up to this, about which the least is known; 0 if all are known well."""
        sureness = self._costs.sureness
        least, step = min((sureness(step, 1), step) for step in self._steps if step <= max(size, self._steps[0]))
        return step if least < SURE and step <= size else 0

    def _learn(self) -> None:
        costs, steps = self._costs, self._steps
        self.statistics.costs = costs.list_cells()
        table = costs.of(1)
        if table[1] < _SHORTEST_NS:
            self._best = []
            return
        self._best = []
        for crowd in self._crowds:
            weight = self.load.weight(crowd, self._most)
            prices = {size: table[size] / size * (weight + 0.5 * size) for size in steps if size <= crowd}
            self._best.append(min(prices, key=lambda size: prices[size]))

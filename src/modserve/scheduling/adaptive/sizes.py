"""The size up to which a batch pays, by measured run times: for models whose requests are all of one length.

A batch that takes as long as its requests one by one wins nothing, and the first of them waits for the last. Sizes are
compared only if enough executions of each have been seen, and the largest possible size stays the choice unless another
is clearly better. What was seen long ago does not count. So a large batch runs again now and then, and is measured.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from modserve.core.inflight import Inflight
from modserve.core.merging import rows_of
from modserve.core.model_config import ModelConfig
from modserve.core.statistics import ChoiceStatistics
from modserve.core.timing import ExecutionTiming

from ..batching import Decision, Dispatch, Reason, Rule, Together, WaitUntil
from .costs import Costs
from .load import Load

_SHORTEST_NS = 300_000
"""Below this, what surrounds an execution costs as much, and is not measured."""
_SURE = 4.0
"""Executions of about a size that must have been seen before it is compared."""
_CLEARLY = 0.97
"""Another size must cost no more than this share of the largest possible."""
_LEARN_EVERY = 32
"""Executions."""
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Sizes:
    """Cuts what `ready` dispatches down to a size that pays."""

    def __init__(self, config: ModelConfig, ready: Rule) -> None:
        most = max(1, config.max_batch_size)
        self._batch_sizes = config.batch_sizes
        self._ready = ready
        self._most = most
        self._costs = Costs(most)
        self._due = _LEARN_EVERY
        self._steps = [step for step in self._batch_sizes or _STEPS if step < most] + [most]
        self._best: list[int] = []
        """By place in `_steps`: the size that pays if so many rows wait. Empty while all sizes pay."""
        self.statistics = ChoiceStatistics()
        self.load = Load(self.statistics)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        ns = timing.compute_end_ns - timing.compute_start_ns
        if ns < _SHORTEST_NS:
            return
        rows = rows_of(timing.batch_size, self._batch_sizes)
        if not 0 < rows <= self._most:
            return
        self._costs.observe(rows, 1, ns)
        self.load.observe(timing)
        self._due -= 1
        if not self._due:
            self._due = _LEARN_EVERY
            self._learn()

    def rule(self, together: Together, now_ns: int) -> Decision:
        decision = self._ready(together, now_ns)
        if not self._best or isinstance(decision, WaitUntil) or decision.count == 1:
            return decision
        steps = self._steps
        best = self._best[min(bisect_left(steps, together.size), len(steps) - 1)]
        size = 0
        for count, inflight in enumerate(islice(together, decision.count)):
            size += inflight.batch_size or 1
            if size > best and count:
                return Dispatch(count, Reason.NO_GAIN)
        return decision

    def _learn(self) -> None:
        costs, steps = self._costs, self._steps
        table = costs.of(1)
        self.statistics.costs = costs.known()
        sure = [step for step in steps if costs.sureness(step, 1) >= _SURE]
        best: list[int] = []
        for waiting in steps:
            weight = self.load.weight(waiting, self._most)
            prices = {size: table[size] / size * (weight + 0.5 * size) for size in sure if size <= waiting}
            if waiting not in prices:
                best.append(waiting)
                continue
            cheapest = min(prices, key=lambda size: prices[size])
            best.append(cheapest if prices[cheapest] <= _CLEARLY * prices[waiting] else waiting)
        self._best = best if best != steps else []

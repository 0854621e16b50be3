"""Batch policy of a model without sequences: its rule, its limits, and the run times that it predicts by."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics

from . import batching
from .admission import Gate
from .batching import Rule
from .fair_queue import rows
from .prediction import RunTimes

_LONG_NS: Final = 1_000_000


class Slots(Protocol):
    """The instances of a model, all together. Implemented by `execution/pool.py`."""

    @property
    def most_places(self) -> int:
        """Number of batches that run at a time when all instances are up."""

    def free_places(self) -> int:
        """Return how many batches could begin at once."""

    def remaining_ns(self, now_ns: int, run_ns: Callable[[int], int]) -> list[int]:
        """Return how long each slot is likely to be busy; `run_ns` predicts the run time of a batch size."""


def adapts(config: ModelConfig) -> bool:
    """True if a model's configuration asks to adapt to its traffic: `adaptive.adaptation` is its policy then."""
    policy, padding = config.dynamic_batching, config.padding
    if policy is None:
        return False
    if padding is not None and (padding.policy is PaddingPolicy.MEASURED or learns_ranges(config)):
        return True
    return policy.measured_sizes


def learns_ranges(config: ModelConfig) -> bool:
    """True if only requests of similar lengths share a batch, by ranges that are learnt."""
    padding = config.padding
    return padding is not None and padding.policy is PaddingPolicy.ALWAYS and padding.buckets > 1


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchPolicy:
    """`rule` is what the scheduler asks, and `bounds` what it may do: the longest delay and the largest batch.

    Implements `execution.owner.Learner`: it is to observe every execution that succeeded.
    """

    def __init__(self, config: ModelConfig) -> None:
        policy = config.dynamic_batching
        self._config = config
        self._run_times = RunTimes()
        self.bounds = DynamicBatching() if policy is None else policy
        self.rule: Rule = batching.direct
        if policy is not None:
            cost = batching.element_cost(config)
            self.rule = batching.dynamic(policy, config.max_batch_size, self._run_times, cost)
        self.choice: ChoiceStatistics | None = None
        self.padded: Callable[[int], int] | None = None
        """Function from a request's own length to the length that counts, for rules that choose by length."""
        self.range_of: Callable[[Inflight], object] | None = None
        """Function from a request to the range of its length, for models with `learns_ranges`."""

        policies = (self.bounds.default_policy, *self.bounds.level_policies.values())
        predicts = self.bounds.max_queue_delay_ns or config.admission.by_deadline
        self._least_ns = 0 if predicts or any(each.max_queue_size for each in policies) else _LONG_NS
        """Shortest execution to observe; shorter ones decide nothing."""

    def use(self, slots: Slots) -> None:
        """Use these slots to run the batches."""

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        ns = timing.compute_end_ns - timing.compute_start_ns
        if ns > self._least_ns:
            self._run_times.observe(timing.batch_size, ns)

    def expect(self, members: Sequence[Inflight]) -> int:
        """Return how long a batch is likely to take, in nanoseconds; 0 if nothing is known."""
        return self._run_times(sum([inflight.batch_size or 1 for inflight in members]))

    def cost(self, inflight: Inflight) -> float:
        """Return the cost of a request to its tenant, in rows of a common length."""
        return rows(inflight)

    def gate(self, slots: Slots) -> Gate:
        run_times = self._run_times
        limit = 0 if self._config.dynamic_batching is None else max(1, self._config.max_batch_size)
        admission = self._config.admission
        return Gate(admission, run_times.at_best, lambda now_ns: slots.remaining_ns(now_ns, run_times), limit)

"""What one model does by what it has seen of its own traffic: the only door to this package for the others."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.model_statistics import ChoiceStatistics, TunerStatistics

from .. import batching
from ..batching import Rule
from .admission import Gate
from .measured import Measured
from .prediction import RunTimes
from .sizes import Sizes
from .tuner import Tuner

Observe = Callable[[ExecutionTiming, Sequence[Inflight]], None]
Expect = Callable[[Sequence[Inflight]], int]

_LONG_NS = 1_000_000


class Adaptation:
    """For models without sequences: the batching rule, which executions may change, and the gate before the queue.

    `rule` is what the queue's scheduler asks, and `policy` bounds what it may do: the longest delay and the largest
    batch. `observe` is to hear of every execution that succeeded. `statistics` are the tuner's, None without one.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._run_times = RunTimes()
        self._tuner: Tuner | None = None
        self.rule: Rule = batching.direct
        self.policy = policy = config.dynamic_batching or DynamicBatching()
        self.statistics: TunerStatistics | None = None
        if policy.p99_goal_ns:
            self._tuner = Tuner(policy, config.max_batch_size, self._run_times, self._dynamic)
            self.rule, self.statistics = self._tuner.rule, self._tuner.statistics
            # The delay may become this long, and batches as large as the model takes.
            self.policy = replace(policy, preferred_batch_sizes=(), max_queue_delay_ns=policy.p99_goal_ns)
        elif config.dynamic_batching is not None:
            self.rule = self._dynamic(policy, config.max_batch_size)
        self._chooser = chooser = self._make_chooser(config)
        self.choice: ChoiceStatistics | None = None if chooser is None else chooser.statistics
        self.padded = config.padding.padded if isinstance(chooser, Measured) and config.padding is not None else None
        """For choosers by length: the length that counts for a request's own."""
        if chooser is not None:
            self.rule = chooser.rule
        limited = any(each.max_queue_size for each in (policy.default_policy, *policy.level_policies.values()))
        # Does the rule or the gate ask how long executions of a size take?
        learns = bool(self.policy.max_queue_delay_ns or config.admission.by_deadline or limited)
        self.observe: Observe = self._observe if learns else self._observe_long
        if chooser is not None:
            self.observe = self._observe_all if learns else chooser.observe
        self.expect: Expect = self._expect if chooser is None else chooser.expect
        """How long a batch is likely to take, in nanoseconds; 0 if nothing is known."""

    def _observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        self._run_times.observe(timing.batch_size, timing.compute_end_ns - timing.compute_start_ns)
        if self._tuner is not None:
            self._tuner.observe(timing, members)

    def _observe_long(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        """Nobody decides by short times."""
        ns = timing.compute_end_ns - timing.compute_start_ns
        if ns > _LONG_NS:
            self._run_times.observe(timing.batch_size, ns)

    def _expect(self, members: Sequence[Inflight]) -> int:
        return self._run_times(sum([inflight.batch_size or 1 for inflight in members]))

    def _observe_all(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        self._observe(timing, members)
        if self._chooser is not None:
            self._chooser.observe(timing, members)

    def use(self, places: int, free: Callable[[], int]) -> None:
        """So many batches run at a time, and `free` says how many could begin at once."""
        if self._chooser is not None:
            self._chooser.load.places = max(1, places)
            self._chooser.load.free = free

    def _make_chooser(self, config: ModelConfig) -> Measured | Sizes | None:
        """What chooses by run times who runs when the rule says so, if the configuration lets it."""
        batching, padding, tuner = config.dynamic_batching, config.padding, self._tuner
        most = config.max_batch_size
        if batching is None or most < 2:
            return None
        if padding is not None:
            if padding.policy is not PaddingPolicy.MEASURED:
                return None
            # A tuner aims at a latency: to be below it is worth nothing.
            largest = (lambda: most) if tuner is None else (lambda: tuner.statistics.batch_size)
            return Measured(config, self.rule, largest, patient=tuner is not None)
        return Sizes(config, self.rule) if batching.measured_sizes and tuner is None and not _ragged(config) else None

    def gate(self, remaining_ns: Callable[[int, Callable[[int], int]], Sequence[int]]) -> Gate:
        """`remaining_ns` says at a time how long each slot is still busy, by a prediction of run times."""
        run_times = self._run_times
        limit = 0 if self._config.dynamic_batching is None else max(1, self._config.max_batch_size)
        return Gate(self._config.admission, run_times.at_best, lambda now_ns: remaining_ns(now_ns, run_times), limit)

    def _dynamic(self, policy: DynamicBatching, max_batch_size: int) -> Rule:
        return batching.dynamic(policy, max_batch_size, self._run_times, batching.element_cost(self._config))


def _ragged(config: ModelConfig) -> bool:
    return any(spec.ragged for spec in config.inputs) or bool(config.batch_inputs)

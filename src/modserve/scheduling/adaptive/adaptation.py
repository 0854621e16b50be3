"""The interface of this package: how one model forms batches by what it has learnt from its own traffic."""

from collections.abc import Sequence
from dataclasses import replace

from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming

from ..batch_policy import BatchPolicy, Slots, learns_ranges
from .costs import LengthBuckets
from .measured import Measured
from .sizes import BatchSizes
from .tuner import LatencyTuner


class Adaptation(BatchPolicy):
    """A rule that executions may change: by a tuner, by what chooses who runs together, or by ranges of lengths."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._tuner: LatencyTuner | None = None
        policy = self.bounds
        if policy.p99_goal_ns:
            self._tuner = LatencyTuner(policy, config.max_batch_size, self._run_times, self.dynamic)
            self.rule, self.tuner = self._tuner.rule, self._tuner.statistics
            # The delay may become this long, and batches as large as the model takes.
            self.bounds = replace(policy, preferred_batch_sizes=(), max_queue_delay_ns=policy.p99_goal_ns)
            self._least_ns = 0
        self._chooser = chooser = self._make_chooser(config)
        if chooser is not None:
            self.rule, self.choice = chooser.rule, chooser.statistics
            if isinstance(chooser, Measured) and config.padding is not None:
                self.padded = config.padding.padded
        if config.padding is not None and learns_ranges(config):
            padding = config.padding
            buckets = LengthBuckets(padding.buckets, padding.multiple_of, padding.relearn_every)
            self.range_of = lambda inflight: buckets.of(inflight.length)

    def use(self, slots: Slots) -> None:
        if self._chooser is not None:
            self._chooser.load.use(slots.most_places, slots.free_places)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        super().observe(timing, members)
        if self._tuner is not None:
            self._tuner.observe(timing, members)
        if self._chooser is not None:
            self._chooser.observe(timing, members)

    def expect(self, members: Sequence[Inflight]) -> int:
        return super().expect(members) if self._chooser is None else self._chooser.expect(members)

    def cost(self, inflight: Inflight) -> float:
        return self._chooser.cost(inflight) if isinstance(self._chooser, Measured) else super().cost(inflight)

    def _make_chooser(self, config: ModelConfig) -> Measured | BatchSizes | None:
        """Make the chooser of batches by run times for when the rule says so, if the configuration permits it."""
        padding, tuner = config.padding, self._tuner
        most = config.max_batch_size
        if most < 2:
            return None
        if padding is not None:
            if padding.policy is not PaddingPolicy.MEASURED:
                return None
            # A tuner aims at a latency: to be below it is worth nothing.
            largest = (lambda: most) if tuner is None else (lambda: tuner.statistics.batch_size)
            return Measured(config, self.rule, largest, patient=tuner is not None)
        return (
            BatchSizes(config, self.rule)
            if self.bounds.measured_sizes and tuner is None and not _ragged(config)
            else None
        )


def _ragged(config: ModelConfig) -> bool:
    return any(spec.ragged for spec in config.inputs) or bool(config.batch_inputs)

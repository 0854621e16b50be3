"""The interface of this package: how one model forms batches by what it has learnt from its own traffic."""

from collections.abc import Sequence

from modserve.core.configuration.merging import PaddingPolicy
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming

from ..batch_policy import BatchPolicy, Slots, learns_ranges
from .costs import LengthBuckets
from .measured import Measured
from .sizes import BatchSizes


class Adaptation(BatchPolicy):
    """A rule that executions may change: by what chooses who runs together, or by ranges of lengths."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._chooser = chooser = self._make_chooser(config)
        if chooser is not None:
            self.rule, self.choice = chooser.rule, chooser.statistics
            if isinstance(chooser, Measured) and config.padding is not None:
                self.padded = config.padding.pad_length
        if config.padding is not None and learns_ranges(config):
            padding = config.padding
            buckets = LengthBuckets(padding.buckets, padding.multiple_of, padding.relearn_every)
            self.range_of = lambda inflight: buckets.of(inflight.length)

    def use(self, slots: Slots) -> None:
        if self._chooser is not None:
            self._chooser.load.use(slots.most_places, slots.free_places)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        super().observe(timing, members)
        if self._chooser is not None:
            self._chooser.observe(timing, members)

    def expect(self, members: Sequence[Inflight]) -> int:
        return super().expect(members) if self._chooser is None else self._chooser.expect(members)

    def cost(self, inflight: Inflight) -> float:
        return self._chooser.cost(inflight) if isinstance(self._chooser, Measured) else super().cost(inflight)

    def _make_chooser(self, config: ModelConfig) -> Measured | BatchSizes | None:
        """Make the chooser of batches by run times for when the rule says so, if the configuration permits it."""
        padding = config.padding
        if config.max_batch_size < 2:
            return None
        if padding is not None:
            return Measured(config, self.rule) if padding.policy is PaddingPolicy.MEASURED else None
        return BatchSizes(config, self.rule) if self.bounds.measured_sizes and not _ragged(config) else None


def _ragged(config: ModelConfig) -> bool:
    return any(spec.ragged for spec in config.inputs) or bool(config.batch_inputs)

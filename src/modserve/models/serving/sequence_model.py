"""A loaded model version whose requests belong to sequences."""

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.sequence import SequenceKey
from modserve.execution.instance import Instance
from modserve.scheduling.scheduler import Scheduler
from modserve.scheduling.sequence import SequenceScheduler

from .model import Model, QueueConfig


class SequenceModel(Model):
    """A model with a sequence batcher. Implements `core.servable.SequenceKeeper`, too."""

    _sequences: SequenceScheduler[Instance]

    def _new_queue(self, queue_config: QueueConfig) -> Scheduler:
        self._sequences = SequenceScheduler(
            self.config,
            self._limited or self.pool,
            self._clock,
            self._on_drop,
            self.opened.initial_states,
            self._all_settled.set,
        )
        return self._sequences

    def batch_done(self, members: list[Inflight]) -> None:
        self._sequences.batch_done(members)

    def run_again(self, inflight: Inflight) -> None:
        self._sequences.run_again(inflight)

    def slot_lost(self, number: int, error: ModserveError, in_vain: bool) -> None:
        self._sequences.slot_lost(number, error, in_vain)
        super().slot_lost(number, error, in_vain)

    @property
    def open_sequences(self) -> int:
        """The sequences that have begun, and may go on while the model drains."""
        return self._sequences.open_sequences

    def has_sequence(self, key: SequenceKey) -> bool:
        return self._sequences.has(key)

    def abandon_sequence(self, key: SequenceKey) -> None:
        self._sequences.abandon(key)

    @property
    def busy(self) -> bool:
        return super().busy or self.open_sequences > 0

"""Loaded model version with requests in sequences."""

from collections.abc import Collection
from functools import partial

from modserve.backends.api import InstanceSpec
from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.sequence import SequenceKey
from modserve.execution.instance import Instance
from modserve.scheduling.scheduler import Scheduler
from modserve.scheduling.sequence import SequenceScheduler

from .model import Model
from .opened_model import QueueConfig
from .service import Service


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
            self._lane_left,
        )
        self._departing: set[int] = set()
        """The instances that were removed, and stay for the sequences that they have."""
        return self._sequences

    @property
    def staying(self) -> dict[int, InstanceSpec]:
        return {number: spec for number, spec in self.opened.specs.items() if number not in self._departing}

    def _reassign(self, added: Collection[Instance], removed: Collection[int]) -> Collection[int]:
        leaving = self._sequences.change([instance.number for instance in added], removed)
        self._departing.update(set(removed).difference(leaving))
        return leaving

    def _replace_queue(self, queue_config: QueueConfig) -> None:
        """Leave sequences where they are: no configuration of their queue changes in place."""

    def _lane_left(self, number: int) -> None:
        """Let a removed instance leave after its last sequence, once its execution is over in every respect."""
        self._clock.call_soon(partial(self._let_go, number))

    def _let_go(self, number: int) -> None:
        self._departing.discard(number)
        if self._state is not Service.CLOSED:
            self._remove([number])

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

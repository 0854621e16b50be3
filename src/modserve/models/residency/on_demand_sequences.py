"""A model version with sequences that is in memory or not."""

from modserve.core.requests.sequence import SequenceKey
from modserve.core.servable import SequenceKeeper

from .on_demand import OnDemandModel
from .waiting import open_sequences


class OnDemandKeeper(OnDemandModel):
    """A model with sequences. Implements `core.servable.SequenceKeeper`, too."""

    @property
    def open_sequences(self) -> int:
        return open_sequences(self._inner)

    def has_sequence(self, key: SequenceKey) -> bool:
        return isinstance(self._inner, SequenceKeeper) and self._inner.has_sequence(key)

    def abandon_sequence(self, key: SequenceKey) -> None:
        if isinstance(self._inner, SequenceKeeper):
            self._inner.abandon_sequence(key)

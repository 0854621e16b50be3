"""Chooses the next request of each slot's sequence. A slot sends one whole sequence after another."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random, randrange

from .requests import SequenceTag
from .slots import RequestSlot

DEFAULT_LENGTH = 20
DEFAULT_VARIATION = 20.0
_FIRST_IDS = 1 << 30
"""Ids begin anywhere below, since others may measure the same server, and go upwards, within 32 bits with a sign."""


@dataclass(frozen=True, slots=True)
class SequenceLengths:
    """The number of requests in a sequence; the options are those of perf_analyzer."""

    length: int | None = None
    """As many as the data has steps, or 20 of data that is made up."""
    variation: float = DEFAULT_VARIATION
    """Percent by which it is longer or shorter, at random."""

    def draw(self, steps: int | None, generator: Random) -> int:
        """The length of a sequence; `steps` is that of its data, None if it is made up."""
        if self.length is None and steps is not None:
            return steps
        length = self.length or DEFAULT_LENGTH
        return max(1, round(length * (1 + generator.uniform(-1, 1) * self.variation / 100)))


@dataclass(slots=True)
class _ActiveSequence:
    """An open sequence."""

    id: int | str
    first: int
    """The number of the first request of its data."""
    steps: int
    """How many there are; a longer sequence begins with the first one again."""
    length: int
    sent: int = 0


@dataclass(slots=True)
class Sequences:
    """The sequences of all slots. New ones take the streams of data in turns, and ids that no other has."""

    tag: SequenceTag
    streams: Sequence[int]
    """How many requests each stream of data has; they lie one behind the other."""
    lengths: SequenceLengths
    made_up: bool = True
    """Whether the data is, so that its steps say nothing of the length."""
    text_ids: bool = False
    """For models whose ids are strings."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(randrange(1, _FIRST_IDS)))
    _random: Random = field(init=False, default_factory=lambda: Random(0))
    _turn: int = field(init=False, default=0)
    _active: dict[RequestSlot, _ActiveSequence] = field(init=False, default_factory=dict)

    def next(self, slot: RequestSlot) -> tuple[int, bytes]:
        """The request that the slot sends next, and its tag: one more of its sequence, or the first of a new one."""
        sequence = self._active.get(slot)
        if sequence is None:
            sequence = self._active[slot] = self._begin()
        return self._step(slot, sequence, sequence.sent + 1 >= sequence.length)

    def last(self, slot: RequestSlot) -> tuple[int, bytes]:
        """One that ends the slot's sequence ahead of its time; it is under way."""
        return self._step(slot, self._active[slot], True)

    def under_way(self, slot: RequestSlot) -> bool:
        """Whether the server waits for more of the slot's sequence."""
        return slot in self._active

    def drop(self, slot: RequestSlot) -> None:
        """A request has failed, and its sequence with it."""
        self._active.pop(slot, None)

    def only(self) -> tuple[int, bytes]:
        """A sequence of one request."""
        return 0, self.tag(self._id(), True, True)

    def _begin(self) -> _ActiveSequence:
        turn = self._turn % len(self.streams)
        self._turn += 1
        steps = self.streams[turn]
        length = self.lengths.draw(None if self.made_up else steps, self._random)
        return _ActiveSequence(self._id(), sum(self.streams[:turn]), steps, length)

    def _step(self, slot: RequestSlot, sequence: _ActiveSequence, is_last: bool) -> tuple[int, bytes]:
        tag = self.tag(sequence.id, sequence.sent == 0, is_last)
        index = sequence.first + sequence.sent % sequence.steps
        sequence.sent += 1
        if is_last:
            del self._active[slot]
        return index, tag

    def _id(self) -> int | str:
        number = next(self.ids)
        return f"bench-{number}" if self.text_ids else number

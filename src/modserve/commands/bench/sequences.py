"""Which request of which sequence a slot sends next. Each slot has one sequence at a time, and sends it whole."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random, randrange

from .requests import Mark
from .slots import Slot

DEFAULT_LENGTH = 20
DEFAULT_VARIATION = 20.0
_FIRST_IDS = 1 << 30
"""Ids begin anywhere below, since others may measure the same server, and go upwards, within 32 bits with a sign."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many requests a sequence has, as perf_analyzer's options of these names say it."""

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
class _Course:
    """A sequence under way."""

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

    mark: Mark
    streams: Sequence[int]
    """How many requests each stream of data has; they lie one behind the other."""
    lengths: Lengths
    made_up: bool = True
    """Whether the data is, so that its steps say nothing of the length."""
    text_ids: bool = False
    """For models whose ids are strings."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(randrange(1, _FIRST_IDS)))
    _random: Random = field(init=False, default_factory=lambda: Random(0))
    _turn: int = field(init=False, default=0)
    _courses: dict[Slot, _Course] = field(init=False, default_factory=dict)

    def next(self, slot: Slot) -> tuple[int, bytes]:
        """The request that the slot sends next, and its mark: one more of its sequence, or the first of a new one."""
        course = self._courses.get(slot)
        if course is None:
            course = self._courses[slot] = self._begin()
        return self._step(slot, course, course.sent + 1 >= course.length)

    def last(self, slot: Slot) -> tuple[int, bytes]:
        """One that ends the slot's sequence ahead of its time; it is under way."""
        return self._step(slot, self._courses[slot], True)

    def under_way(self, slot: Slot) -> bool:
        """Whether the server waits for more of the slot's sequence."""
        return slot in self._courses

    def drop(self, slot: Slot) -> None:
        """A request has failed, and its sequence with it."""
        self._courses.pop(slot, None)

    def only(self) -> tuple[int, bytes]:
        """A sequence of one request."""
        return 0, self.mark(self._id(), True, True)

    def _begin(self) -> _Course:
        turn = self._turn % len(self.streams)
        self._turn += 1
        steps = self.streams[turn]
        length = self.lengths.draw(None if self.made_up else steps, self._random)
        return _Course(self._id(), sum(self.streams[:turn]), steps, length)

    def _step(self, slot: Slot, course: _Course, is_last: bool) -> tuple[int, bytes]:
        mark = self.mark(course.id, course.sent == 0, is_last)
        index = course.first + course.sent % course.steps
        course.sent += 1
        if is_last:
            del self._courses[slot]
        return index, mark

    def _id(self) -> int | str:
        number = next(self.ids)
        return f"bench-{number}" if self.text_ids else number

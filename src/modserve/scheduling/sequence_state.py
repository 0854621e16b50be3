"""The parts of a sequence scheduler's state: a sequence, one of its requests, and the places on the instances."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from modserve.core.errors import ModserveError
from modserve.core.inflight import Inflight
from modserve.core.sequence import Membership, SequenceId, SequenceStates

from .scheduler import Alarm


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence that has begun, and has not ended or has something left to do. See `sequence` for its states."""

    id: SequenceId
    idle_since_ns: int
    alarm: Alarm = field(init=False)
    """Rings when the sequence, or a request that waits, may have waited for too long."""
    place: tuple[int, int] | None = None
    """Its row and the number of its instance; None while it is in the backlog."""
    waiting: deque[Inflight] = field(default_factory=deque)
    """Its requests that no lane has, in order."""
    busy: Inflight | None = None
    """Its request that the lane or the instance has."""
    running: bool = False
    """Whether `busy` runs; otherwise it waits in the lane."""
    states: SequenceStates | None = None
    failure: ModserveError | None = None
    """Why it was ended early."""
    over: bool = False


@dataclass(slots=True)
class Member:
    """What the scheduler remembers of a request until it is over."""

    sequence: Sequence
    says: Membership
    arrived_ns: int
    shape_key: object


class Places:
    """The free places of `count` instances, each a row and the number of an instance. The first ones are taken first.

    There may be millions of places, of which few are ever used: those from `_used` on are not listed anywhere.
    """

    __slots__ = ("_count", "_returned", "_total", "_used")

    def __init__(self, rows: int, count: int) -> None:
        self._count = count
        self._total = rows * count
        self._used = 0
        self._returned: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int] | None:
        if self._returned:
            return heapq.heappop(self._returned)
        if self._used == self._total:
            return None
        self._used += 1
        return divmod(self._used - 1, self._count)

    def give_back(self, place: tuple[int, int]) -> None:
        heapq.heappush(self._returned, place)

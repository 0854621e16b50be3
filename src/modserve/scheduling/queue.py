"""A first-in first-out queue of requests that can leave in the middle."""

import heapq
from collections import deque
from collections.abc import Iterator

from modserve.core.inflight import Inflight

_SWEEP_FROM = 64


class RequestQueue:
    """Waiting requests in order of arrival. Cancelled ones no longer count, and are swept out in bulk."""

    def __init__(self) -> None:
        self._entries: deque[Inflight] = deque()
        self._live = 0
        self._deadlines: list[tuple[int, int, Inflight]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Inflight]:
        return (inflight for inflight in self._entries if not inflight.settled)

    def append(self, inflight: Inflight) -> None:
        self._entries.append(inflight)
        self._live += 1
        if inflight.deadline_ns:
            self._sequence += 1
            heapq.heappush(self._deadlines, (inflight.deadline_ns, self._sequence, inflight))
            if len(self._deadlines) > _SWEEP_FROM + 2 * self._live:
                self._deadlines = [entry for entry in self._deadlines if _waits(entry[2])]
                heapq.heapify(self._deadlines)

    def left(self) -> None:
        """One of the entries has been settled while it waited."""
        self._removed(1)
        dead = len(self._entries) - self._live
        if dead > _SWEEP_FROM and dead > self._live:
            self._entries = deque(self)

    def take(self, count: int) -> list[Inflight]:
        """The first `count` live requests, which must be there."""
        taken: list[Inflight] = []
        popleft = self._entries.popleft
        while len(taken) < count:
            inflight = popleft()
            if not inflight.settled:
                taken.append(inflight)
        self._removed(count)
        return taken

    def _removed(self, count: int) -> None:
        self._live -= count
        if not self._live:
            # An idle queue keeps no request alive.
            self._entries.clear()
            self._deadlines.clear()

    def next_deadline_ns(self) -> int:
        """The earliest deadline of a waiting request; 0 if none has one."""
        deadlines = self._deadlines
        while deadlines and not _waits(deadlines[0][2]):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else 0

    def expired(self, now_ns: int) -> list[Inflight]:
        """The waiting requests whose deadline has passed; they stay in the queue until they are settled."""
        found: list[Inflight] = []
        while (deadline_ns := self.next_deadline_ns()) and deadline_ns <= now_ns:
            found.append(heapq.heappop(self._deadlines)[2])
        return found


def _waits(inflight: Inflight) -> bool:
    return not inflight.settled and inflight.timing is None

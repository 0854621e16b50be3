"""The requests of a group that wait, by length: for rules that choose by length who shares a batch."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator

from modserve.core.inflight import Inflight


class Lengths:
    """Lines of requests of equal length, one for each level of urgency. Nothing costs more because many wait.

    `padded` gives the length that counts for a request's own. Who arrived later than `last_arrival` stays out of
    `around`.
    """

    def __init__(self, padded: Callable[[int], int]) -> None:
        self.padded = padded
        self.last_arrival = 0
        self._lines: dict[int, dict[int, OrderedDict[Inflight, None]]] = {}
        self._order: list[int] = []

    def __repr__(self) -> str:
        return f"Lengths({', '.join(map(str, self._order))})"

    def add(self, inflight: Inflight) -> None:
        length = self.padded(inflight.length)
        levels = self._lines.get(length)
        if levels is None:
            self._lines[length] = levels = {}
            insort(self._order, length)
        line = levels.get(inflight.level)
        if line is None:
            line = levels[inflight.level] = OrderedDict()
        line[inflight] = None

    def remove(self, inflight: Inflight) -> None:
        """Remove a request while it still has the level that it was added with."""
        length = self.padded(inflight.length)
        levels = self._lines[length]
        line = levels[inflight.level]
        del line[inflight]
        if not line:
            del levels[inflight.level]
            if not levels:
                del self._lines[length]
                del self._order[bisect_left(self._order, length)]

    def of(self, length: int) -> Iterator[Inflight]:
        """Those of one length, the most urgent first."""
        levels = self._lines[length]
        for level in sorted(levels):
            yield from levels[level]

    def around(self, head: Inflight, most: int) -> tuple[list[Inflight], int]:
        """`head` and those nearest to it in length, in the order of their lengths, and where `head` is among them.

        At most so many shorter ones, as many of its length, and as many longer ones, the most urgent of each length.
        """
        order = self._order
        length = self.padded(head.length)
        place = bisect_left(order, length)
        shorter: list[list[Inflight]] = []
        left = most
        for index in range(place - 1, -1, -1):
            line = self._first(order[index], left)
            shorter.append(line)
            left -= len(line)
            if left <= 0:
                break
        chosen = [inflight for line in reversed(shorter) for inflight in line]
        begin = len(chosen)
        chosen.append(head)
        chosen += [one for one in self._first(length, most) if one is not head]
        left = most
        for index in range(place + 1, len(order)):
            line = self._first(order[index], left)
            chosen += line
            left -= len(line)
            if left <= 0:
                break
        return chosen, begin

    def _first(self, length: int, most: int) -> list[Inflight]:
        line: list[Inflight] = []
        for inflight in self.of(length):
            if len(line) >= most or inflight.arrival > self.last_arrival:
                break
            line.append(inflight)
        return line

"""The waiting requests of a group, sorted by length, for rules that form batches by length."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from modserve.core.requests.inflight import Inflight


class LengthIndex:
    """Lines of requests of equal length, one for each level of urgency. Nothing costs more because many wait.

    `padded` gives the length that counts for a request's own. Who arrived later than `last_arrival` stays out of
    `around`.
    """

    def __init__(self, padded: Callable[[int], int]) -> None:
        self.padded = padded
        self.last_arrival = 0
        self.due_arrival = 0
        """Who arrived up to then has waited for a batch, and need not wait for another one. For the rule's use."""
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

    def refill(self, requests: Iterable[Inflight]) -> None:
        """Have these and no others, all of one urgency, in their order."""
        self._lines.clear()
        for inflight in requests:
            self._lines.setdefault(self.padded(inflight.length), {0: OrderedDict()})[0][inflight] = None
        self._order = sorted(self._lines)

    def of(self, length: int) -> Iterator[Inflight]:
        """Those of one length, the most urgent first."""
        levels = self._lines[length]
        for level in sorted(levels):
            yield from levels[level]

    def around(self, head: Inflight, most: int) -> tuple[list[Inflight], list[int], int]:
        """`head` and those nearest to it in length, in the order of their lengths; these; and the place of `head`.

        At most so many shorter ones, as many of its length, and as many longer ones, the most urgent of each length.
        """
        order = self._order
        length = self.padded(head.length)
        place = bisect_left(order, length)
        below: list[tuple[int, list[Inflight]]] = []
        left = most
        for index in range(place - 1, -1, -1):
            line = self._first(order[index], left)
            below.append((order[index], line))
            left -= len(line)
            if left <= 0:
                break
        near: list[Inflight] = []
        lengths: list[int] = []
        for one, line in reversed(below):
            near += line
            lengths += [one] * len(line)
        begin = len(near)
        near.append(head)
        near += [inflight for inflight in self._first(length, most) if inflight is not head]
        left = most
        lengths += [length] * (len(near) - begin)
        for index in range(place + 1, len(order)):
            line = self._first(order[index], left)
            near += line
            lengths += [order[index]] * len(line)
            left -= len(line)
            if left <= 0:
                break
        return near, lengths, begin

    def _first(self, length: int, most: int) -> list[Inflight]:
        levels = self._lines[length]
        lines: Iterable[Inflight] = next(iter(levels.values())) if len(levels) == 1 else self.of(length)
        latest = self.last_arrival
        return [inflight for inflight in islice(lines, most) if inflight.arrival <= latest]

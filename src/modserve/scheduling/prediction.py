"""Predicts how long batches run and how long a request waits, from the executions so far.

The waiting requests of a group, sorted by length, for rules that form batches by length.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        """Latest arrival that has waited for a batch and need not wait for another one. For the rule's use."""
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
        """Yield requests of one length, the most urgent first."""
        levels = self._lines[length]
        for level in sorted(levels):
            yield from levels[level]

    def around(self, head: Inflight, most: int) -> tuple[list[Inflight], list[int], int]:
        """Return `head` and its nearest in length, in the order of their lengths; these; and the place of `head`.

        At most `most` shorter ones, as many of its length, and as many longer ones, the most urgent of each length.
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


_WEIGHT = 0.2  # the share of the latest execution in the mean of its size; more if that mean is old
_EXACT = 32  # sizes up to this have a mean each; above, 16 sizes between two powers of two have one
_FORGET_AFTER = 1024  # executions after which a size that did not occur is forgotten: all may run differently now
_FORGET_FIRST_AFTER = 32  # the same for `at_best` while a size has occurred only once
_SURE = 0.25  # the share of that time in which `at_best` has no doubt


class RunTimes:
    """Run times of executions by batch size: exponentially weighted means, and straight lines between them.

    The first execution of a size only counts until the second: engines often have something to prepare for it.
    """

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._sizes: list[int] = []
        self._seen: dict[int, int] = {}
        self._times: dict[int, int] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"RunTimes({', '.join(f'{size}: {self._means[size] / 1e6:.3g} ms' for size in self._sizes)})"

    def observe(self, batch_size: int, ns: int) -> None:
        """Observe a batch of `batch_size` that took `ns`."""
        self._count += 1
        size = _round_size(batch_size)
        times = self._times.get(size, 0)
        if not times:
            insort(self._sizes, size)
        weight = max(_WEIGHT, min(1.0, 2 * self._doubt(size))) if times > 1 else 1.0
        mean = self._means[size] if times else 0.0
        self._means[size] = mean + weight * (ns - mean)
        self._times[size] = times + 1
        self._seen[size] = self._count
        if not self._count % _FORGET_AFTER:
            self._forget()

    def __call__(self, batch_size: int) -> int:
        """Return how long a batch of `batch_size` is likely to run, in nanoseconds; 0 while nothing is known.

        Sizes below the smallest known one take as long as that. Above the largest the line between the two largest goes
        on; with only one known size, time is in proportion to size.
        """
        sizes, means = self._sizes, self._means
        if not sizes:
            return 0
        place = bisect_left(sizes, batch_size)
        if place == len(sizes):
            return self._beyond(batch_size)
        above = sizes[place]
        if place == 0 or above == batch_size:
            return int(means[above])
        below = sizes[place - 1]
        share = (batch_size - below) / (above - below)
        return int(means[below] + share * (means[above] - means[below]))

    def at_best(self, batch_size: int) -> int:
        """Return a prediction as a call does, but low where the time is unknown or no longer sure: for refusals.

        A refused request does not run. So a prediction that is too high would stay so, while the next execution
        corrects one that is too low. A batch above the largest known size is taken to cost no more than that size, and
        a smaller batch no more than a larger one.
        """
        sizes = self._sizes
        if not sizes:
            return 0
        sure = len(sizes) - 1
        while self._doubt(sizes[sure]) > _SURE:
            sure -= 1  # this ends: there is no doubt about the latest size
        place = min(bisect_left(sizes, batch_size), len(sizes) - 1)
        above, above_ns = sizes[place], self._estimate(place, sure)
        if place == 0 or above <= batch_size:
            return int(above_ns)
        below, below_ns = sizes[place - 1], min(above_ns, self._estimate(place - 1, sure))
        return int(below_ns + (batch_size - below) / (above - below) * (above_ns - below_ns))

    def _estimate(self, place: int, sure: int) -> float:
        """Return the mean of the size at a place, or less if the size is above the largest sure one, at `sure`.

        The longer such a size has not occurred, the less, down to the mean of the largest sure size. Batches then
        become larger step by step until one takes too long.
        """
        size = self._sizes[place]
        mean_ns = self._means[size]
        if place <= sure:
            return mean_ns
        return max(mean_ns * (1 - self._doubt(size)), min(mean_ns, self._means[self._sizes[sure]]))

    def _doubt(self, size: int) -> float:
        until = _FORGET_AFTER if self._times[size] > 1 else _FORGET_FIRST_AFTER
        return (self._count - self._seen[size]) / until

    def _beyond(self, batch_size: int) -> int:
        last = self._sizes[-1]
        slope = self._means[last] / last
        if len(self._sizes) > 1:
            before = self._sizes[-2]
            slope = min(slope, max(0.0, (self._means[last] - self._means[before]) / (last - before)))
        return int(self._means[last] + slope * (batch_size - last))

    def _forget(self) -> None:
        oldest = self._count - _FORGET_AFTER
        self._sizes = [size for size in self._sizes if self._seen[size] > oldest]
        self._means = {size: self._means[size] for size in self._sizes}
        self._seen = {size: self._seen[size] for size in self._sizes}
        self._times = {size: self._times[size] for size in self._sizes}


def _round_size(size: int) -> int:
    """Return the size under which a batch is counted: bounded in number for any sizes."""
    if size <= _EXACT:
        return max(1, size)
    step = 1 << (size.bit_length() - 5)
    return -(-size // step) * step


def wait_ns(batches: int, batch_ns: int, remaining_ns: Sequence[int]) -> int:
    """Return the wait behind `batches` of `batch_ns` each, if each slot is busy for its `remaining_ns`."""
    rounds, left = divmod(batches, len(remaining_ns))
    return sorted(remaining_ns)[left] + rounds * batch_ns

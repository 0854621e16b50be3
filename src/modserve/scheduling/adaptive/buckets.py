"""Ranges of lengths that share a batch, learnt from the traffic."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

FIRST_LESSON = 128  # requests before the first ranges; until then all lengths share batches
WORTH = 0.05  # the share of elements that one more range, or new ranges, must save: less is not worth smaller batches
CELLS = 32  # finding the best ranges takes time that grows with the square of the number of lengths: group them


class LengthBuckets:
    """Finds the range of each request's length, and learns the ranges on the way.

    The name of a range is the longest padded length in it; 0 is the range above all others, and the only one at first.
    A request keeps the range that it got on arrival. After every `relearn_every` requests earlier ones count half, and
    new ranges replace the old ones if they save `WORTH` of all elements: a steady load keeps its ranges.
    """

    def __init__(self, most: int, multiple_of: int = 1, relearn_every: int = 1024) -> None:
        self._most = most
        self._multiple_of = multiple_of
        self._every = relearn_every
        self._due = min(FIRST_LESSON, relearn_every)
        self._counts: dict[int, float] = {}
        self.bounds: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"LengthBuckets({', '.join(map(str, self.bounds))})"

    def of(self, length: int) -> int:
        """The range of a request that has arrived."""
        multiple = self._multiple_of
        padded = -(-length // multiple) * multiple
        counts = self._counts
        counts[padded] = counts.get(padded, 0) + 1
        self._due -= 1
        if not self._due:
            self._learn()
        bounds = self.bounds
        place = bisect_left(bounds, padded)
        return bounds[place] if place < len(bounds) else 0

    def _learn(self) -> None:
        self._due = self._every
        counts = self._counts
        bounds = best_bounds(counts, self._most)
        if not self.bounds or elements(counts, bounds) <= (1 - WORTH) * elements(counts, self.bounds):
            self.bounds = bounds
        self._counts = {length: count / 2 for length, count in counts.items() if count >= 1}


def elements(counts: Mapping[int, float], bounds: Sequence[int]) -> float:
    """The elements of requests that are padded to the end of their range; above all ranges, to the longest of all."""
    longest = max(counts, default=0)
    total = 0.0
    for length, count in counts.items():
        place = bisect_left(bounds, length)
        total += count * (bounds[place] if place < len(bounds) else longest)
    return total


def best_bounds(counts: Mapping[int, float], most: int) -> tuple[int, ...]:
    """The ends of the ranges, at most so many, with the fewest elements; each but the first must be worth it.

    `counts` tells how often a length occurs. The last range ends at the longest.
    """
    lengths, weights = _cells(counts)
    if not lengths:
        return ()
    before = [0.0]  # the requests before each cell
    for weight in weights:
        before.append(before[-1] + weight)
    # costs[j]: the fewest elements of the cells up to j in so many ranges; cuts tell where the last of those begins.
    costs = [length * total for length, total in zip(lengths, before[1:], strict=True)]
    best: tuple[int, ...] = (lengths[-1],)
    total = costs[-1]
    cuts: list[list[int]] = [[0] * len(lengths)]
    for _ in range(1, min(most, len(lengths))):
        following: list[float] = []
        starts: list[int] = []
        for end, length in enumerate(lengths):
            cost, start = min(
                ((costs[start - 1] if start else 0.0) + length * (before[end + 1] - before[start]), start)
                for start in range(end + 1)
            )
            following.append(cost)
            starts.append(start)
        costs = following
        cuts.append(starts)
        if costs[-1] > (1 - WORTH) * total:
            break
        best, total = _bounds(lengths, cuts), costs[-1]
    return best


def _bounds(lengths: Sequence[int], cuts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    end = len(lengths) - 1
    bounds: list[int] = []
    for starts in reversed(cuts):
        bounds.append(lengths[end])
        end = starts[end] - 1
        if end < 0:
            break
    return tuple(reversed(bounds))


def _cells(counts: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Lengths in order and how often they occur; neighbours go together where there are too many."""
    lengths = sorted(counts)
    weights = [counts[length] for length in lengths]
    if len(lengths) <= CELLS:
        return lengths, weights
    share = sum(weights) / CELLS
    ends: list[int] = []
    sums: list[float] = []
    total = 0.0
    for length, weight in zip(lengths, weights, strict=True):
        total += weight
        if total >= share and len(ends) < CELLS - 1:
            ends.append(length)
            sums.append(total)
            total = 0.0
    if total or not ends:
        ends.append(lengths[-1])
        sums.append(total)
    return ends, sums

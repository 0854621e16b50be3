"""The cost of a batch by its rows and its length, learnt from the executions of one model on one engine.

Executions are counted in *cells*: rows between powers of two, lengths between powers of the root of two. Each cell
keeps means. A curve is fitted to the cells from time to time: a sum of a constant, the rows, the elements (rows ·
length), rows · length² and elements^1.5, each with a coefficient that is not negative. A prediction is the curve,
corrected by the deviation of the cells nearby. So a cell that never ran has a price too, and the steps of an engine are
not smoothed away.

All times go up and down together when others use the machine: `_level` follows that, and cells are kept relative to it.
So an execution of an hour ago can still be compared with one of now. The level follows slowly, unless several
executions in a row are off by about the same factor. If they are off in one cell and not by the same factor in all, the
engine itself behaves differently: the other cells are in doubt too, and `changes` counts that.

Ranges of lengths that share a batch, learnt from the traffic.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log, log2, sqrt

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
        """Return the range of a request that has arrived."""
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
    """Return the elements of requests padded to the end of their range; above all ranges, to the longest."""
    longest = max(counts, default=0)
    total = 0.0
    for length, count in counts.items():
        place = bisect_left(bounds, length)
        total += count * (bounds[place] if place < len(bounds) else longest)
    return total


def best_bounds(counts: Mapping[int, float], most: int) -> tuple[int, ...]:
    """Return the ends of up to `most` ranges, with the fewest elements; each but the first must be worth it.

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
    """Return lengths in order and how often they occur; neighbours go together where there are too many."""
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


OVERHEAD_NS = 100_000
"""Time that a batch costs the server besides its execution: choosing it, the hop to a thread, the settling."""
_MEMORY = 32  # executions in the mean of a cell
_FADE = 0.9995  # of the weight of a cell, with each execution of any
_CLIP = 0.35  # an execution that differs by more, as a logarithm, counts as if it differed by so much
_CHANGED_AFTER, _LATEST = 8, 10
"""Number of these in a row in one cell on the same side, or among the latest in any cell, that show a change."""
_LEVEL_SHARE = 0.03
_JUMP_AFTER = 6  # executions in a row that are off by at least, and differ from one another by at most:
_JUMP_LEAST, _JUMP_SPREAD = 0.15, 0.45
_KNOWN = 2.0  # executions in a cell, before one can be off
_DOUBTED = 0.2  # executions in a cell, after a change elsewhere
_SETTLED = 1  # executions in a cell, before it has a say about the level: most cells have few in the first seconds
_PRIORS = 0.3, 16.0  # how many executions a cell must have to be believed as much as the curve: least and most
_REFITS = (4, 8, 16, 32, 64, 128)  # executions from one fit to the next: often at first
_NEWS = 2  # the same after the first execution of a cell; there are few cells, so this is seldom
_RIDGE = 1e-5  # so that points of one length, or of one size, have a curve too
_TERMS = 5
_HEARSAY = 0.5
"""Weight of cells that stand in for cells of more rows, none of which has run."""
_KNOWN_SHAPES = 4096
_NEW = 8  # executions in which all counts
_SURPRISE = 1.5  # the first execution of a shape that takes so many times as long as expected prepared something
_PAIRS_KEPT = 0.95  # of the weight of shapes that ran twice, with each further one
_NO_CHANCE = 3  # so many standard errors above nothing are no chance
_LEAST_LEFT = 0.2  # of the time of a first execution, whatever its preparation is likely to have been
_FORGIVEN = 3  # such executions in a row, in one cell or in all: if there are more, then what was expected is wrong


class _Cell:
    """Means of logarithms: of rows, of length, and of the time relative to the level."""

    __slots__ = ("at", "correction", "length", "off", "rows", "time", "times")

    def __init__(self, rows: float, length: float, time: float, at: int) -> None:
        self.rows = rows
        self.length = length
        self.time = time
        self.times = 1.0
        self.at = at
        self.off = 0
        """Number of executions in a row that were far from the mean; negative for those below it."""
        self.correction = 0.0


class _Preparation:
    """Extra time of a shape's first execution over its second, for the preparations that some engines make.

    If it counted, rare sizes would appear costly, and so they would run even more rarely. Where no shape repeats, the
    extra time is unknown.
    """

    __slots__ = ("_excess", "_weight", "ns")

    def __init__(self) -> None:
        self.ns = 0
        self._excess = self._weight = 0.0

    def compare(self, first_ns: int, second_ns: int, noise: float) -> None:
        """Compare two executions. `noise` is the mean square of relative differences from the usual time."""
        # Times vary by a share of themselves: the shorter they are, the more they tell.
        weight = 1 / max(1, min(first_ns, second_ns)) ** 2
        self._excess = _PAIRS_KEPT * self._excess + weight * (first_ns - second_ns)
        self._weight = _PAIRS_KEPT * self._weight + weight
        excess = self._excess / self._weight
        self.ns = int(excess) if excess > _NO_CHANCE * sqrt(2 * noise / self._weight) else 0


class Costs:
    """Run times by rows and length. `version` changes whenever predictions may have changed."""

    def __init__(self, most_rows: int) -> None:
        # For each number of rows: the column of cells to its left, and how far it is from there to the next.
        places = [log2(rows) for rows in range(1, max(1, most_rows) + 1)]
        self._places = [(int(place), place - int(place)) for place in places]
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._shapes: dict[tuple[int, int], int] = {}
        """Run time of each shape's first execution, 0 once there was a second."""
        self._preparation = _Preparation()
        self._forgiven: dict[tuple[int, int] | None, int] = {}
        """First executions in a row that did not count, by cell and, under None, in all."""
        self._level = 0.0
        self._due = 1
        self._noise = 0.01
        """The mean square of what executions differ from the mean of their cell."""
        self._prior = 1.0
        self._tables: dict[int, list[float]] = {}
        self.count = 0
        """Executions so far."""
        self.changes = 0
        """Number of changes in the engine's times that were not all alike."""
        self.version = 0
        self._since = 0
        """The executions before the latest change."""
        self._off: deque[float] = deque(maxlen=_LATEST)
        self._curve = [0.0] * _TERMS
        """Nanoseconds: of a batch, of a row, of an element, of a row by its length squared, and of elements^1.5."""

    def __repr__(self) -> str:
        return f"Costs({self.count} executions in {len(self._cells)} cells)"

    def observe(self, rows: int, length: int, ns: int) -> None:
        """Observe a batch of `rows` rows of `length`, 1 for models without lengths, that took `ns`."""
        shape, key = (rows, length), _cell_of(rows, length)
        first = len(self._shapes) < _KNOWN_SHAPES and shape not in self._shapes
        if first:
            self._shapes[shape] = ns
            ns = max(ns - self._preparation.ns, int(_LEAST_LEFT * ns))
        elif first_ns := self._shapes.get(shape):
            self._shapes[shape] = 0
            self._preparation.compare(first_ns, ns, self._noise)
        if self.count > _NEW and (first or self._forgiven):
            if ns <= _SURPRISE * self.of(length)[rows]:
                self._forgiven.pop(key, None)
                self._forgiven.pop(None, None)
            elif first and max(self._forgiven.get(key, 0), self._forgiven.get(None, 0)) < _FORGIVEN:
                for place in (key, None):
                    self._forgiven[place] = self._forgiven.get(place, 0) + 1
                return  # the engine prepares itself for a new shape, once
        self.count += 1
        relative = log(max(1, ns)) - self._level
        log_rows, log_length = log(rows), log(length)
        cell = self._cells.get(key)
        if cell is None:
            self._cells[key] = _Cell(log_rows, log_length, relative, self.count)
            self._due = min(self._due, _NEWS)
        else:
            self._update(cell, log_rows, log_length, relative)
        self._due -= 1
        if not self._due:
            self._fit()

    def _update(self, cell: _Cell, log_rows: float, log_length: float, relative: float) -> None:
        cell.times *= _FADE ** (self.count - cell.at)
        cell.at = self.count
        # Lengths differ within a cell. The curve says what that makes.
        shift = self._curve_at(log_rows, log_length) - self._curve_at(cell.rows, cell.length) if self.version else 0.0
        difference = relative - shift - cell.time
        if cell.times > _KNOWN:
            difference -= self._jump(difference)
        if abs(difference) > _CLIP and cell.times > _KNOWN:
            sign = 1 if difference > 0 else -1
            cell.off = cell.off + sign if cell.off * sign > 0 else sign
            if abs(cell.off) >= _CHANGED_AFTER or self._most_are_off():
                self._doubt()
            else:
                difference = sign * _CLIP
        else:
            cell.off = 0
        if cell.times > _SETTLED:
            self._level += _LEVEL_SHARE * difference
            self._noise += _LEVEL_SHARE * (difference * difference - self._noise)
        cell.times = min(_MEMORY, cell.times + 1)
        share = 1 / cell.times
        cell.rows += share * (log_rows - cell.rows)
        cell.length += share * (log_length - cell.length)
        cell.time += share * (difference + shift)

    def _jump(self, difference: float) -> float:
        """Apply and return a sudden change of the level, on which several executions must agree; 0 if there is none."""
        off = self._off
        off.append(difference)
        latest = list(off)[-_JUMP_AFTER:]
        least, most = min(latest), max(latest)
        if len(off) < _JUMP_AFTER or most - least > _JUMP_SPREAD or not (least > _JUMP_LEAST or most < -_JUMP_LEAST):
            return 0.0
        jump = sum(latest) / len(latest)
        self._level += jump
        off.clear()
        for cell in self._cells.values():
            cell.off = 0
        self._due = 1
        return jump

    def _most_are_off(self) -> bool:
        least = max(_CLIP, 3 * sqrt(self._noise))
        return sum([abs(difference) > least for difference in self._off]) >= _CHANGED_AFTER

    def _doubt(self) -> None:
        """Learn fast again, since the engine's times have changed."""
        self.changes += 1
        self._off.clear()
        self._since = self.count - 1
        self._due = min(self._due, 2)
        for cell in self._cells.values():
            cell.times = min(cell.times, _DOUBTED)
            cell.off = 0

    def sureness(self, rows: int, length: int) -> float:
        """Return the number of executions of about this size behind a prediction; old ones count less."""
        cell = self._cells.get(_cell_of(rows, length))
        return 0.0 if cell is None else float(cell.times * _FADE ** (self.count - cell.at))

    def of(self, length: int) -> list[float]:
        """Return nanoseconds by rows, 0 to the most, of batches of one length. Valid while `version` is the same."""
        table = self._tables.get(length)
        if table is None:
            self._tables[length] = table = self._make_table(length)
        return table

    def _make_table(self, length: int) -> list[float]:
        a, b, c, d, e = self._curve
        row_ns, surplus_ns = b + length * (c + length * d), e * length * sqrt(length)
        # What the cells around each size differ from the curve, the nearer the more.
        place = 2 * log2(length)
        low = int(place)
        columns: list[tuple[float, float]] = []
        for column in range(self._places[-1][0] + 2):
            total = weight = 0.0
            for lane, near in ((low, 1 - (place - low)), (low + 1, place - low)):
                cell = self._cells.get((column, lane))
                if cell is not None:
                    total += near * cell.times * cell.correction
                    weight += near * cell.times
            if columns and not weight:  # as with fewer rows, for want of better
                total, weight = columns[-1][0] * _HEARSAY, columns[-1][1] * _HEARSAY
            columns.append((total, weight))
        scale = exp(self._level)
        table = [0.0]
        for rows, (left, share) in enumerate(self._places, 1):
            (total, weight), (other, more) = columns[left], columns[left + 1]
            total += share * (other - total)
            weight += share * (more - weight)
            curve_ns = a + rows * (row_ns + surplus_ns * sqrt(rows))
            table.append(scale * curve_ns * exp(total / (weight + self._prior)) + OVERHEAD_NS)
        return table

    def _curve_at(self, log_rows: float, log_length: float) -> float:
        terms = _terms(exp(log_rows), exp(log_length))
        return log(sum([number * term for number, term in zip(self._curve, terms, strict=True)]) or 1.0)

    def _fit(self) -> None:
        step = next((step for step in _REFITS if step >= self.count - self._since), _REFITS[-1])
        self._due = step
        self.version += 1
        points = [
            (exp(cell.rows), exp(cell.length), exp(cell.time), min(cell.times * _FADE ** (self.count - cell.at), 6.0))
            for cell in self._cells.values()
        ]
        self._curve = fit(points)
        for cell in self._cells.values():
            cell.correction = cell.time - self._curve_at(cell.rows, cell.length)
        # Do cells differ from the curve by more than chance explains? Only then they know better.
        cells = [cell for cell in self._cells.values() if cell.times > 2]
        misfit = sum(cell.correction**2 - self._noise / cell.times for cell in cells) / max(1, len(cells))
        least, most = _PRIORS
        self._prior = most if misfit * most <= self._noise else max(least, self._noise / misfit)
        self._tables.clear()

    def list_cells(self) -> list[tuple[int, int, float]]:
        """Return rows, length and nanoseconds in the middle of each cell that has run, the smallest first."""
        return sorted(
            (round(exp(cell.rows)), round(exp(cell.length)), exp(cell.time + self._level))
            for cell in self._cells.values()
        )


def _cell_of(rows: int, length: int) -> tuple[int, int]:
    return round(log2(rows)), round(2 * log2(length))


def _terms(rows: float, length: float) -> tuple[float, ...]:
    elements = rows * length
    return 1.0, rows, elements, elements * length, elements * sqrt(elements)


def fit(points: Sequence[tuple[float, float, float, float]]) -> list[float]:
    """Fit the curve of least squared relative errors through `points`: rows, length, time and weight of each.

    Numbers that would be negative are left out, the most negative first, until none is.
    """
    matrix = [[0.0] * _TERMS for _ in range(_TERMS)]
    vector = [0.0] * _TERMS
    for rows, length, time, weight in points:
        features = [term / time for term in _terms(rows, length)]
        for i, one in enumerate(features):
            vector[i] += weight * one
            for j in range(i + 1):
                matrix[i][j] += weight * one * features[j]
    scale = [sqrt(matrix[i][i]) for i in range(_TERMS)]
    for i in range(_TERMS):
        vector[i] /= scale[i]
        for j in range(i + 1):
            matrix[i][j] = matrix[j][i] = matrix[i][j] / scale[i] / scale[j]
        matrix[i][i] += _RIDGE
    parts = list(range(_TERMS))
    while True:
        numbers = _solve([[matrix[i][j] for j in parts] + [vector[i]] for i in parts])
        least = min(numbers)
        if least >= 0:
            break
        del parts[numbers.index(least)]
    curve = [0.0] * _TERMS
    for i, number in zip(parts, numbers, strict=True):
        curve[i] = number / scale[i]
    return curve


def _solve(rows: list[list[float]]) -> list[float]:
    """Solve linear equations with a positive definite matrix; the last column is the right side."""
    count = len(rows)
    for i in range(count):
        for j in range(i + 1, count):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [one - factor * other for one, other in zip(rows[j], rows[i], strict=True)]
    numbers = [0.0] * count
    for i in reversed(range(count)):
        rest = sum(rows[i][j] * numbers[j] for j in range(i + 1, count))
        numbers[i] = (rows[i][count] - rest) / rows[i][i]
    return numbers

"""Cost of a batch by its rows and length, learnt from the executions of one model on one engine.

Executions are counted in *cells*: rows between powers of two, lengths between powers of the root of two. Each cell has
means. A curve is fitted to the cells from time to time: a sum of a constant, the rows, the elements (rows · length),
rows · length² and elements^1.5, each with a non-negative coefficient. A prediction is the curve, corrected by the
deviation of nearby cells. So a cell without executions has a price too, and the steps of an engine are not smoothed
away.

All times rise and fall together when others use the machine: `_level` follows that, and cells are relative to it, so
that an execution of an hour ago can be compared with a recent one. The level follows slowly, unless several consecutive
executions deviate by about the same factor. If executions deviate in one cell, or by different factors, the engine
itself behaves differently: the other cells are in doubt too, and `changes` counts that.

Also the ranges of lengths that share a batch, learnt from the traffic.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log, log2, sqrt

FIRST_LESSON = 128  # requests before the first ranges; until then all lengths share batches
WORTH = 0.05  # share of elements that another range, or new ranges, must save to be worth smaller batches
CELLS = 32  # number of groups of lengths: finding the best ranges takes time quadratic in it


class LengthBuckets:
    """Finds the range of each request's length, and learns the ranges.

    A range is named by the longest padded length in it; 0 is the range above all others, and initially the only one. A
    request keeps its range from arrival. After every `relearn_every` requests earlier ones count half, and new ranges
    replace the old ones if they save `WORTH` of all elements, so that a steady load keeps its ranges.
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
        """Return the range of an arriving request."""
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
    """Return the elements of requests padded to the end of their range; above all ranges, to the longest length."""
    longest = max(counts, default=0)
    total = 0.0
    for length, count in counts.items():
        place = bisect_left(bounds, length)
        total += count * (bounds[place] if place < len(bounds) else longest)
    return total


def best_bounds(counts: Mapping[int, float], most: int) -> tuple[int, ...]:
    """Return the ends of up to `most` ranges with the fewest elements; each after the first must be worth it.

    `counts`: number of requests by length. The last range ends at the longest length.
    """
    lengths, weights = _cells(counts)
    if not lengths:
        return ()
    before = [0.0]  # number of requests before each cell
    for weight in weights:
        before.append(before[-1] + weight)
    # costs[j]: the fewest elements of the cells up to j in a given number of ranges; cuts: where the last range begins.
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
    """Return lengths in order, with their numbers of requests; if there are too many, neighbours are grouped."""
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
"""Time of a batch in the server besides its execution: choice, hop to a thread, settlement."""
_MEMORY = 32  # executions in a cell's mean
_FADE = 0.9995  # of a cell's weight, with each execution of any cell
_CLIP = 0.35  # largest deviation that counts, as a logarithm
_CHANGED_AFTER, _LATEST = 8, 10
"""Executions that show a change: consecutive ones in a cell that deviate to one side, or as many of the latest ones."""
_LEVEL_SHARE = 0.03
_JUMP_AFTER = 6  # consecutive executions with at least this deviation, and at most this spread:
_JUMP_LEAST, _JUMP_SPREAD = 0.15, 0.45
_KNOWN = 2.0  # executions in a cell before one can deviate
_DOUBTED = 0.2  # executions in a cell that still count after a change elsewhere
_SETTLED = 1  # executions in a cell before it affects the level: most cells have few in the first seconds
_PRIORS = 0.3, 16.0  # executions in a cell that weigh as much as the curve: minimum and maximum
_REFITS = (4, 8, 16, 32, 64, 128)  # executions between fits: few at first
_NEWS = 2  # the same after the first execution of a cell; cells are few, so this is rare
_RIDGE = 1e-5  # makes the curve defined for points of a single length or size
_TERMS = 5
_HEARSAY = 0.5
"""Weight of cells that stand in for cells of more rows without executions."""
_KNOWN_SHAPES = 4096
_NEW = 8  # initial executions that always count
_SURPRISE = 1.5  # first executions of a shape above this multiple of the expected time include preparation
_PAIRS_KEPT = 0.95  # weight of earlier shapes that ran twice, with each further one
_NO_CHANCE = 3  # standard errors above zero that count as significant
_LEAST_LEFT = 0.2  # minimum share of a first execution's time that remains after subtracting its preparation
_FORGIVEN = 3  # maximum consecutive such executions, in one cell or in all: beyond it, the expectation was wrong


class _Cell:
    """Means of the logarithms of rows, length, and time relative to the level."""

    __slots__ = ("at", "correction", "length", "off", "rows", "time", "times")

    def __init__(self, rows: float, length: float, time: float, at: int) -> None:
        self.rows = rows
        self.length = length
        self.time = time
        self.times = 1.0
        self.at = at
        self.off = 0
        """Number of consecutive executions far from the mean; negative below it."""
        self.correction = 0.0


class _Preparation:
    """Extra time of a shape's first execution over its second, for the preparations of some engines.

    Otherwise rare sizes would appear costly, and run even more rarely. If no shape repeats, the extra time is unknown.
    """

    __slots__ = ("_excess", "_weight", "ns")

    def __init__(self) -> None:
        self.ns = 0
        self._excess = self._weight = 0.0

    def compare(self, first_ns: int, second_ns: int, noise: float) -> None:
        """Compare two executions. `noise`: mean square of relative deviations from the usual time."""
        # Times vary in proportion: shorter ones are more precise.
        weight = 1 / max(1, min(first_ns, second_ns)) ** 2
        self._excess = _PAIRS_KEPT * self._excess + weight * (first_ns - second_ns)
        self._weight = _PAIRS_KEPT * self._weight + weight
        excess = self._excess / self._weight
        self.ns = int(excess) if excess > _NO_CHANCE * sqrt(2 * noise / self._weight) else 0


class Costs:
    """Run times by rows and length. `version` changes whenever predictions may have changed."""

    def __init__(self, most_rows: int) -> None:
        # For each number of rows: the column of cells to its left, and the relative distance to the next one.
        places = [log2(rows) for rows in range(1, max(1, most_rows) + 1)]
        self._places = [(int(place), place - int(place)) for place in places]
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._shapes: dict[tuple[int, int], int] = {}
        """Run time of each shape's first execution; 0 after its second."""
        self._preparation = _Preparation()
        self._forgiven: dict[tuple[int, int] | None, int] = {}
        """Consecutive first executions that did not count, by cell, and in total under None."""
        self._level = 0.0
        self._due = 1
        self._noise = 0.01
        """Mean square of executions' deviations from their cell's mean."""
        self._prior = 1.0
        self._tables: dict[int, list[float]] = {}
        self.count = 0
        """Number of executions."""
        self.changes = 0
        """Number of changes in the engine's times beyond a common factor."""
        self.version = 0
        self._since = 0
        """Number of executions before the latest change."""
        self._off: deque[float] = deque(maxlen=_LATEST)
        self._curve = [0.0] * _TERMS
        """Nanoseconds: per batch, row, element, row times squared length, and elements^1.5."""

    def __repr__(self) -> str:
        return f"Costs({self.count} executions in {len(self._cells)} cells)"

    def observe(self, rows: int, length: int, ns: int) -> None:
        """Record a batch of `rows` rows of `length`, 1 for models without lengths, that took `ns`."""
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
                return  # the engine's one-time preparation for a new shape
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
        # Lengths differ within a cell; the curve corrects for that.
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
        """Apply and return a sudden change of the level, confirmed by several executions; 0 without one."""
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
        """Learn fast again after a change in the engine's times."""
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
        """Return nanoseconds by rows, from 0 to the maximum, for batches of one length. Valid for this `version`."""
        table = self._tables.get(length)
        if table is None:
            self._tables[length] = table = self._make_table(length)
        return table

    def _make_table(self, length: int) -> list[float]:
        a, b, c, d, e = self._curve
        row_ns, surplus_ns = b + length * (c + length * d), e * length * sqrt(length)
        # Deviations of the cells around each size from the curve, weighted by distance.
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
            if columns and not weight:  # the value for fewer rows, as the best available
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
        # Cells improve on the curve only if they deviate from it by more than chance explains.
        cells = [cell for cell in self._cells.values() if cell.times > 2]
        misfit = sum(cell.correction**2 - self._noise / cell.times for cell in cells) / max(1, len(cells))
        least, most = _PRIORS
        self._prior = most if misfit * most <= self._noise else max(least, self._noise / misfit)
        self._tables.clear()

    def list_cells(self) -> list[tuple[int, int, float]]:
        """Return rows, length and nanoseconds in the middle of each cell with executions, smallest first."""
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
    """Fit the curve with least squared relative errors to `points`: rows, length, time and weight of each.

    Terms with negative coefficients are removed, the most negative first, until none is left.
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
    """Solve linear equations with a positive definite matrix; the last column is the right-hand side."""
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

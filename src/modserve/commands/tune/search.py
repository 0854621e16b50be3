"""Which point to try next: one dimension after the other, in both directions, as long as it gets better."""

from collections.abc import Iterator, Mapping, Sequence

from .space import Point, Value


class CoordinateSearch:
    """Knows no server and no clock: `next` gives a point, `record` takes its score, the higher the better.

    From the best point so far, it goes along each dimension upwards until the score is no better, then downwards, and
    through all dimensions again until none has anything better. No point is tried twice. A point counts as better
    if its score is `least_gain` above the best one, so that it does not follow noise.
    """

    def __init__(
        self, dimensions: Mapping[str, Sequence[Value]], start: Point, score: float, least_gain: float = 0.03
    ) -> None:
        self._dimensions = dimensions
        self._least_gain = least_gain
        self.best: Point = dict(start)
        self.score = score
        self._seen = {_key(start)}
        self._better = False
        """Whether the last point was better."""
        self._points = self._all()

    @property
    def bar(self) -> float:
        """The score that the next point has to exceed."""
        return self.score * (1 + self._least_gain)

    def next(self) -> Point | None:
        """None when the search is over."""
        return next(self._points, None)

    def record(self, point: Point, score: float) -> None:
        self._better = score > self.bar or (self.score <= 0 < score)
        if self._better:
            self.best, self.score = dict(point), score

    def _all(self) -> Iterator[Point]:
        while True:
            before = self.best
            for name in self._dimensions:
                yield from self._along(name, 1)
                yield from self._along(name, -1)
            if self.best == before:
                return

    def _along(self, name: str, step: int) -> Iterator[Point]:
        values = self._dimensions[name]
        index = values.index(self.best[name]) + step
        while 0 <= index < len(values):
            point = {**self.best, name: values[index]}
            if _key(point) in self._seen:
                return
            self._seen.add(_key(point))
            self._better = False
            yield point
            if not self._better:
                return
            index += step


def _key(point: Point) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))

"""Searches the highest rate that meets a goal, by doubling and then halving the range; pure."""

import math

LOWEST = 0.5


class RateSearch:
    """Which rate to try next, from which rates have met the goal so far.

    Upwards by doubling until one does not keep it, downwards by halving until one does; then the geometric mean of the
    two, until they are within `tolerance` of each other. `lowest` and `highest` bound the search.
    """

    def __init__(
        self, start: float, lowest: float = LOWEST, highest: float = math.inf, tolerance: float = 0.05
    ) -> None:
        self._lowest, self._highest, self._tolerance = lowest, highest, tolerance
        self._next = min(max(start, lowest), highest)
        self.met: float = 0.0
        """The highest rate that met the goal; 0: none did."""
        self.missed: float = math.inf
        """The lowest rate that did not."""

    def next(self) -> float | None:
        """The rate to try; None when the search is over."""
        if self.met >= self._highest or self.missed <= self._lowest or self.missed <= self.met * (1 + self._tolerance):
            return None
        return self._next

    def record(self, rate: float, met: bool) -> None:
        if met:
            self.met = max(self.met, rate)
        else:
            self.missed = min(self.missed, rate)
            if self.met >= self.missed:  # what was met once is not met again
                self.met = 0.0
        if not self.met:
            self._next = max(self.missed / 2, self._lowest)
        elif self.missed == math.inf:
            self._next = min(self.met * 2, self._highest)
        else:
            self._next = math.sqrt(self.met * self.missed)

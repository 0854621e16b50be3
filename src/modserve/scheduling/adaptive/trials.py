"""The account of trials: batches that are not the best known choice, to learn more."""

from collections.abc import Sequence

from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics

SURE = 4.0
"""Number of executions of about a batch's size above which it is no trial."""
_EVERY = 8
"""Number of choices for each that may be a trial, and half as many among the first:"""
_FIRST = 64
_ALLOWED = 0.002
"""The share of the price of all batches that trials may cost."""
_ALLOWED_AT_FIRST = 1
"""Number of first batches whose price counts in full, not only as that share. With more of them, trials take most of
the first seconds of an engine whose batches last a tenth of a second."""
_MOST_SAVED = 6
"""Number of batches; trials may cost their price in a row. Its mean is of the latest:"""
_MEAN_OF = 64


class Trials:
    """Account of trials. Prices are in nanoseconds times the number of waiting requests, as in `grouping`."""

    def __init__(self, statistics: ChoiceStatistics) -> None:
        self._statistics = statistics
        self._turn = 0
        self._mean = 0.0
        self._balance = 0.0
        self._latest: tuple[Inflight, float, float] | None = None
        """The first member of the latest trial, the time it is likely to take, and how many wait for its end."""

    @property
    def due(self) -> bool:
        """True if the present choice may be a trial."""
        return not self._turn % _EVERY or (self._turn < _FIRST and not self._turn % (_EVERY // 2))

    def earn(self, price: float) -> None:
        """Add a share of the best choice's price to the account."""
        self._turn += 1
        self._mean += (price - self._mean) / min(self._turn, _MEAN_OF)
        share = 1.0 if self._turn <= _ALLOWED_AT_FIRST else _ALLOWED
        self._balance = min(_MOST_SAVED * self._mean, self._balance + share * price)

    def begin(self, excess: float, time: float, waiting: float, first: Inflight) -> bool:
        """Pay for a trial that costs `excess` more than the best choice, or return False.

        It is likely to take `time`, and `waiting` requests wait for its end; `first` is its first member.
        """
        if excess > self._balance:
            return False
        self._statistics.trials += 1
        self._charge(excess / waiting, waiting)
        self._latest = first, time, waiting
        return True

    def observe(self, members: Sequence[Inflight], ns: int) -> None:
        """Observe a batch that took `ns`. A trial that took longer than expected costs that, too."""
        if self._latest is not None and self._latest[0] in members[:1]:
            _, expected_ns, waiting = self._latest
            self._latest = None
            self._charge(ns - expected_ns, waiting)

    def start_again(self) -> None:
        """Return to the allowance of the beginning, since what was learnt is no longer true."""
        self._turn = 0

    def _charge(self, ns: float, waiting: float) -> None:
        if ns > 0:
            self._balance -= ns * waiting
            self._statistics.trial_ns += ns

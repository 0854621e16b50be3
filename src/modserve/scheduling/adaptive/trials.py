"""Account of trials: batches other than the best known choice, for learning."""

from collections.abc import Sequence

from modserve.core.requests.inflight import Inflight
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics

SURE = 4.0
"""Number of executions of similar batches from which a batch is no trial."""
_EVERY = 8
"""Number of choices per possible trial, halved for the first ones:"""
_FIRST = 64
_ALLOWED = 0.002
"""Share of the price of all batches that trials may cost."""
_ALLOWED_AT_FIRST = 1
"""Number of first batches that count with their full price instead of that share. With more, trials would take most of
the first seconds of an engine with batches of a tenth of a second."""
_MOST_SAVED = 6
"""Maximum balance in batches, which consecutive trials may cost. The mean price is over the latest:"""
_MEAN_OF = 64


class Trials:
    """Account of trials. Prices are in nanoseconds times the number of waiting requests, as in `grouping`."""

    def __init__(self, statistics: ChoiceStatistics) -> None:
        self._statistics = statistics
        self._turn = 0
        self._mean = 0.0
        self._balance = 0.0
        self._latest: tuple[Inflight, float, float] | None = None
        """First member, expected time and waiting requests of the latest trial."""

    @property
    def due(self) -> bool:
        """True if the current choice may be a trial."""
        return not self._turn % _EVERY or (self._turn < _FIRST and not self._turn % (_EVERY // 2))

    def earn(self, price: float) -> None:
        """Add a share of the best choice's price to the account."""
        self._turn += 1
        self._mean += (price - self._mean) / min(self._turn, _MEAN_OF)
        share = 1.0 if self._turn <= _ALLOWED_AT_FIRST else _ALLOWED
        self._balance = min(_MOST_SAVED * self._mean, self._balance + share * price)

    def begin(self, excess: float, time: float, waiting: float, first: Inflight) -> bool:
        """Pay for a trial that costs `excess` more than the best choice, or return False.

        `time`: expected time. `waiting`: requests that wait for its end. `first`: its first member.
        """
        if excess > self._balance:
            return False
        self._statistics.trials += 1
        self._charge(excess / waiting, waiting)
        self._latest = first, time, waiting
        return True

    def observe(self, members: Sequence[Inflight], ns: int) -> None:
        """Record a batch that took `ns`. A trial is also charged for exceeding its expected time."""
        if self._latest is not None and self._latest[0] in members[:1]:
            _, expected_ns, waiting = self._latest
            self._latest = None
            self._charge(ns - expected_ns, waiting)

    def start_again(self) -> None:
        """Return to the initial allowance, since the learnt times are outdated."""
        self._turn = 0

    def _charge(self, ns: float, waiting: float) -> None:
        if ns > 0:
            self._balance -= ns * waiting
            self._statistics.trial_ns += ns

"""Results of batching that learns from its own traffic, for people."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

RECENT_DECISIONS = 64


class TunerDecision(NamedTuple):
    """Decision of a tuner from the requests of one window, for people."""

    at_ms: int
    """Unix time."""
    reason: str
    p99_ns: int
    """The latency that 99 of 100 of them stayed below, from queueing to the end of their execution."""
    per_second: float
    """Batch items executed."""
    delay_ns: int
    """The queue delay from then on."""
    batch_size: int
    """The size that batches are dispatched at from then on."""


@dataclass(slots=True, eq=False)
class TunerStatistics:
    """Current state of a model's tuner, and its latest decisions."""

    goal_ns: int
    delay_ns: int
    batch_size: int
    p99_ns: int = 0
    """0 before the first decision."""
    decisions: deque[TunerDecision] = field(default_factory=lambda: deque(maxlen=RECENT_DECISIONS))


@dataclass(slots=True, eq=False)
class ChoiceStatistics:
    """Decisions by measured run times, and these times."""

    batches: dict[str, int] = field(default_factory=dict)
    """Batches by kind: ``alone``, ``equal`` (of one length), ``padded``; `trials` among them."""
    trials: int = 0
    """Batches that were not the best by known run times, to learn more."""
    trial_ns: float = 0
    """Cost of the trials."""
    run_ns: int = 0
    """Total run time of all executions."""
    utilisation: float = 1.0
    """The share of the time in which the instances ran, lately."""
    costs: list[tuple[int, int, float]] = field(default_factory=list)
    """Rows, length (1 in models without) and nanoseconds of batches, as they ran lately."""

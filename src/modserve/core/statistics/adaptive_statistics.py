"""Results of batching that learns from its own traffic, for people."""

from dataclasses import dataclass, field


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

"""Number of replicas by the requests that wait or run in them."""

import math
from typing import Any

PENDING = "pending"
"""Metric that replicas report: requests that they have accepted and not settled."""


def replicas(pending: float, target: float) -> int:
    """Return the replicas that keep the pending requests of each at `target`; at least one, to see new requests."""
    return max(1, math.ceil(pending / target - 1e-6))


class PendingPolicy:
    """A policy of Ray Serve's autoscaling. Bounds and delays are Ray's."""

    def __init__(self, target_pending: float) -> None:
        self.target_pending = target_pending

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        figures = (context.aggregated_metrics or {}).get(PENDING, {})
        if not figures:  # none has come yet
            return context.target_num_replicas, {}
        return replicas(sum(figures.values()), self.target_pending), {}

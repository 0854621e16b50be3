"""Percentiles of latencies."""

import math
from array import array
from collections.abc import Sequence

import numpy as np

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_ROUNDING = 1e-6
"""99.9 * 1000 / 100 is not quite 999."""


def percentiles_ms(latencies: "array[int]", levels: Sequence[float] = PERCENTILES) -> dict[float, float]:
    """Return nearest-rank percentiles, in ms, of latencies in nanoseconds; 0 without requests."""
    if not latencies:
        return dict.fromkeys(levels, 0.0)
    ranks = {level: max(0, math.ceil(level * len(latencies) / 100 - _ROUNDING) - 1) for level in levels}
    ordered = np.partition(np.frombuffer(latencies, np.int64), sorted(set(ranks.values())))
    return {level: float(ordered[rank]) / 1e6 for level, rank in ranks.items()}

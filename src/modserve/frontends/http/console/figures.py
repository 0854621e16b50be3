"""What is made of two readings: rates and quantiles."""

from collections.abc import Sequence


def rate(count: float, seconds: float) -> float:
    """Per second; 0 for a counter that has begun again."""
    return round(max(0, count) / seconds, 1)


def quantile(bounds: Sequence[float], buckets: Sequence[int], share: float) -> float | None:
    """What that share of the values in a histogram stayed below, as Prometheus estimates it; None without values.

    Of those above the last bound nothing is known but that.
    """
    left = share * sum(buckets)
    if not left:
        return None
    lower = 0.0
    for bound, count in zip(bounds, buckets, strict=False):
        if count and left <= count:
            return round(lower + (bound - lower) * left / count, 4)
        left -= count
        lower = bound
    return lower

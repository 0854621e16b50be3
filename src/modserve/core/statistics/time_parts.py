"""The parts of a request's time, and advice on the largest one."""

from collections.abc import Sequence
from typing import Final

PARTS: Final = ("queue", "input", "infer", "output")
"""Parts in the order of a request's course; the rest of its time is before the queue or after the output."""

_MOST = 0.5
_ADVICE: Final = (
    "in the queue: raise the count of 'instance_group' or change 'dynamic_batching'; 'modserve tune {model}' measures "
    "which helps",
    "gathering the engine's inputs: smaller inputs or smaller batches shorten it",
    "in the engine: a faster engine, a smaller model or smaller batches shorten it, more instances do not",
    "reading the engine's outputs: fewer requested outputs or smaller batches shorten it",
    "outside the queue and the engine: smaller tensors, binary data or more free CPU shorten it",
)
"""Advice by part; the last is for the rest."""


def advice(model: str, total: float, parts: Sequence[float]) -> str:
    """Return advice on the part that takes at least half of the requests' time; empty if none does.

    `total` and `parts`, in the order of `PARTS`, have the same unit and are of the same requests.
    """
    shares = [part / total for part in (*parts, total - sum(parts))] if total > 0 else [0.0]
    largest = max(shares)
    if largest < _MOST:
        return ""
    return f"{100 * largest:.0f} % of the time is spent {_ADVICE[shares.index(largest)].format(model=model)}"

"""How long batches are likely to run, and how long a request is likely to wait: from what was seen so far."""

from bisect import bisect_left, insort
from collections.abc import Sequence

_WEIGHT = 0.2
"""Of the latest execution in the average of its size."""
_EXACT = 32
"""Sizes up to this are told apart; of larger ones, 16 between two powers of two."""
_FORGET_AFTER = 1024
"""A size that was not seen among so many executions is forgotten: the others may have changed since."""


class RunTimes:
    """What executions take by batch size: exponentially weighted means, and straight lines between them."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._sizes: list[int] = []
        self._seen: dict[int, int] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"RunTimes({', '.join(f'{size}: {self._means[size] / 1e6:.3g} ms' for size in self._sizes)})"

    def observe(self, batch_size: int, ns: int) -> None:
        """A batch of `batch_size` took `ns`."""
        self._count += 1
        size = _told_apart(batch_size)
        mean = self._means.get(size)
        if mean is None:
            insort(self._sizes, size)
            self._means[size] = float(ns)
        else:
            self._means[size] = mean + _WEIGHT * (ns - mean)
        self._seen[size] = self._count
        if not self._count % _FORGET_AFTER:
            self._forget()

    def __call__(self, batch_size: int) -> int:
        """How long a batch of `batch_size` is likely to run, in nanoseconds; 0 while nothing is known.

        Below the smallest size seen it is that one's time. Above the largest it goes on as between the two largest, and
        in proportion to the size if there is one only.
        """
        sizes, means = self._sizes, self._means
        if not sizes:
            return 0
        place = bisect_left(sizes, batch_size)
        if place == len(sizes):
            return self._beyond(batch_size)
        above = sizes[place]
        if place == 0 or above == batch_size:
            return int(means[above])
        below = sizes[place - 1]
        share = (batch_size - below) / (above - below)
        return int(means[below] + share * (means[above] - means[below]))

    def _beyond(self, batch_size: int) -> int:
        last = self._sizes[-1]
        slope = self._means[last] / last
        if len(self._sizes) > 1:
            before = self._sizes[-2]
            slope = min(slope, max(0.0, (self._means[last] - self._means[before]) / (last - before)))
        return int(self._means[last] + slope * (batch_size - last))

    def _forget(self) -> None:
        oldest = self._count - _FORGET_AFTER
        self._sizes = [size for size in self._sizes if self._seen[size] > oldest]
        self._means = {size: self._means[size] for size in self._sizes}
        self._seen = {size: self._seen[size] for size in self._sizes}


def _told_apart(size: int) -> int:
    """The size under which a batch is counted: bounded in number, whatever sizes come."""
    if size <= _EXACT:
        return max(1, size)
    step = 1 << (size.bit_length() - 5)
    return -(-size // step) * step


def wait_ns(batches: int, batch_ns: int, remaining_ns: Sequence[int]) -> int:
    """How long it is likely to take until a batch starts that has so many before it, which take `batch_ns` each.

    `remaining_ns` has one entry a slot: how long what runs there still takes, 0 for a free one.
    """
    rounds, left = divmod(batches, len(remaining_ns))
    return sorted(remaining_ns)[left] + rounds * batch_ns

"""Grouping of the waiting requests that are cheapest to run with the most urgent one, as a pure function.

Requests are sorted by length and divided into groups with the smallest total price. The price of a group is the time of
a batch of its rows at the length of its longest request, times the number of requests that wait for the end of the
batch: its members, half of the other waiting requests (the groups run in any order), and requests that arrive before
all groups are done. At low load few arrive, and latency counts. At full load the arrivals dominate: only time counts,
and therefore throughput.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
"""Group sizes to try, besides 1, the maximum, and all requests no longer than the group's last one."""


def counts_tried(most: int) -> list[int]:
    return [count for count in _COUNTS if count < most] + ([most] if most > 1 else [])


def queue_weight(waiting: int, utilisation: float) -> float:
    """Return the number of rows that wait for the end of a batch, besides half of its own; `waiting` rows wait now."""
    return waiting * (1 + utilisation) / (2 * (1 - utilisation))


def best_groups(
    lengths: Sequence[int],
    rows: Sequence[int],
    times: Callable[[int], Sequence[float]],
    counts: Sequence[int],
    weight: float,
    most_rows: int,
    most_elements: int = 0,
    batch_sizes: tuple[int, ...] = (),
) -> tuple[list[int], float]:
    """Return the starts of the groups in ascending order, and their total price.

    `lengths` ascend; `rows`: batch size of each request. `times`: returns times by rows for a length. `weight`: from
    `queue_weight`. Groups of several requests have at most `most_rows`, and at most `most_elements` (0 for no limit):
    rows as executed, rounded up to one of `batch_sizes`, times length.
    """
    before = list(accumulate(rows, initial=0))
    single = before[-1] == len(rows)  # one row per request: group sizes in rows and requests are equal
    prices = [0.0]
    begins: list[int] = []
    known = -1
    priced: Sequence[float] = ()
    limit = 0
    for end, length in enumerate(lengths, 1):
        if length != known:
            known = length
            limit = most_rows
            if most_elements:
                limit = min(most_rows, _most_within(most_elements // length, batch_sizes))
            most = max(limit, *rows)
            priced = [time * (weight + 0.5 * size) for size, time in enumerate(times(length)[: most + 1])]
        begin = end - 1
        price = prices[begin] + priced[rows[begin]]
        until = before[end]
        if until <= limit:
            other = priced[until]
            if other < price:
                price, begin = other, 0
        for count in counts:
            start = end - count
            if start < 0:
                break
            size = count if single else until - before[start]
            if size > limit:
                break
            other = prices[start] + priced[size]
            if other < price:
                price, begin = other, start
        prices.append(price)
        begins.append(begin)
    cuts: list[int] = []
    place = len(begins)
    while place:
        place = begins[place - 1]
        cuts.append(place)
    cuts.reverse()
    return cuts, prices[-1]


def _most_within(room: int, batch_sizes: tuple[int, ...]) -> int:
    """Return the maximum rows of requests that execute as up to `room` rows (`core.configuration.merging.rows_of`)."""
    if not batch_sizes or room >= batch_sizes[-1]:
        return room
    return max((size for size in batch_sizes if size <= room), default=0)

"""Chooses batches by measured run times: the rule for models with requests of different lengths.

A batch always contains the most urgent waiting request, so no request waits longer than its predecessors take. The
other members are the cheapest ones by `grouping`, at the prices of `costs`.

The first batches are lessons: of one request until a run time is known, then of up to four until there are two. They
cost little with any engine, and provide initial prices. With a queue delay they have the size that it produces: setting
one implies that batches pay.

Prices of batches without executions are guesses, and prices from long ago are outdated. So from time to time a batch is
a *trial*: not the best choice, but one of a size and length with little data. An account limits the extra cost of
trials to a small share of the price of all batches, and some at the beginning.
"""

from collections.abc import Callable, Sequence
from random import Random

from modserve.core.configuration.merging import Padding, rows_of
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.adaptive_statistics import ChoiceStatistics
from modserve.scheduling.prediction import LengthIndex

from ..batching import FAR_NS, BatchCandidates, Decision, Dispatch, Reason, Rule, WaitUntil
from .costs import Costs
from .grouping import best_groups, counts_tried
from .trials import SURE, Trials
from .utilisation import Utilisation

_LESSONS = 1, 4
"""Maximum rows of a batch by the number of observed batches. Larger ones delay all requests if batches gain nothing."""
_QUICK_NS, _MEAN_SHARE = 400_000, 0.1
"""Mean batch time below which choosing costs too much, and weight of a new batch in it. In that case, and at first, as
many requests as fit run together."""
_DEAREST = 64.0
"""Maximum rows of mean length that a row may cost a tenant; its inverse is the minimum."""
_SIDE = 32
"""Maximum number of shorter, and of longer, requests to consider."""


class Measured:
    """Chooses among the requests of a `batching.BatchCandidates` with `lengths`, once `ready` decides to run."""

    def __init__(self, config: ModelConfig, ready: Rule) -> None:
        most = max(1, config.max_batch_size)
        policy = config.dynamic_batching
        padding = config.padding or Padding({})
        self._padded = padding.pad_length
        self._most_elements = 0 if policy is None else policy.max_batch_elements
        self._batch_sizes = config.batch_sizes
        self._most = most
        self._ready = ready
        self._delays = policy is not None and policy.max_queue_delay_ns > 0
        self._costs = Costs(most)
        self._counts = counts_tried(most)
        self._tables: dict[int, list[float]] = {}
        self._version = -1
        self._changes = 0
        self._random = Random(0)
        self._mean_ns = 0.0
        """Mean run time of recent batches; 0 before the first."""
        self._mean_length = 0.0
        self.statistics = ChoiceStatistics(batches=dict.fromkeys(("alone", "equal", "padded"), 0))
        self.load = Utilisation(self.statistics)
        self._trials = Trials(self.statistics)

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        costs, statistics = self._costs, self.statistics
        ns = timing.compute_end_ns - timing.compute_start_ns
        rows = min(rows_of(timing.batch_size, self._batch_sizes), len(costs.of(1)) - 1)
        length = self._length(max([inflight.length for inflight in members]))
        costs.observe(rows, length, ns)
        self._mean_ns += _MEAN_SHARE * (ns - self._mean_ns) if self._mean_ns else ns
        self._mean_length += _MEAN_SHARE * (length - self._mean_length) if self._mean_length else length
        self.load.observe(timing, members)
        if costs.version != self._version:
            self._version = costs.version
            self._tables.clear()
            if costs.changes != self._changes:
                self._changes = costs.changes
                self._trials.start_again()
            statistics.costs = costs.list_cells()
        self._trials.observe(members, ns)

    def expect(self, members: Sequence[Inflight]) -> int:
        """Return the expected run time of a batch of these requests, in nanoseconds; 0 before the first."""
        if not self._costs.count:
            return 0
        table = self._times(self._length(max([inflight.length for inflight in members])))
        return int(table[min(sum([inflight.batch_size for inflight in members]), len(table) - 1)])

    def cost(self, inflight: Inflight) -> float:
        """Return the run time that a request adds to a large batch, in rows of mean length."""
        rows = float(inflight.batch_size or 1)
        if not self._costs.count:
            return rows
        own = self._times(self._length(inflight.length))[-1]
        mean = self._times(self._length(int(self._mean_length)))[-1]
        return rows * min(_DEAREST, max(1 / _DEAREST, own / mean)) if own > 0 < mean else rows

    def rule(self, together: BatchCandidates, now_ns: int) -> Decision:
        decision = self._ready(together, now_ns)
        batches = self.statistics.batches
        lengths = together.lengths
        if isinstance(decision, WaitUntil):
            if lengths is None or next(iter(together)).arrival > lengths.due_arrival:
                return decision
            decision = Dispatch(together.count, Reason.DELAY)
        if together.count == 1 or lengths is None:
            batches["alone"] += 1
            if self._costs.count:
                size = together.size
                weight = self.load.weight(size, self._most)
                length = self._length(next(iter(together)).length)
                self._trials.earn(self._times(length)[size] * (weight + 0.5 * size))
            return decision
        if decision.reason is Reason.DEADLINE:
            head = min(together, key=lambda inflight: inflight.begin_by_ns or FAR_NS)
        else:
            head = next(iter(together))
        members = self._choose(together, lengths, head)
        if len(members) == 1:
            batches["alone"] += 1
        else:
            equal = self._length(members[0].length) == self._length(members[-1].length)
            batches["equal" if equal else "padded"] += 1
        reason = decision.reason
        if len(members) < together.count:
            if self._delays and lengths.due_arrival < head.arrival:
                lengths.due_arrival = max([inflight.arrival for inflight in together])
            full = sum([inflight.batch_size for inflight in members]) >= self._most
            reason = Reason.FULL if full else Reason.NO_GAIN
        return Dispatch(len(members), reason, members)

    def _length(self, length: int) -> int:
        return max(1, self._padded(length))

    def _times(self, length: int) -> list[float]:
        table = self._tables.get(length)
        if table is None:
            table = self._costs.of(length)
            if self._batch_sizes:
                table = [table[rows_of(rows, self._batch_sizes)] for rows in range(len(table))]
            self._tables[length] = table
        return table

    def _choose(self, together: BatchCandidates, lengths: LengthIndex, head: Inflight) -> list[Inflight]:
        """Choose the members of the next batch, in order of length."""
        largest = self._most
        near, their_lengths, place = lengths.around(head, min(largest, _SIDE))
        if self._costs.count < len(_LESSONS) and not self._delays:
            begin, end = self._largest_range(near, their_lengths, place, min(largest, _LESSONS[self._costs.count]))
            return near[begin:end]
        if self._mean_ns < _QUICK_NS:
            begin, end = self._largest_range(near, their_lengths, place, largest)
            return near[begin:end]
        largest = min(largest, self.load.share(together.size, self._times(self._length(head.length))[: largest + 1]))
        weight = self.load.weight(together.size, largest)
        window = _Window(
            their_lengths,
            [inflight.batch_size for inflight in near],
            self._times,
            [size for size in self._counts if size <= largest],
            weight,
            largest,
            self._most_elements,
            self._batch_sizes,
        )
        cuts, price = window.best()
        cuts.append(len(near))
        index = next(index for index, cut in enumerate(cuts) if cut > place)
        begin, end = cuts[index - 1], cuts[index]
        size = sum(window.rows[begin:end])
        self._trials.earn(self._times(window.lengths[end - 1])[size] * (weight + 0.5 * size))
        if self._trials.due:
            begin, end = self._choose_trial(window, near, place, (begin, end), price, largest)
        if end - begin == 1:
            return [head]
        return _oldest_first(near, window.lengths, begin, end, place)

    def _choose_trial(
        self,
        window: "_Window",
        near: Sequence[Inflight],
        place: int,
        chosen: tuple[int, int],
        price: float,
        largest: int,
    ) -> tuple[int, int]:
        """Return the range of a trial if a useful one is affordable; otherwise `chosen`."""
        widest = self._largest_range(near, window.lengths, place, largest)
        run = place
        while run + 1 < widest[1] and window.lengths[run + 1] == window.lengths[place]:
            run += 1
        kinds = (widest, (place, place + 1), (place, run + 1), self._random_range(widest, place))
        begin, end = kinds[self._random.randrange(len(kinds))]
        size, length = sum(window.rows[begin:end]), window.lengths[end - 1]
        if (begin, end) == chosen or self._costs.sureness(rows_of(size, self._batch_sizes), length) >= SURE:
            return chosen
        excess = window.price_with(begin, end) - price
        time, waiting = self._times(length)[size], window.weight + 0.5 * size
        return (begin, end) if self._trials.begin(excess, time, waiting, near[begin]) else chosen

    def _random_range(self, widest: tuple[int, int], place: int) -> tuple[int, int]:
        return self._random.randint(widest[0], place), self._random.randint(place, widest[1] - 1) + 1

    def _largest_range(
        self, near: Sequence[Inflight], lengths: Sequence[int], place: int, largest: int
    ) -> tuple[int, int]:
        """Return the largest range of requests that fit, shorter ones first: its first position, and its end."""
        begin, end = place, place + 1
        size = near[place].batch_size
        for step in (-1, 1):
            while True:
                other = begin - 1 if step < 0 else end
                if not 0 <= other < len(near) or size + near[other].batch_size > largest:
                    break
                size += near[other].batch_size
                length = lengths[max(other, end - 1)]
                if self._most_elements and rows_of(size, self._batch_sizes) * length > self._most_elements:
                    size -= near[other].batch_size
                    break
                begin, end = (other, end) if step < 0 else (begin, other + 1)
        return begin, end


class _Window:
    """Candidates of a choice, with the arguments for `best_groups`."""

    def __init__(
        self,
        lengths: list[int],
        rows: list[int],
        times: Callable[[int], Sequence[float]],
        counts: list[int],
        weight: float,
        most_rows: int,
        most_elements: int,
        batch_sizes: tuple[int, ...],
    ) -> None:
        self.lengths = lengths
        self.rows = rows
        self.weight = weight
        self._times = times
        self._counts = counts
        self._limits = most_rows, most_elements, batch_sizes

    def best(self) -> tuple[list[int], float]:
        return self._groups(self.lengths, self.rows)

    def price_with(self, begin: int, end: int) -> float:
        """Return the total price if this range is a group."""
        size = sum(self.rows[begin:end])
        price = self._times(self.lengths[end - 1])[size] * (self.weight + 0.5 * size)
        rest = self._groups(self.lengths[:begin] + self.lengths[end:], self.rows[:begin] + self.rows[end:])
        return price + rest[1]

    def _groups(self, lengths: list[int], rows: list[int]) -> tuple[list[int], float]:
        return best_groups(lengths, rows, self._times, self._counts, self.weight, *self._limits)


def _oldest_first(near: Sequence[Inflight], lengths: Sequence[int], begin: int, end: int, place: int) -> list[Inflight]:
    """Return the group from `begin` to `end`, with the most urgent requests of its shortest length."""
    group = list(near[begin:end])
    length = lengths[begin]
    first = lengths.index(length)
    if first < begin and lengths[place] != length:
        last = begin
        while last < end and lengths[last] == length:
            last += 1
        if all(inflight.batch_size == near[begin].batch_size for inflight in near[first:last]):
            group[: last - begin] = near[first : first + last - begin]
    return group

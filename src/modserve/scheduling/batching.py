"""Decides how many requests run together, and when: pure rules over order, sizes and ages."""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mypy_extensions import mypyc_attr

from modserve.core.configuration.merging import rows_of
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig
from modserve.core.requests.inflight import Inflight

from .prediction import LengthIndex

FAR_NS = 1 << 62
"""A time after every queue delay."""


class Reason(enum.Enum):
    """Reason that a batch stopped growing."""

    FULL = "full"
    """Maximum size reached, or the next request does not fit."""
    PREFERRED = "preferred"
    """Preferred size reached."""
    DELAY = "delay"
    """The oldest request has waited for the queue delay."""
    IDLE_INSTANCE = "idle_instance"
    """An instance was free, and there is no queue delay."""
    SHAPE = "shape"
    """An instance was free as above, and the other waiting requests cannot share this batch."""
    DEADLINE = "deadline"
    """A request in it would otherwise miss its deadline or time-out."""
    SINGLE = "single"
    """The model runs each request on its own."""
    NO_GAIN = "no_gain"
    """A larger batch gains nothing by measured run times, or these requests run better without the others. The first
    batches are small for this reason, until run times are known."""
    REFUSED = "refused"
    """The engine refused the original batch, and the request ran again on its own."""


@dataclass(init=False, slots=True)
class Dispatch:
    """Decision to run the first `count` requests as one batch, or the `members`, if any, which are `count`."""

    count: int
    reason: Reason
    members: Sequence[Inflight]

    def __init__(self, count: int, reason: Reason, members: Sequence[Inflight] = ()) -> None:
        self.count = count
        self.reason = reason
        self.members = members


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Decision to run nothing before `when_ns`, unless more requests arrive."""

    when_ns: int


Decision: TypeAlias = Dispatch | WaitUntil


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, eq=False, repr=False)
class BatchCandidates:
    """The requests that may share a batch, iterated by urgency. There is at least one.

    Their queue maintains sums, so that rules need not read every request each time. `size`: sum of batch sizes.
    `elements`: sum of batch sizes times lengths. These and `count` are always exact. The extremes (`longest`,
    `oldest_ns`, and the earliest `deadline_ns` and `limit_ns`, 0 for none) are exact unless `stale`: then call `renew`.
    Most rules without a delay or a limit of elements never read the extremes, and their queues leave them stale.

    `whole`: False if the iteration omits some requests in the sums. `closed`: True if later arrivals cannot join the
    next batch. `lengths`: the same requests by length, for rules that choose by it.
    """

    requests: Iterable[Inflight] = ()
    count: int = 0
    size: int = 0
    elements: int = 0
    longest: int = 0
    oldest_ns: int = FAR_NS
    deadline_ns: int = 0
    limit_ns: int = 0
    stale: bool = False
    whole: bool = True
    closed: bool = False
    lengths: LengthIndex | None = None

    def __iter__(self) -> Iterator[Inflight]:
        return iter(self.requests)

    def on_join(self, inflight: Inflight) -> None:
        """Update the extremes for a request that has just been counted."""
        if self.count == 1:
            self.stale = False
            self.longest = inflight.length
            self.oldest_ns = inflight.queue_start_ns
            self.deadline_ns = inflight.deadline_ns
            self.limit_ns = inflight.queue_limit_ns
        elif not self.stale:
            self._include(inflight)

    def renew(self) -> None:
        """Compute the extremes. Reads all requests, so the iteration must include all."""
        self.stale = False
        self.longest = self.deadline_ns = self.limit_ns = 0
        self.oldest_ns = FAR_NS
        for inflight in self:
            self._include(inflight)

    def _include(self, inflight: Inflight) -> None:
        self.longest = max(self.longest, inflight.length)
        self.oldest_ns = min(self.oldest_ns, inflight.queue_start_ns)
        if inflight.deadline_ns:
            self.deadline_ns = min(self.deadline_ns or inflight.deadline_ns, inflight.deadline_ns)
        if inflight.queue_limit_ns:
            self.limit_ns = min(self.limit_ns or inflight.queue_limit_ns, inflight.queue_limit_ns)


Rule: TypeAlias = Callable[[BatchCandidates, int], Decision]
"""Decides on some requests when an instance is free, at a time in nanoseconds."""


def direct(together: BatchCandidates, now_ns: int) -> Decision:
    """Run each request on its own: the rule of models without dynamic batching."""
    return _ALONE


_ALONE: Final = Dispatch(1, Reason.SINGLE)
_FIRST: Final = Dispatch(1, Reason.IDLE_INSTANCE)
MARGIN_NS = 1_000_000
"""Time by which a request starts early to avoid being late: timers of event loops count whole milliseconds."""


ElementCost: TypeAlias = Callable[[int, int, int], int]
"""Elements of a batch: from its size, the length of its longest request, and its requests' sizes times lengths."""


def element_cost(config: ModelConfig) -> ElementCost:
    """Return the cost for ``scheduling.max_batch_elements``: all elements with padding, or only the requests' own."""
    padding, batch_sizes = config.padding, config.batch_sizes
    if padding is None:
        return lambda size, longest, total: total
    padded = padding.pad_length
    return lambda size, longest, total: rows_of(size, batch_sizes) * padded(longest)


def dynamic(
    policy: DynamicBatching,
    max_batch_size: int,
    run_ns: Callable[[int], int] = lambda batch_size: 0,
    cost: ElementCost = lambda size, longest, total: total,
) -> Rule:
    """Return the dynamic batcher's rule for one model (Triton core, DynamicBatchScheduler::GetDynamicBatch).

    Requests join in order while their sizes sum to at most `max_batch_size`. Reaching a preferred size dispatches at
    once, with the largest such size; so does a request that skips all of them, with the requests before it. Otherwise
    everything that fits runs when the oldest request has waited for the queue delay, or the batch can no longer grow to
    a preferred size. It also runs when a request would otherwise get its response after its deadline, or begin after
    its queue limit; `run_ns` predicts the run time of a batch size.

    With `max_batch_elements` a batch also ends when its `cost` reaches the limit, or before the request that would
    exceed it. A single request may be larger.

    While the requests are too few for any full batch, the decision follows from their sums. Otherwise the rule reads
    requests until a batch is full, at most `max_batch_size` of them and one.
    """
    limit = max(1, max_batch_size)
    preferred = frozenset(policy.preferred_batch_sizes)
    largest = max(preferred, default=limit)
    smallest = ripe_size(policy, max_batch_size)
    delay_ns = policy.max_queue_delay_ns
    most_elements = policy.max_batch_elements

    def decide(together: BatchCandidates, now_ns: int) -> Decision:
        size = together.size
        if not together.whole or size >= smallest:
            return read(together, now_ns)
        if most_elements:
            if together.stale:
                together.renew()
            if cost(size, together.longest, together.elements) >= most_elements:
                return read(together, now_ns)
        if not delay_ns:
            return _FIRST if together.count == 1 else Dispatch(together.count, Reason.IDLE_INSTANCE)
        if together.stale:
            together.renew()
        return in_time(together.count, size, together.oldest_ns, together.deadline_ns, together.limit_ns, now_ns)

    def read(together: BatchCandidates, now_ns: int) -> Decision:
        best = count = size = deadline_ns = limit_ns = longest = total = 0
        oldest_ns = FAR_NS
        best_reason = Reason.PREFERRED
        closed = False
        for inflight in together:
            following = size + (inflight.batch_size or 1)
            if count:
                if following > largest and not best:
                    best, best_reason = count, Reason.FULL
                if following > limit:
                    closed = True
                    break
            if most_elements:
                length = max(longest, inflight.length)
                total += (following - size) * inflight.length
                elements = cost(following, length, total)
                if elements > most_elements and count:
                    closed = True
                    break
                longest, closed = length, elements >= most_elements
            size = following
            count += 1
            oldest_ns = min(oldest_ns, inflight.queue_start_ns)
            if inflight.deadline_ns and (not deadline_ns or inflight.deadline_ns < deadline_ns):
                deadline_ns = inflight.deadline_ns
            if inflight.queue_limit_ns and (not limit_ns or inflight.queue_limit_ns < limit_ns):
                limit_ns = inflight.queue_limit_ns
            if size in preferred:
                best, best_reason = count, Reason.FULL if size >= limit else Reason.PREFERRED
            if closed or size >= limit:
                break
        overdue = delay_ns > 0 and now_ns - oldest_ns >= delay_ns
        if best and not overdue:
            return Dispatch(best, best_reason)
        if closed or size >= largest:
            return Dispatch(count, Reason.FULL)
        if not delay_ns:
            return Dispatch(count, Reason.IDLE_INSTANCE)
        return in_time(count, size, oldest_ns, deadline_ns, limit_ns, now_ns)

    def in_time(count: int, size: int, oldest_ns: int, deadline_ns: int, limit_ns: int, now_ns: int) -> Decision:
        """Wait for the queue delay, unless it is over or would make a request late."""
        when_ns = oldest_ns + delay_ns
        if now_ns >= when_ns:
            return Dispatch(count, Reason.DELAY)
        if deadline_ns or limit_ns:
            latest_ns = limit_ns
            if deadline_ns:
                begin_by_ns = deadline_ns - run_ns(size)
                latest_ns = min(limit_ns or begin_by_ns, begin_by_ns)
            latest_ns -= MARGIN_NS
            if now_ns >= latest_ns:
                return Dispatch(count, Reason.DEADLINE)
            when_ns = min(when_ns, latest_ns)
        return WaitUntil(when_ns)

    return decide


def ripe_size(policy: DynamicBatching, max_batch_size: int) -> int:
    """Return the minimum size for running before the end of the queue delay."""
    return min(policy.preferred_batch_sizes, default=max(1, max_batch_size))

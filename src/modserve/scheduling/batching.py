"""How many of the requests that may share a batch run together, and when: pure rules over order, sizes and ages."""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from modserve.core.inflight import Inflight
from modserve.core.merging import rows_of
from modserve.core.model_config import DynamicBatching, ModelConfig

FAR_NS = 1 << 62
"""A time by which every queue delay is over."""


class Reason(enum.Enum):
    """Why a batch did not grow any more."""

    FULL = "full"
    """It has the largest size, or the next request does not fit."""
    PREFERRED = "preferred"
    """It has a preferred size."""
    DELAY = "delay"
    """The oldest of it has waited for the queue delay."""
    IDLE_INSTANCE = "idle_instance"
    """An instance was free, and there is no queue delay to wait for."""
    SHAPE = "shape"
    """The same, and the other requests that waited can not share a batch with these."""
    DEADLINE = "deadline"
    """One of it would be too late, or have waited too long, otherwise."""
    SINGLE = "single"
    """The model runs each request on its own."""
    REFUSED = "refused"
    """The engine refused the batch that it was in: it ran once more by itself."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run the first `count` requests as one batch."""

    count: int
    reason: Reason


class Seen(NamedTuple):
    """What a rule knows of the first requests that may share a batch, so that it need not look at them again.

    The sums and the extremes of their sizes and times. `policy` is the rule's: to others it says nothing.
    """

    policy: DynamicBatching | None = None
    requests: int = 0
    size: int = 0
    oldest_ns: int = FAR_NS
    deadline_ns: int = 0
    limit_ns: int = 0
    longest: int = 0
    total: int = 0


NOTHING_SEEN = Seen()
_MEMORABLE = 16
"""So many requests are worth remembering: to look at fewer again costs no more."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to run before `when_ns`, unless more arrives. `seen`: what the rule has been shown, if that is much."""

    when_ns: int
    seen: Seen = field(default=NOTHING_SEEN, compare=False)


class ShowAll(enum.Enum):
    """What was seen before says nothing to this rule: it has to be asked with all who may share a batch."""

    SHOW_ALL = enum.auto()


Decision: TypeAlias = Dispatch | WaitUntil | ShowAll


class Rule(Protocol):
    """What to do with `together` (the most urgent first, one or more, all live) when a slot is free at `now_ns`.

    If it has been `seen` before that there are others before these, `together` are only those that came behind them.
    """

    def __call__(self, together: Iterable[Inflight], now_ns: int, seen: Seen = ...) -> Decision: ...


def direct(together: Iterable[Inflight], now_ns: int, seen: Seen = NOTHING_SEEN) -> Decision:
    """Each request on its own: models without dynamic batching."""
    return _ALONE


_ALONE = Dispatch(1, Reason.SINGLE)
MARGIN_NS = 1_000_000
"""Timers of event loops count whole milliseconds: who has to be in time begins one earlier."""


ElementCost: TypeAlias = Callable[[int, int, int], int]
"""The elements of a batch: from its size, the length of its longest request, and its requests' sizes times lengths."""


def element_cost(config: ModelConfig) -> ElementCost:
    """What ``scheduling.max_batch_elements`` limits: with padding all that is executed, else what the requests have."""
    padding, batch_sizes = config.padding, config.batch_sizes
    if padding is None:
        return lambda size, longest, total: total
    padded = padding.padded
    return lambda size, longest, total: rows_of(size, batch_sizes) * padded(longest)


def dynamic(
    policy: DynamicBatching,
    max_batch_size: int,
    run_ns: Callable[[int], int] = lambda batch_size: 0,
    cost: ElementCost = lambda size, longest, total: total,
) -> Rule:
    """The dynamic batcher's rule for one model (Triton core, DynamicBatchScheduler::GetDynamicBatch).

    Requests join in order while their sizes sum to at most `max_batch_size`. Reaching a preferred size dispatches at
    once, with the largest such size; so does a request that leaps over all of them, with what came before it.
    Otherwise everything that fits goes when the oldest has waited for the queue delay, or the batch can not grow to a
    preferred size any more; or when a request would be answered after its deadline, by `run_ns`, which tells how long a
    batch of a size is likely to run, or begin after its queue limit.

    With `max_batch_elements` a batch also ends before the request with which its `cost` would be above that, and when
    it has reached it. A single request may be larger.
    """
    limit = max(1, max_batch_size)
    preferred = frozenset(policy.preferred_batch_sizes)
    largest = max(preferred, default=limit)
    delay_ns = policy.max_queue_delay_ns
    most_elements = policy.max_batch_elements

    def decide(together: Iterable[Inflight], now_ns: int, seen: Seen = NOTHING_SEEN) -> Decision:
        before, count, size, oldest_ns, deadline_ns, limit_ns, longest, total = seen
        if count and before is not policy:
            return ShowAll.SHOW_ALL
        best = 0  # or they would not have been left to wait
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
            if inflight.queue_start_ns < oldest_ns:
                oldest_ns = inflight.queue_start_ns
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
        if overdue:
            return Dispatch(count, Reason.DELAY)
        if delay_ns == 0:
            return Dispatch(count, Reason.IDLE_INSTANCE)
        when_ns = oldest_ns + delay_ns
        if deadline_ns or limit_ns:
            latest_ns = limit_ns
            if deadline_ns:
                begin_by_ns = deadline_ns - run_ns(size)
                latest_ns = min(limit_ns or begin_by_ns, begin_by_ns)
            latest_ns -= MARGIN_NS
            if now_ns >= latest_ns:
                return Dispatch(count, Reason.DEADLINE)
            when_ns = min(when_ns, latest_ns)
        if count < _MEMORABLE:
            return WaitUntil(when_ns)
        return WaitUntil(when_ns, Seen(policy, count, size, oldest_ns, deadline_ns, limit_ns, longest, total))

    return decide


def ripe_size(policy: DynamicBatching, max_batch_size: int) -> int:
    """The size from which on requests may be run without waiting for the queue delay."""
    return min(policy.preferred_batch_sizes, default=max(1, max_batch_size))

"""Which waiting requests run together, and when: pure rules over a queue's order, sizes and ages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run the first `count` requests as one batch."""

    count: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to run before `when_ns`, unless more arrives."""

    when_ns: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing waits."""


Decision: TypeAlias = Dispatch | WaitUntil | Idle


class Rule(Protocol):
    """What to do with `waiting` (in order, all live) when a slot is free at `now_ns`."""

    def __call__(self, waiting: Iterable[Inflight], now_ns: int) -> Decision: ...


def direct(waiting: Iterable[Inflight], now_ns: int) -> Decision:
    """Each request on its own, in order of arrival: models without dynamic batching."""
    for _ in waiting:
        return Dispatch(1)
    return Idle()


def dynamic(policy: DynamicBatching, max_batch_size: int) -> Rule:
    """The dynamic batcher's rule for one model (Triton core, DynamicBatchScheduler::GetDynamicBatch).

    Requests join in order while their sizes sum to at most `max_batch_size` and their shapes agree. Reaching a
    preferred size dispatches at once, with the largest such size; so does a request that leaps over all of them, with
    what came before it. Otherwise everything that fits goes when the oldest has waited for the queue delay, or the
    batch can not grow to a preferred size any more.
    """
    limit = max(1, max_batch_size)
    preferred = frozenset(policy.preferred_batch_sizes)
    largest = max(preferred, default=limit)
    delay_ns = policy.max_queue_delay_ns

    def decide(waiting: Iterable[Inflight], now_ns: int) -> Decision:
        size = count = best = 0
        oldest_ns = 0
        shape_key = None
        closed = False
        for inflight in waiting:
            following = size + (inflight.batch_size or 1)
            if count == 0:
                shape_key = inflight.shape_key
                oldest_ns = inflight.queue_start_ns
            else:
                if following > largest and not best:
                    best = count
                if following > limit or inflight.shape_key != shape_key:
                    closed = True
                    break
            size = following
            count += 1
            if size in preferred:
                best = count
            if size >= limit:
                break
        if count == 0:
            return Idle()
        overdue = delay_ns > 0 and now_ns - oldest_ns >= delay_ns
        if best and not overdue:
            return Dispatch(best)
        if overdue or closed or size >= largest or delay_ns == 0:
            return Dispatch(count)
        return WaitUntil(oldest_ns + delay_ns)

    return decide

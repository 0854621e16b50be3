"""The pool of a model whose instances need resources: an instance is lent only when its resources are free."""

from collections.abc import Sequence

from modserve.core.requests.inflight import Inflight

from .instance import Instance
from .pool import InstancePool
from .rate_limit import RateLimiter, ResourceTurn, TurnState


class LimitedPool:
    """Implements `scheduling.PinnedRunner` on top of a pool. `turns` are those of its instances, in their order.

    Each instance has one execution at a time, as in Triton, and each execution its resources until it is over: whoever
    hears of a free slot calls `collect` first.
    """

    def __init__(self, pool: InstancePool, limiter: RateLimiter, turns: Sequence[ResourceTurn]) -> None:
        """Raises INVALID_ARG if an instance needs more of a resource than there is."""
        limiter.add(turns)
        self._pool = pool
        self._limiter = limiter
        self._turns = turns

    def close(self) -> None:
        """The model needs nothing any more."""
        self._limiter.remove(self._turns)

    @property
    def count(self) -> int:
        return self._pool.count

    def reserve(self) -> Instance | None:
        # A turn that was granted comes first: another one would begin to wait, and be granted as soon as this is over.
        order = [(turn.state is not TurnState.GRANTED, turn.clock, number) for number, turn in enumerate(self._turns)]
        for *_, number in sorted(order):
            if (slot := self.reserve_number(number)) is not None:
                return slot
        return None

    def reserve_number(self, number: int) -> Instance | None:
        turn = self._turns[number]
        if turn.state is TurnState.RUNNING:
            return None
        slot = self._pool.reserve_number(number)
        if slot is None:
            if turn.state is not TurnState.IDLE:
                self._limiter.end(turn)
            return None
        if self._limiter.begin(turn):
            return slot
        self._pool.release(slot)
        return None

    def release(self, slot: Instance) -> None:
        self._pool.release(slot)
        self._limiter.end(self._turns[slot.number])

    def run(self, slot: Instance, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        self._pool.run(slot, batch, close_reason, rows)
        self.collect()

    def collect(self) -> None:
        """Take back the resources of executions that are over."""
        for number, turn in enumerate(self._turns):
            if turn.state is TurnState.RUNNING and self._is_idle(number):
                self._limiter.end(turn)

    def _is_idle(self, number: int) -> bool:
        """Whether all places of an instance are free."""
        slots: list[Instance] = []
        while (slot := self._pool.reserve_number(number)) is not None:
            slots.append(slot)
        for slot in slots:
            self._pool.release(slot)
        return bool(slots) and len(slots) >= slots[0].places

    def slot_lost(self, number: int) -> None:
        if self._turns[number].state is TurnState.RUNNING:
            self._limiter.end(self._turns[number])

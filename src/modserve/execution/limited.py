"""The instances of a model that need resources: the pool, but none is lent whose resources are not free."""

from collections.abc import Callable, Sequence

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight

from .instance import Instance
from .pool import InstancePool
from .rate_limit import RateLimiter, State, Turn


class LimitedPool:
    """Implements `scheduling.PinnedRunner` on top of a pool. `turns` are those of its instances, in their order.

    Each instance has one execution at a time, as in Triton, and each execution its resources until it is over.
    """

    def __init__(self, pool: InstancePool, limiter: RateLimiter, turns: Sequence[Turn]) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.on_lost: Callable[[int, ModserveError, bool], None] = lambda number, error, again: None
        self._pool = pool
        self._limiter = limiter
        self._turns = turns
        for turn in turns:
            turn.on_grant = self._granted
        pool.on_free = self._freed
        pool.on_lost = self._lost

    @property
    def on_done(self) -> Callable[[list[Inflight]], None] | None:
        return self._pool.on_done

    @on_done.setter
    def on_done(self, callback: Callable[[list[Inflight]], None] | None) -> None:
        self._pool.on_done = callback

    @property
    def on_again(self) -> Callable[[Inflight], None]:
        return self._pool.on_again

    @on_again.setter
    def on_again(self, callback: Callable[[Inflight], None]) -> None:
        self._pool.on_again = callback

    @property
    def count(self) -> int:
        return self._pool.count

    def reserve(self) -> Instance | None:
        # A turn that was granted comes first: another one would begin to wait, and be granted as soon as this is over.
        order = [(turn.state is not State.GRANTED, turn.clock, number) for number, turn in enumerate(self._turns)]
        for *_, number in sorted(order):
            if (slot := self.reserve_number(number)) is not None:
                return slot
        return None

    def reserve_number(self, number: int) -> Instance | None:
        turn = self._turns[number]
        if turn.state is State.RUNNING:
            return None
        slot = self._pool.reserve_number(number)
        if slot is None:
            if turn.state is not State.IDLE:
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
        self._collect()

    def _collect(self) -> None:
        """Take back the resources of executions that are over."""
        for number, turn in enumerate(self._turns):
            if turn.state is State.RUNNING and self._is_idle(number):
                self._limiter.end(turn)

    def _is_idle(self, number: int) -> bool:
        """Whether all places of an instance are free."""
        slots: list[Instance] = []
        while (slot := self._pool.reserve_number(number)) is not None:
            slots.append(slot)
        for slot in slots:
            self._pool.release(slot)
        return bool(slots) and len(slots) >= slots[0].places

    def _freed(self) -> None:
        self._collect()
        self.on_free()

    def _lost(self, number: int, error: ModserveError, again: bool) -> None:
        if self._turns[number].state is State.RUNNING:
            self._limiter.end(self._turns[number])
        self.on_lost(number, error, again)

    def _granted(self) -> None:
        self.on_free()

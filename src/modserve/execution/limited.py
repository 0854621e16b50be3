"""Pool of a model with instances that need resources: an instance is lent only when its resources are free."""

from collections.abc import Collection, Mapping

from modserve.core.requests.inflight import Inflight

from .instance import Instance
from .pool import InstancePool
from .rate_limit import RateLimiter, ResourceTurn, TurnState


class LimitedPool:
    """Implements `scheduling.PinnedRunner` on top of a pool. `turns` are those of its instances, by number.

    Each instance has one execution at a time, as in Triton, and each execution its resources until it is over: whoever
    hears of a free slot calls `collect` first. An instance without a turn needs nothing; while none has one, the pool
    lends as many places as it has.
    """

    def __init__(self, pool: InstancePool, limiter: RateLimiter, turns: Mapping[int, ResourceTurn]) -> None:
        """Add the turns to the limiter. Raises INVALID_ARG if an instance needs more of a resource than there is."""
        limiter.add(list(turns.values()))
        self._pool = pool
        self._limiter = limiter
        self._turns = dict(turns)
        self._leaving: dict[int, ResourceTurn] = {}
        """Turns of instances that were removed and finish their jobs."""

    def close(self) -> None:
        """Give up all turns; the model needs nothing any more."""
        self._limiter.remove(self._all())

    def _all(self) -> list[ResourceTurn]:
        return [*self._turns.values(), *self._leaving.values()]

    def change(self, turns: Mapping[int, ResourceTurn]) -> None:
        """Change the needs of these instances, or add new ones, all at once; `promise` came before.

        An execution keeps what it has until it is over.
        """
        self._limiter.break_promise(list(turns.values()))
        former = self._all()
        if not turns:  # nobody needs anything any more
            self._turns.clear()
        for number, now in turns.items():
            turn = self._turns.setdefault(number, now)
            turn.needs, turn.weight = now.needs, now.weight
        self._limiter.replace(former, self._all())

    def remove(self, numbers: Collection[int]) -> None:
        """Remove the needs of instances, except for what they are running."""
        former = self._all()
        for number in numbers:
            turn = self._turns.pop(number, None)
            if turn is not None and turn.state is TurnState.RUNNING:
                self._leaving[number] = turn
        self._limiter.replace(former, self._all())

    def promise(self, turns: Mapping[int, ResourceTurn]) -> None:
        """See to it that a `change` cannot fail. Raises INVALID_ARG if an instance needs more than there is."""
        self._limiter.promise(list(turns.values()), self._all())

    def break_promise(self, turns: Mapping[int, ResourceTurn]) -> None:
        """Withdraw a promise: there will be no `change`."""
        self._limiter.break_promise(list(turns.values()))

    def left(self, number: int) -> None:
        """Give up the turn of a removed instance that has nothing left to do."""
        turn = self._leaving.pop(number, None)
        if turn is not None:
            self._limiter.remove([turn])

    @property
    def count(self) -> int:
        return self._pool.count

    def reserve(self) -> Instance | None:
        if not self._turns:
            return self._pool.reserve()
        # A turn that was granted comes first: another one would begin to wait, and be granted as soon as this is over.
        order = [(turn.state is not TurnState.GRANTED, turn.clock, number) for number, turn in self._turns.items()]
        for *_, number in sorted(order):
            if (slot := self.reserve_number(number)) is not None:
                return slot
        return None

    def reserve_number(self, number: int) -> Instance | None:
        turn = self._turns.get(number)
        if turn is None:
            return self._pool.reserve_number(number)
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
        turn = self._turns.get(slot.number)
        if turn is not None:
            self._limiter.end(turn)

    def run(self, slot: Instance, batch: list[Inflight], close_reason: str, rows: list[Inflight] | None = None) -> None:
        self._pool.run(slot, batch, close_reason, rows)
        self.collect()

    def collect(self) -> None:
        """Take back the resources of executions that are over."""
        for number, turn in self._turns.items():
            if turn.state is TurnState.RUNNING and self._is_idle(number):
                self._limiter.end(turn)

    def _is_idle(self, number: int) -> bool:
        """True if all places of an instance are free."""
        slots: list[Instance] = []
        while (slot := self._pool.reserve_number(number)) is not None:
            slots.append(slot)
        for slot in slots:
            self._pool.release(slot)
        return bool(slots) and len(slots) >= slots[0].places

    def slot_lost(self, number: int) -> None:
        turn = self._turns.get(number)
        if turn is not None and turn.state is TurnState.RUNNING:
            self._limiter.end(turn)

"""Pool under the rate limiter: an instance is lent only when its resources are free."""

from collections.abc import Collection, Mapping

from modserve.core.requests.inflight import Inflight

from .instance import Instance
from .pool import InstancePool
from .rate_limit import RateLimiter, ResourceTurn, TurnState


class LimitedPool:
    """Implements `scheduling.PinnedRunner` on top of a pool. `turns` are indexed by instance number.

    As in Triton, each instance runs one execution at a time, which holds its resources until its end. On a notification
    of a free slot, `collect` must be called first. An instance without a turn needs no resources. While no instance has
    a turn, the pool lends all its places.
    """

    def __init__(self, pool: InstancePool, limiter: RateLimiter, turns: Mapping[int, ResourceTurn]) -> None:
        """Add the turns to the limiter. Raises INVALID_ARG if an instance needs more of a resource than exists."""
        limiter.add(list(turns.values()))
        self._pool = pool
        self._limiter = limiter
        self._turns = dict(turns)
        self._leaving: dict[int, ResourceTurn] = {}
        """Turns of removed instances that finish their jobs."""

    def close(self) -> None:
        """Give up all turns."""
        self._limiter.remove(self._all())

    def _all(self) -> list[ResourceTurn]:
        return [*self._turns.values(), *self._leaving.values()]

    def change(self, turns: Mapping[int, ResourceTurn]) -> None:
        """Change or add the needs of these instances atomically, after `promise`.

        Running executions keep their resources.
        """
        self._limiter.break_promise(list(turns.values()))
        former = self._all()
        if not turns:  # the model no longer needs resources
            self._turns.clear()
        for number, now in turns.items():
            turn = self._turns.setdefault(number, now)
            turn.needs, turn.weight = now.needs, now.weight
        self._limiter.replace(former, self._all())

    def remove(self, numbers: Collection[int]) -> None:
        """Remove the needs of instances, except for running executions."""
        former = self._all()
        for number in numbers:
            turn = self._turns.pop(number, None)
            if turn is not None and turn.state is TurnState.RUNNING:
                self._leaving[number] = turn
        self._limiter.replace(former, self._all())

    def promise(self, turns: Mapping[int, ResourceTurn]) -> None:
        """Announce needs, so that `change` cannot fail. Raises INVALID_ARG if an instance needs more than exists."""
        self._limiter.promise(list(turns.values()), self._all())

    def break_promise(self, turns: Mapping[int, ResourceTurn]) -> None:
        """Withdraw a promise without `change`."""
        self._limiter.break_promise(list(turns.values()))

    def left(self, number: int) -> None:
        """Give up the turn of a removed instance that is idle."""
        turn = self._leaving.pop(number, None)
        if turn is not None:
            self._limiter.remove([turn])

    @property
    def count(self) -> int:
        return self._pool.count

    def reserve(self) -> Instance | None:
        if not self._turns:
            return self._pool.reserve()
        # Granted turns come first: another turn would start waiting and be granted right afterwards.
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
        """Return the resources of finished executions."""
        for number, turn in self._turns.items():
            if turn.state is TurnState.RUNNING and self._is_idle(number):
                self._limiter.end(turn)

    def _is_idle(self, number: int) -> bool:
        """Return True if all places of an instance are free."""
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

"""Locks on the names of models that are being changed, and loans of servables."""

import asyncio
from collections.abc import Callable
from itertools import takewhile

from modserve.core.servable import Servable, base


class NameLocks:
    """Locks by name. Callers get all their names at once, so that no two callers wait for each other.

    First come, first served: a caller also waits for names that an earlier caller waits for. Only names in use are
    stored.
    """

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self._queue: dict[object, set[str]] = {}
        """Names needed by each waiting caller, in order of arrival."""
        self._freed = asyncio.Event()

    async def hold(self, choose: Callable[[], set[str]]) -> set[str]:
        """Lock and return the names that `choose` returns. It is called again, as the names may change."""
        caller = object()
        try:
            while True:
                names = self._queue[caller] = choose()
                earlier = takewhile(lambda other: other is not caller, self._queue)
                if names.isdisjoint(self.busy.union(*(self._queue[other] for other in earlier))):
                    self.busy |= names
                    return names
                await self._freed.wait()
        finally:
            del self._queue[caller]
            self._wake()

    def release(self, *names: str) -> None:
        self.busy.difference_update(names)
        self._wake()

    def _wake(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()


class Loans:
    """Counts the handles of each servable: closing one waits until all of them are released.

    Wrappers of a model may change while it is lent; handles count for the model.
    """

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}
        """Number of handles, by the id of the model."""
        self._returned: asyncio.Event | None = None  # set while a caller waits

    def __repr__(self) -> str:
        return f"Loans({len(self._handles)} servables)"

    def lend(self, front: Servable, *servables: Servable) -> "LentServable":
        """Lend servables that are behind `front`; without any, `front` itself."""
        lent = [base(servable) for servable in servables or (front,)]
        for servable in lent:
            self._handles[id(servable)] = self._handles.get(id(servable), 0) + 1
        return LentServable(front, lent, self)

    def give_back(self, model: Servable) -> None:
        left = self._handles[id(model)] - 1
        if left:
            self._handles[id(model)] = left
            return
        del self._handles[id(model)]
        if self._returned is not None:
            self._returned.set()
            self._returned = None

    async def wait_until_returned(self, servable: Servable) -> None:
        """Wait until no handle is left. Called once the servable can no longer be borrowed."""
        while self.lent(servable):
            if self._returned is None:
                self._returned = asyncio.Event()
            await self._returned.wait()

    def lent(self, servable: Servable) -> bool:
        return id(base(servable)) in self._handles


class LentServable:
    """Implements `core.servable.Handle`. `models`: the models behind the servable."""

    __slots__ = ("_loans", "_models", "servable")

    def __init__(self, servable: Servable, models: list[Servable], loans: Loans) -> None:
        self.servable = servable
        self._models = models
        self._loans = loans

    def release(self) -> None:
        for model in self._models:
            self._loans.give_back(model)

"""Borrowed servables: whoever closes one waits until all of its handles are released."""

import asyncio

from modserve.core.servable import Servable


class Loans:
    """Counts the handles of each servable. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self._loans: dict[int, _Loan] = {}

    def __repr__(self) -> str:
        return f"Loans({len(self._loans)} servables)"

    def lend(self, servable: Servable, front: Servable | None = None) -> "LentServable":
        """Lend a servable; the borrower sees `front` in its place, if there is one."""
        loan = self._loans.get(id(servable))
        if loan is None:
            loan = self._loans[id(servable)] = _Loan()
        loan.count += 1
        return LentServable(servable, front or servable, self)

    def give_back(self, servable: Servable) -> None:
        loan = self._loans[id(servable)]
        loan.count -= 1
        if not loan.count:
            del self._loans[id(servable)]
            loan.returned.set()

    async def returned(self, servable: Servable) -> None:
        """Wait until no handle is left. Called once nobody can borrow the servable again."""
        while (loan := self._loans.get(id(servable))) is not None:
            await loan.returned.wait()


class LentServable:
    """Implements `core.servable.Handle`."""

    __slots__ = ("_lent", "_loans", "servable")

    def __init__(self, lent: Servable, front: Servable, loans: Loans) -> None:
        self.servable = front
        self._lent = lent
        self._loans = loans

    def release(self) -> None:
        self._loans.give_back(self._lent)


class _Loan:
    __slots__ = ("count", "returned")

    def __init__(self) -> None:
        self.count = 0
        self.returned = asyncio.Event()

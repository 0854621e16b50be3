"""Which models are being changed."""

import asyncio
from collections.abc import Callable
from itertools import takewhile


class NameLocks:
    """Locks by name. A caller gets all the names that it needs at once, so that no two callers wait for each other.

    First come, first served: a caller also waits for names that an earlier caller waits for. Only names that are in use
    are kept.
    """

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self._queue: dict[object, set[str]] = {}
        """The names that each waiting caller needs, the first caller first."""
        self._freed = asyncio.Event()

    async def hold(self, choose: Callable[[], set[str]]) -> set[str]:
        """Lock the names that `choose` returns, and return them. It is called again, as the names may become more."""
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

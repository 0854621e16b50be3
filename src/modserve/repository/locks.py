"""Which models are being changed."""

import asyncio
from collections.abc import Callable


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
        names = choose()
        try:
            while True:
                self._queue[caller] = names
                if not self._is_free(caller, names):
                    await self._freed.wait()
                elif (more := choose()) <= names:
                    self.busy |= names
                    return names
                else:
                    names = more
        finally:
            del self._queue[caller]
            self._wake()

    def release(self, *names: str) -> None:
        self.busy.difference_update(names)
        self._wake()

    def _is_free(self, caller: object, names: set[str]) -> bool:
        if not names.isdisjoint(self.busy):
            return False
        for other, needed in self._queue.items():
            if other is caller:
                break
            if not names.isdisjoint(needed):
                return False
        return True

    def _wake(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()

"""The actor that makes changes in all replicas, one after the other, and numbers them."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from modserve.core.errors import ModserveError, unavailable
from modserve.workers import pickles
from modserve.workers.journal import ServerChange

PATIENCE = 3600.0
"""Seconds that a change may take in all replicas: large models load for long."""

_NAME = "ledger"


class Ledger:
    """Has the changes that still hold: of those to one subject, the last.

    `broadcast` calls `PeerCalls.receive` of each replica that runs, and returns what they return, or exceptions.
    """

    def __init__(self, broadcast: Callable[[bytes, float], Awaitable[list[Any]]]) -> None:
        self._broadcast = broadcast
        self._one = asyncio.Lock()
        self._number = 0
        self._learnt = False
        """True once it has what replicas know of a ledger before it."""
        self._changes: dict[tuple[str, str], tuple[int, ServerChange]] = {}

    async def change(self, data: bytes) -> bytes:
        """Make a change in all replicas, or in none: None, or the error of the first replica that refuses, as bytes."""
        return pickles.dumps(await self._change(pickles.loads(data)))

    async def _change(self, change: ServerChange) -> ModserveError | None:
        async with self._one:
            if not self._learnt:
                await self._learn()
            number, mark = self._number + 1, uuid.uuid4().hex
            outcomes: list[ModserveError | None] = await self._in_all("make", number, change, mark)
            failures = [each for each in outcomes if each is not None]
            if not outcomes:
                return unavailable("no replica is available")
            if not failures:
                self._number = number
                self._record(number, change)
                return None
            made = len(outcomes) - len(failures)
            if not made:
                return failures[0]
            await self._in_all("unmake", number, change, mark)
            note = f" (refused by {len(failures)} of {len(outcomes)} replicas, and undone in the others)"
            return ModserveError(failures[0].code, failures[0].message.rstrip("\n") + note)

    async def _learn(self) -> None:
        """Before the first change: replicas may have made others, of a ledger that was lost."""
        for number, changes in await self._in_all("knows"):
            await self.restore(number, changes)
        self._learnt = True

    async def _in_all(self, method: str, *arguments: object) -> list[Any]:
        """Call all replicas and return the responses: a replica that ended meanwhile comes back with all changes."""
        responses = await self._broadcast(pickles.dumps((_NAME, method, arguments)), PATIENCE)
        return [pickles.loads(each) for each in responses if isinstance(each, bytes) and each]

    def _record(self, number: int, change: ServerChange) -> None:
        self._changes.pop(change.subject, None)
        self._changes[change.subject] = number, change

    async def since(self, number: int) -> tuple[int, list[bytes]]:
        """Return the number of the last change, and the changes after `number` that still hold."""
        later = [pickles.dumps(change) for own, change in self._changes.values() if own > number]
        return self._number, later

    async def restore(self, number: int, changes: list[bytes]) -> None:
        """Restore a restarted ledger from the knowledge of a replica."""
        if number > self._number:
            self._number = number
            self._changes.clear()
            for data in changes:
                self._record(number, pickles.loads(data))

"""The replicas as one server: questions to all of them, and changes in all of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.lifecycle import IndexEntry
from modserve.core.requests.sequence import SequenceKey
from modserve.core.runtime.failures import count_failure
from modserve.server import DrainReport
from modserve.workers import pickles
from modserve.workers.control import WorkerControl
from modserve.workers.journal import ServerChange

_log = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds that replicas have for what they know."""
_PAUSE = 2.0
"""Seconds between two looks for changes that have passed a replica by, as at its start."""

_RETRY = 0.5
"""Seconds until the next call of a ledger that is being started."""


class LedgerCalls(Protocol):
    """Calls of a replica to the `ledger.Ledger`, wherever that is. All raise LedgerLostError."""

    async def change(self, change: bytes) -> bytes: ...
    async def since(self, number: int) -> tuple[int, list[bytes]]: ...
    async def restore(self, number: int, changes: list[bytes]) -> None: ...


class LedgerLostError(Exception):
    """The ledger's process is gone. Ray starts another one."""


class ReplicaSet:
    """The others, for one replica. Implements `workers.fleet_server.Peers` and `ChangeMaker`.

    `broadcast` calls `PeerCalls.receive` of each replica that runs, this one included, and returns what they return.
    """

    index, starts = 0, 0

    def __init__(
        self, name: str, broadcast: Callable[[bytes, float], Awaitable[list[Any]]], ledger: LedgerCalls
    ) -> None:
        self.name = name
        self._broadcast = broadcast
        self._ledger = ledger
        self.count = 1
        """Replicas that have responded lately, this one included."""

    async def ask(self, method: str, *arguments: object) -> dict[int, Any]:
        """Return the results, or ModserveErrors, of the others that respond."""
        data = pickles.dumps((self.name, method, arguments))
        responses = [each for each in await self._broadcast(data, PATIENCE) if isinstance(each, bytes) and each]
        self.count = 1 + len(responses)
        return {index: pickles.loads(each) for index, each in enumerate(responses, 1)}

    async def holder(self, model: str, version: int | None, key: SequenceKey) -> str:
        """Return the name of the replica, of the others, that has a sequence; empty if none has it."""
        return next(filter(None, (await self.ask("holds", model, version, key)).values()), "")

    def drain(self) -> Awaitable[list[DrainReport]]:
        """Raises UNSUPPORTED: which replicas there are is Ray's business."""
        raise ModserveError(Code.UNSUPPORTED, "replicas are drained and ended by Ray: deploy fewer of them")

    async def unready(self) -> list[IndexEntry]:
        """Return no obstacles to readiness: Ray sends the other replicas no calls before they have loaded."""
        return []

    async def change(self, change: ServerChange) -> None:
        """Make a change in all replicas or in none. Raises the failure of the first that refuses it."""
        try:
            outcome = pickles.loads(await self._ledger.change(pickles.dumps(change)))
        except LedgerLostError:
            raise unavailable(
                "the actor that makes changes in all replicas was lost in the middle of this one: repeat it"
            ) from None
        if isinstance(outcome, ModserveError):
            raise outcome


class PeerCalls:
    """Calls of others in one replica, and its number: that of the last change that it has made."""

    def __init__(
        self,
        name: str,
        control: WorkerControl,
        ledger: LedgerCalls,
        holds: Callable[[str, int | None, SequenceKey], bool],
    ) -> None:
        """`holds`: whether this replica has a sequence, by its model, version and name."""
        self.name = name
        self.number = 0
        self._holds = holds
        self._control = control
        self._ledger = ledger
        self._one = asyncio.Lock()

    async def receive(self, data: bytes) -> bytes:
        """A call of another replica, or of the ledger; nothing for one of its own."""
        sender, method, arguments = pickles.loads(data)
        if sender == self.name or not self._control.answers(method):
            return b""
        if method == "holds":
            return pickles.dumps(self.name if self._holds(*arguments) else "")
        if method == "make":
            return pickles.dumps(await self._make(*arguments))
        if method == "knows":
            return pickles.dumps(await self._knows())
        if method == "unmake":
            return pickles.dumps(await self._unmake(*arguments))
        return pickles.dumps(await self._control.call(method, arguments))

    async def _make(self, number: int, change: ServerChange, mark: str) -> ModserveError | None:
        """Make a change; return the error that prevents it."""
        async with self._one:
            if number <= self.number:  # of a ledger that knows less
                return unavailable("another change was made meanwhile: repeat this one")
            try:
                await self._catch_up(number - 1)
            except LedgerLostError:
                return unavailable("Server not ready")
            failure: ModserveError | None = await self._control.call("change", (change, mark))
            if failure is None:
                self.number = number
            return failure

    async def _knows(self) -> tuple[int, list[bytes]]:
        """Return the number of the last change, and the changes that hold."""
        async with self._one:
            state, _ = await self._control.call("state", ())
            return self.number, [pickles.dumps(each) for each in state]

    async def _unmake(self, number: int, change: ServerChange, mark: str) -> ModserveError | None:
        async with self._one:
            if self.number != number:
                return None
            failure: ModserveError | None = await self._control.call("undo", (change, mark))
            self.number = number - 1
            return failure

    async def catch_up(self) -> None:
        """Make the changes that have passed this replica by. A ledger that knows less than it gets what it knows."""
        async with self._one:
            await self._catch_up(None)

    async def _catch_up(self, needed: int | None) -> None:
        if needed is not None and self.number >= needed:
            return
        number, changes = await self._ledger.since(self.number)
        if number < self.number:
            state, _ = await self._control.call("state", ())
            await self._ledger.restore(self.number, [pickles.dumps(each) for each in state])
            return
        for data in changes:
            change = pickles.loads(data)
            failure = await self._control.call("change", (change, ""))
            if failure is not None:
                _log.error("this replica cannot repeat a change of the others: %s: %s", change, failure.message)
        self.number = number

    async def start(self) -> None:
        """Catch up before the first call of a client, with the next ledger where one was lost."""
        while True:
            try:
                return await self.catch_up()
            except LedgerLostError:
                await asyncio.sleep(_RETRY)

    async def follow(self) -> None:
        """Catch up again and again, for changes that were made while Ray did not know this replica yet."""
        while True:
            await asyncio.sleep(_PAUSE)
            try:
                with suppress(LedgerLostError):
                    await self.catch_up()
            except Exception as error:  # the next time may go better
                count_failure("replicas", error)

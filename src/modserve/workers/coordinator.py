"""A change is made in all workers or in none, one change at a time.

The coordinator records each change before it begins. If its worker dies in the middle of a change, the record remains,
and the next coordinator, in the replacement or in any other worker, first undoes that change.
"""

import asyncio
import logging
import pickle
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from modserve.core.errors import ModserveError, unavailable
from modserve.routing.router import RouteRollback

from . import pickles
from .identity import WorkerIdentity
from .journal import ServerChange
from .lock import FleetLock
from .peers import PeerDiedError, PeerLostError, Peers

_log = logging.getLogger(__name__)


class Coordinator:
    """Makes the changes that come in at one worker in all of them."""

    def __init__(self, identity: WorkerIdentity, peers: Peers) -> None:
        self._identity = identity
        self._peers = peers
        self._lock = FleetLock(identity.lock)
        self._tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        self._lock.close()

    @asynccontextmanager
    async def lock(self) -> AsyncGenerator[None]:
        """Lock out all other changes and complete any half-made one."""
        async with self._lock.hold():
            await self._settle()
            yield

    async def change(self, change: ServerChange) -> None:
        """Make a change in each worker in turn. Raises the failure of the first one that refuses.

        After a failure, or if one dies of it, those before it go back to what they were; one that cannot is replaced by
        a new one, which gets the state of the others. A worker that is not there gets the state when it starts. What
        has begun is brought to an end, also without the caller. Raises PeerLostError if no worker is there, this
        one included.
        """
        task = asyncio.ensure_future(self._change(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _change(self, change: ServerChange) -> None:
        async with self.lock():
            number = uuid.uuid4().hex
            self._identity.note.write_bytes(pickles.dumps((number, change)))
            try:
                await self._in_all(number, change)
            finally:
                self._identity.note.unlink(missing_ok=True)

    async def _in_all(self, number: str, change: ServerChange) -> None:
        changed: list[int] = []
        for index in range(self._identity.count):
            try:
                await self._peers.call(index, "change", change, number)
            except PeerDiedError:
                died = unavailable(f"worker {index} died during this change and is being replaced")
                raise await self._bring_back(died, index, changed, number, change) from None
            except PeerLostError:
                continue
            except ModserveError as error:
                raise await self._bring_back(error, index, changed, number, change) from None
            changed.append(index)
        if not changed:
            raise PeerLostError("no worker is available")

    async def _bring_back(
        self, failure: ModserveError, failed: int, changed: list[int], number: str, change: ServerChange
    ) -> ModserveError:
        """Bring the workers that have `changed` back. The failure, which says what has become of them."""
        if not changed:
            return failure
        stuck = await self._undo(reversed(changed), number, change)
        numbers = ", ".join(map(str, stuck))
        rest = f", and undone, except in workers that are restarting: {numbers}" if stuck else ", and undone"
        note = f" (refused by worker {failed}, done before by {len(changed)} of {self._identity.count} workers{rest})"
        return ModserveError(failure.code, failure.message.rstrip("\n") + note)

    async def _undo(self, indexes: Iterable[int], number: str, change: ServerChange) -> list[int]:
        """Undo a change where it was made. The workers that cannot; they end, and others take their places."""
        stuck = []
        for index in indexes:
            try:
                try:
                    await self._peers.call(index, "undo", change, number)
                except ModserveError as error:
                    stuck.append(index)
                    _log.error("worker %d cannot undo %s and is being replaced: %s", index, change, error.message)
                    await self._peers.call(index, "leave")
            except PeerLostError:
                continue
        return stuck

    async def _settle(self) -> None:
        """Undo what a worker had begun that died in the middle of it."""
        try:
            number, change = pickles.loads(self._identity.note.read_bytes())
        except FileNotFoundError:
            return
        except (EOFError, pickle.UnpicklingError):  # it died while it wrote the note, so that nothing has begun
            self._identity.note.unlink()
            return
        _log.warning("a worker died in the middle of a change, which is now undone: %s", change)
        await self._undo(range(self._identity.count), number, change)
        self._identity.note.unlink(missing_ok=True)

    async def state(self) -> tuple[list[ServerChange], list[RouteRollback]]:
        """Return the changes that another serving worker has made since its start; nothing if there is none."""
        for index in self._identity.others:
            try:
                status = await self._peers.status(index)
                if status is not None and status.caught_up:
                    changes, rollbacks = await self._peers.call(index, "state")
                    return changes, rollbacks
            except PeerLostError:
                continue
        return [], []

"""A change is made in all workers or in none, one change at a time.

What is about to happen is written down before it begins. A worker that dies in the middle of a change leaves that note,
and whoever changes something next, the worker in its place included, first undoes what the dead one had begun.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson

from modserve.core.errors import Code

from . import private
from .client import Headers, PeerDiedError, PeerGoneError, Reply
from .fleet import Fleet
from .journal import RPC_PREFIX, Change
from .lock import FleetLock
from .place import Place

_log = logging.getLogger(__name__)


class Changing:
    """What one worker does to all of them."""

    def __init__(self, place: Place, fleet: Fleet) -> None:
        self._place = place
        self._fleet = fleet
        self._lock = FleetLock(place.lock)
        self._tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        self._lock.close()

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Nobody else changes anything meanwhile, and nothing is left half changed."""
        async with self._lock.held():
            await self._settle()
            yield

    async def change(self, target: str, body: bytes, headers: Headers = ()) -> Reply:
        """POST to each worker in turn. The response of the first, or of one that failed.

        After a failure, or if one dies of it, those before it go back to what they were; one that cannot is replaced by
        a new one, which gets the state of the others. A worker that is not there gets the state when it starts. What
        has begun is brought to an end, whatever becomes of the caller. Raises PeerGoneError if no worker is there, this
        one included.
        """
        task = asyncio.ensure_future(self._change(target, body, headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _change(self, target: str, body: bytes, headers: Headers) -> Reply:
        async with self.locked():
            number = uuid.uuid4().hex
            self._place.note.write_bytes(orjson.dumps([number, *private.coded([Change(target, body)])]))
            try:
                return await self._in_all(number, target, body, headers)
            finally:
                self._place.note.unlink(missing_ok=True)

    async def _in_all(self, number: str, target: str, body: bytes, headers: Headers) -> Reply:
        changed: list[int] = []
        first: Reply | None = None
        for index in range(self._place.count):
            try:
                reply = await self._fleet.call(index, "POST", target, body, ((private.CHANGE, number), *headers))
            except PeerDiedError:
                reply = _died(index, target)
            except PeerGoneError:
                continue
            if not reply.ok:
                return await self._refused(reply, index, changed, number, Change(target, body))
            first = first or reply
            changed.append(index)
        if first is None:
            raise PeerGoneError("no worker is there")
        return first

    async def _refused(self, failure: Reply, failed: int, changed: Sequence[int], number: str, change: Change) -> Reply:
        """Bring the workers that have `changed` back. The failure, which says what has become of them."""
        if not changed:
            return failure
        stuck = await self._undo(reversed(changed), number, change)
        numbers = ", ".join(map(str, stuck))
        rest = f", and undone, but for workers that start anew: {numbers}" if stuck else ", and undone"
        return with_note(
            failure,
            f" (refused by worker {failed}, done before by {len(changed)} of {self._place.count} workers{rest})",
        )

    async def _undo(self, indexes: Iterable[int], number: str, change: Change) -> list[int]:
        """Undo a change where it was made. The workers that cannot; they end, and others take their places."""
        stuck = []
        for index in indexes:
            try:
                undo = await self._fleet.call(
                    index, "POST", private.UNDO + change.target, change.body, ((private.CHANGE, number),)
                )
                for each in private.changes_of(undo.body):
                    reply = await self._fleet.call(index, "POST", each.target, each.body)
                    if not reply.ok:
                        stuck.append(index)
                        text = "worker %d cannot undo %s, and is replaced: %s"
                        _log.error(text, index, change.target, text_of(reply))
                        await self._fleet.call(index, "POST", private.LEAVE)
                        break
            except PeerGoneError:
                continue
        return stuck

    async def _settle(self) -> None:
        """Undo what a worker had begun that died in the middle of it."""
        try:
            number, coded = orjson.loads(self._place.note.read_bytes())
        except FileNotFoundError:
            return
        except ValueError:  # it died while it wrote the note, so that nothing has begun
            self._place.note.unlink()
            return
        (change,) = private.decoded([coded])
        _log.warning("a worker has died in the middle of a change, which is undone: %s", change.target)
        await self._undo(range(self._place.count), number, change)
        self._place.note.unlink(missing_ok=True)

    async def state(self) -> Sequence[Change] | None:
        """The changes that some other worker has; None if there is none that serves."""
        for index in self._place.others:
            try:
                status = await self._fleet.status(index)
                if status is not None and status.caught_up:
                    return private.changes_of((await self._fleet.call(index, "GET", private.STATE)).body)
            except PeerGoneError:
                continue
        return None


def _died(index: int, target: str) -> Reply:
    """What is said of a worker that has died in the middle of a change."""
    text = f"worker {index} has died while it did this, and another takes its place"
    if target.startswith(RPC_PREFIX):
        return Reply(503, {private.CODE: Code.UNAVAILABLE.name}, text.encode())
    return Reply(503, {}, orjson.dumps({"error": text}))


def text_of(reply: Reply) -> str:
    """What a failed response says."""
    if private.CODE in reply.headers:
        return reply.body.decode("utf-8", "surrogatepass")
    try:
        return str(orjson.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        return reply.body.decode("latin-1")


def with_note(reply: Reply, note: str) -> Reply:
    """A failed response that says more."""
    text = text_of(reply).rstrip("\n") + note
    if private.CODE in reply.headers:
        return reply._replace(body=text.encode("utf-8", "surrogatepass"))
    return reply._replace(body=orjson.dumps({"error": text}))

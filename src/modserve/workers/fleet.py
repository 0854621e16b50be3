"""All workers as one server: a change is made in all of them or in none, and what each knows is gathered."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from modserve.core.lifecycle import State

from . import client, pages, private
from .client import Headers, PeerGoneError, Reply
from .journal import Change
from .lock import FleetLock
from .place import Place

_log = logging.getLogger(__name__)

_PATIENCE = 2.0
"""Seconds that a worker may take to say how it is. One that takes longer is left out."""

_LONG_PATIENCE = 20.0
"""The same for what it knows."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Status:
    """What a worker says of itself."""

    ready: bool
    phase: str
    caught_up: bool
    restarts: int
    reasons: Sequence[Sequence[Any]]


class Fleet:
    """The workers, as one of them sees them: itself among the others, by its own socket."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = FleetLock(place.lock)
        self._tasks: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        self._lock.close()

    async def call(self, index: int, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        """Raises PeerGoneError."""
        return await client.call(self._place.control_socket(index), method, target, body, headers)

    async def own(self, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        return await self.call(self._place.index, method, target, body, headers)

    # Changes

    async def change(self, target: str, body: bytes, headers: Headers = ()) -> Reply:
        """POST to each worker in turn, while no other change is made. The response of the first, or of one that failed.

        After a failure, those before it go back to what they were. A worker that is not there gets the state when it
        starts. What has begun is brought to an end, whatever becomes of the caller. Raises PeerGoneError if no worker
        is there, this one included.
        """
        return await self._to_the_end(self._change(target, body, headers))

    async def _change(self, target: str, body: bytes, headers: Headers) -> Reply:
        async with self._lock.held():
            changed: list[int] = []
            first: Reply | None = None
            for index in range(self._place.count):
                try:
                    reply = await self.call(index, "POST", target, body, headers)
                except PeerGoneError:
                    continue
                if not reply.ok:
                    return await self._undone(reply, index, changed, target, body)
                first = first or reply
                changed.append(index)
            if first is None:
                raise PeerGoneError("no worker is there")
            return first

    async def _undone(self, failure: Reply, failed: int, changed: Sequence[int], target: str, body: bytes) -> Reply:
        """Bring the workers that have `changed` back. The failure, which says what has become of them."""
        if not changed:
            return failure
        stuck = []
        for index in reversed(changed):
            try:
                undo = await self.call(index, "POST", private.UNDO + target, body)
                for change in private.changes_of(undo.body):
                    reply = await self.call(index, "POST", change.target, change.body)
                    if not reply.ok:
                        stuck.append(index)
                        _log.error("worker %d cannot undo %s: %s", index, target, text_of(reply))
            except PeerGoneError:
                continue
        rest = f"; workers that have it nevertheless: {', '.join(map(str, stuck))}" if stuck else ", and undone"
        note = f" (refused by worker {failed}, done before by {len(changed)} of {self._place.count} workers{rest})"
        return with_note(failure, note)

    async def state(self) -> Sequence[Change] | None:
        """The changes that some other worker has; None if there is none that serves."""
        for index in self._place.others:
            try:
                status = await self._status(index)
                if status is not None and status.caught_up:
                    return private.changes_of((await self.call(index, "GET", private.STATE)).body)
            except PeerGoneError:
                continue
        return None

    def locked(self) -> Any:
        """A context in which nobody else changes anything."""
        return self._lock.held()

    # What they know

    async def gather(self, method: str, target: str, body: bytes = b"") -> dict[int, Reply]:
        """The responses of all workers that serve, by their numbers."""
        statuses = await self.statuses()
        indexes = [index for index, status in statuses.items() if status is not None and status.caught_up]
        replies = await asyncio.gather(
            *(self._in_time(self.call(index, method, target, body), _LONG_PATIENCE) for index in indexes)
        )
        return {index: reply for index, reply in zip(indexes, replies, strict=True) if reply is not None}

    async def statuses(self) -> dict[int, Status | None]:
        """What each worker says of itself; None for one that is not there."""
        answers = await asyncio.gather(*map(self._status, range(self._place.count)))
        return dict(enumerate(answers))

    async def unready(self) -> list[Mapping[str, str]]:
        """Why the server is not ready, in the form of the readiness response; empty if it is.

        A worker counts from its first start on, until it dies: others serve while another takes its place.
        """
        reasons: list[Mapping[str, str]] = []
        for index, status in (await self.statuses()).items():
            if status is None:
                if not self._place.mark(index).exists():
                    reasons.append(_reason(f"worker {index}", None, State.LOADING.value, "it is starting"))
            elif status.caught_up and not status.ready and status.phase != "stopping":
                reasons += [
                    _reason(name, version, state, f"worker {index}: {reason}")
                    for name, version, state, reason in status.reasons
                ] or [_reason(f"worker {index}", None, State.LOADING.value, status.phase)]
        return reasons

    async def page(self) -> bytes:
        """The metrics of all workers."""
        statuses = await self.statuses()
        replies = await self.gather("GET", private.PAGE)
        restarts = sum(status.restarts for status in statuses.values() if status is not None)
        page = await asyncio.to_thread(pages.merged, [reply.body for reply in replies.values()])
        return pages.with_workers(page, len(replies), restarts)

    async def _status(self, index: int) -> Status | None:
        reply = await self._in_time(self.call(index, "GET", private.STATUS))
        return None if reply is None else Status(**orjson.loads(reply.body))

    async def _in_time(self, calling: Coroutine[Any, Any, Reply], seconds: float = _PATIENCE) -> Reply | None:
        """None for a worker that is not there, or does not respond."""
        try:
            async with asyncio.timeout(seconds):
                return await calling
        except (PeerGoneError, TimeoutError):
            return None

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _reason(name: str, version: object, state: str, reason: str) -> Mapping[str, str]:
    return {"name": name, "version": "" if version is None else str(version), "state": state, "reason": reason}


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
    text = text_of(reply) + note
    if private.CODE in reply.headers:
        return reply._replace(body=text.encode("utf-8", "surrogatepass"))
    return reply._replace(body=orjson.dumps({"error": text}))

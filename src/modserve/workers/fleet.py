"""All workers as one server: what each of them knows is gathered."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from modserve.core.lifecycle import State

from . import client, pages, private
from .client import Headers, PeerGoneError, Reply
from .place import Place

_PATIENCE = 2.0
"""Seconds that a worker may take to say how it is. One that takes longer is left out."""

_LONG_PATIENCE = 20.0
"""The same for what it knows."""


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

    async def call(self, index: int, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        """Raises PeerGoneError."""
        return await client.call(self._place.control_socket(index), method, target, body, headers)

    async def own(self, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        return await self.call(self._place.index, method, target, body, headers)

    async def tell(self, target: str, body: bytes) -> None:
        """POST to each of the others that is there."""
        for index in self._place.others:
            with suppress(PeerGoneError):
                await self.call(index, "POST", target, body)

    # What they know

    async def gather(self, method: str, target: str, body: bytes = b"") -> dict[int, Reply]:
        """The responses of all workers that serve, by their numbers."""
        statuses = await self.statuses()
        indexes = [index for index, status in statuses.items() if status is not None and status.caught_up]
        replies = await asyncio.gather(
            *(self._in_time(self.call(index, method, target, body), _LONG_PATIENCE) for index in indexes)
        )
        return {index: reply for index, reply in zip(indexes, replies, strict=True) if reply is not None}

    async def others(self, method: str, target: str) -> list[Reply]:
        """The responses of all other workers that are there and respond soon, whatever they say of themselves."""
        replies = await asyncio.gather(
            *(self._in_time(self.call(index, method, target)) for index in self._place.others)
        )
        return [reply for reply in replies if reply is not None and reply.ok]

    async def statuses(self) -> dict[int, Status | None]:
        """What each worker says of itself; None for one that is not there."""
        answers = await asyncio.gather(*map(self.status, range(self._place.count)))
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

    async def page(self, openmetrics: bool = False) -> bytes:
        """The metrics of all workers."""
        statuses = await self.statuses()
        replies = await self.gather("GET", private.OPENMETRICS_PAGE if openmetrics else private.PAGE)
        restarts = sum(status.restarts for status in statuses.values() if status is not None)
        page = await asyncio.to_thread(pages.merged, [reply.body for reply in replies.values()])
        return pages.with_workers(page, len(replies), restarts, openmetrics)

    async def status(self, index: int) -> Status | None:
        reply = await self._in_time(self.call(index, "GET", private.STATUS))
        return None if reply is None else Status(**orjson.loads(reply.body))

    async def _in_time(self, calling: Coroutine[Any, Any, Reply], seconds: float = _PATIENCE) -> Reply | None:
        """None for a worker that is not there, or does not respond."""
        try:
            async with asyncio.timeout(seconds):
                return await calling
        except (PeerGoneError, TimeoutError):
            return None


def _reason(name: str, version: object, state: str, reason: str) -> Mapping[str, str]:
    return {"name": name, "version": "" if version is None else str(version), "state": state, "reason": reason}

"""The other workers, from the perspective of one of them.

Calls between workers: HTTP/1.1 over a worker's Unix-domain socket, one connection for each call.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from modserve.core.errors import ModserveError, unavailable
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.server import DrainReport

from . import pickles
from .identity import WorkerIdentity

CALL = "/worker/call"
"""Path of calls. A request has the method's name and arguments; a response has the returned value or raised error."""

GONE = 410
"""Status of a worker that is about to end, and takes part in nothing any more."""


class PeerLostError(Exception):
    """The worker has died, is about to end or has not started."""


class PeerDiedError(PeerLostError):
    """The worker has died during the call, which it may have begun."""


async def call(path: str, method: str, *arguments: object) -> Any:
    """Call the worker that listens at `path`.

    Raises its ModserveError, or PeerLostError, including its subclass PeerDiedError.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise PeerLostError(f"{path}: {error.strerror}") from None
    try:
        body = pickles.dumps((method, arguments))
        head = f"POST {CALL} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.writelines((head.encode(), body))
        await writer.drain()
        response = await reader.read(-1)
    except OSError as error:
        raise PeerDiedError(f"{path}: {error.strerror}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    outcome = pickles.loads(content(response))
    if isinstance(outcome, ModserveError):
        raise outcome
    return outcome


def content(response: bytes) -> bytes:
    """Return the body of a complete response. Raises PeerDiedError for an incomplete one, PeerLostError for status
    `GONE`.

    Raises UNAVAILABLE for a call that the worker refused, for example for lack of memory.
    """
    head, separator, body = response.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").lower().split("\r\n")
    lengths = [int(value) for name, _, value in (line.partition(":") for line in lines) if name == "content-length"]
    if not separator or len(body) < sum(lengths):
        raise PeerDiedError("the worker died before its response was complete")
    status = int(status_line.split(" ")[1])
    if status == GONE:
        raise PeerLostError("the worker is shutting down")
    if status != 200:
        raise unavailable(f"a worker refused another worker's call with status {status}: {body.decode('latin-1')}")
    return body


_PATIENCE = 2.0
"""Seconds for a worker to report its status. A slower one is left out."""

_LONG_PATIENCE = 20.0
"""Seconds for a worker to report its data."""


class WorkerStatus(NamedTuple):
    """Status of a worker, by its own report."""

    ready: bool
    phase: str
    caught_up: bool
    reasons: list[IndexEntry]


class Peers:
    """Calls of the methods of `WorkerControl` in other workers."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self._identity = identity

    async def call(self, index: int, method: str, *arguments: object) -> Any:
        """Call a worker, possibly this one. Raises PeerLostError and the worker's ModserveError."""
        return await call(self._identity.control_socket(index), method, *arguments)

    async def tell(self, method: str, *arguments: object) -> None:
        """Call all other available workers."""
        for index in self._identity.others:
            with suppress(PeerLostError):
                await self.call(index, method, *arguments)

    async def ask(self, method: str, *arguments: object) -> dict[int, Any]:
        """Return the results, or ModserveErrors, of the other serving workers by their numbers."""
        statuses = await self.statuses()
        serving = [index for index, status in statuses.items() if status is not None and status.caught_up]
        return await self._gather(serving, _LONG_PATIENCE, method, *arguments)

    async def ask_all(self, method: str, *arguments: object) -> dict[int, Any]:
        """Return the results of all other workers that run and respond soon, whatever their status."""
        return await self._gather(self._identity.others, _PATIENCE, method, *arguments)

    async def statuses(self) -> dict[int, WorkerStatus | None]:
        """Return the status of each other worker; None for one that is not running."""
        others = self._identity.others
        return dict(zip(others, await asyncio.gather(*map(self.status, others)), strict=True))

    async def status(self, index: int) -> WorkerStatus | None:
        status = await _in_time(self.call(index, "status"), _PATIENCE)
        return None if status is None else WorkerStatus(*status)

    async def unready(self) -> list[IndexEntry]:
        """Return the other workers' obstacles to the server's readiness.

        A worker counts from its first start until it dies: others serve while it is replaced.
        """
        reasons: list[IndexEntry] = []
        for index, status in (await self.statuses()).items():
            if status is None:
                if not self._identity.mark(index).exists():
                    reasons.append(_reason(index, "it is starting"))
            elif status.caught_up and not status.ready and status.phase != "stopping":
                reasons += [
                    IndexEntry(each.name, each.version, each.state, f"worker {index}: {each.reason}")
                    for each in status.reasons
                ] or [_reason(index, status.phase)]
        return reasons

    async def drain(self) -> list[DrainReport]:
        """Drain all other workers, including those started later, without a time limit."""
        self._identity.draining.touch()
        answers = (await self._gather(self._identity.others, None, "drain")).values()
        return [DrainReport(*answer) for answer in answers if not isinstance(answer, ModserveError)]

    async def _gather(
        self, indexes: list[int], seconds: float | None, method: str, *arguments: object
    ) -> dict[int, Any]:
        outcomes = await asyncio.gather(
            *(_in_time(self.call(index, method, *arguments), seconds) for index in indexes), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ModserveError):
                raise outcome
        return {index: outcome for index, outcome in zip(indexes, outcomes, strict=True) if outcome is not None}


async def _in_time(calling: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Return None for a worker that is missing or does not respond."""
    try:
        async with asyncio.timeout(seconds):
            return await calling
    except (PeerLostError, TimeoutError):
        return None


def _reason(index: int, text: str) -> IndexEntry:
    return IndexEntry(f"worker {index}", None, LifecycleState.LOADING, text)

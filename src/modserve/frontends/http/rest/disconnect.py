"""Clients that go away before they have their response."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from modserve.core.errors import cancelled

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; it is cancelled when the client of `request`, whose body was read, goes away.

    Raises CANCELLED then, which nobody reads.
    """
    outcome = await _outcome_unless_disconnected(request, work)
    if not isinstance(outcome, _Failure):
        return outcome
    try:
        raise outcome.error
    finally:  # the error's traceback has this frame, which must not have the error
        del outcome


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


async def _outcome_unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> "T | _Failure":
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(_outcome(work))
        watching = tasks.create_task(_cancel_when_disconnected(request, running))
        running.add_done_callback(lambda _: watching.cancel())
    return _Failure(cancelled()) if running.cancelled() else running.result()


async def _outcome(work: Coroutine[Any, Any, T]) -> T | _Failure:
    """Errors as values, since a group would wrap them."""
    try:
        return await work
    except Exception as error:
        return _Failure(error)


async def _cancel_when_disconnected(request: Request, running: "asyncio.Task[Any]") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    running.cancel()

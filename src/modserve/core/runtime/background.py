"""Tasks that outlive the call that began them, and their parent, which ends them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from modserve.core.errors import ModserveError

from .failures import count_failure, register_task


class Background:
    """Parent of some tasks: it logs and counts their failures, as `name`, and waits for them at the end.

    An `asyncio.TaskGroup` would not do: it must be left by the task that entered it, while loads, unloads and the end
    of a server come from different tasks, and it cancels all tasks when one of them fails.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        register_task(name)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ModserveError):  # which the caller hears, if it is still there
            count_failure(self._name, error)

    async def idle(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def settle(self) -> None:
        """Wait for all tasks; if this call is cancelled, cancel them and wait."""
        try:
            await self.idle()
        except asyncio.CancelledError:
            await self.cancel()
            raise

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

"""An instance of a Python model on the server's event loop, for light transforms that the user trusts.

A plain ``execute`` runs where the server starts it, and every request of the server waits meanwhile. An ``async def
execute`` is a task of the loop, with others of the same instance at the same time.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from modserve.backends.api import EngineRequest, InstanceHandle, InstanceSpec, ModelSource, RequestsDone
from modserve.core.errors import invalid

from .local import LocalInstance
from .options import EXECUTION_MODE
from .worker.errors import TritonModelException

_AT_A_TIME = 64
"""Executions of an ``async def execute``."""
_LONGEST_END_S = 10.0
"""Maximum time, in seconds, for cancelled tasks to end."""


class InlineInstance(LocalInstance):
    """Implementation of `backends.api.AsyncRequestInstance`."""

    def __init__(self, label: str, source: ModelSource, load: Mapping[str, Any]) -> None:
        self.max_in_flight = 1
        self._thread = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = threading.Event()
        self._idle.set()
        super().__init__(label, source, load, self._refuse_to_wait)

    def initialize(self, label: str, spec: InstanceSpec, arguments: Mapping[str, str]) -> None:
        if spec.config.decoupled:
            raise invalid(
                f"model '{spec.config.name}' is decoupled, but its '{EXECUTION_MODE}' is 'inline', where a model "
                "cannot wait for slow readers of its responses; expected 'process' or 'thread'"
            )
        super().initialize(label, spec, arguments)
        if self._model.is_async:
            self.max_in_flight = _AT_A_TIME

    async def _check_ready(self) -> bool:
        if self._model.is_ready_is_async:
            return await self._model.is_ready_async()
        return await super()._check_ready()

    def attach(self, handle: InstanceHandle) -> None:
        self._loop = handle.loop
        self._thread = threading.get_ident()

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        if self._model.is_async:
            task = self._loop.create_task(self._run(requests, done))
            self._tasks.add(task)
            task.add_done_callback(self._on_task_end)
        else:
            done(self._execute(requests))

    async def _run(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        try:
            finals = await self._execute_async(requests)
        except BaseException as error:
            done(error)
        else:
            done(finals)

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()

    def detach(self) -> None:
        self._model.stopping = True
        if self._tasks:
            self._idle.clear()
            for task in self._tasks:
                task.cancel()

    def close(self) -> None:
        if threading.get_ident() != self._thread:
            self._idle.wait(_LONGEST_END_S)
        super().close()

    def _refuse_to_wait(self, operation: str) -> None:
        """Raise `TritonModelException` on the event loop's thread, where no result would ever come."""
        if threading.get_ident() == self._thread:
            raise TritonModelException(
                f"{operation} would block the whole server, because the model runs on its "
                f"event loop ('{EXECUTION_MODE}' is 'inline'): {_WAYS.get(operation, _OTHER_WAY)}"
            )


_WAYS = {"exec()": "expected 'await request.async_exec()' in an 'async def execute', or the mode 'thread' or 'process'"}
_OTHER_WAY = "expected the mode 'thread' or 'process'"

"""An instance of a Python model in a thread of the server, for trusted, light models."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from modserve.backends.api import EngineRequest, FinalResponse, InstanceSpec

from .local import LocalInstance

_AHEAD = 3
"""Executions that wait at the thread while they are short: it need not sleep, and give up the lock, for each."""


class PythonThreadInstance(LocalInstance):
    """Implementation of `backends.api.RequestInstance`."""

    max_ahead = _AHEAD
    _thread: "_LoopThread | None" = None

    def initialize(self, label: str, spec: InstanceSpec, arguments: Mapping[str, str]) -> None:
        super().initialize(label, spec, arguments)
        if self._model.is_async and self._decoupled:
            self._thread = _LoopThread(label)

    def execute_requests(self, requests: Sequence[EngineRequest]) -> Sequence[FinalResponse] | None:
        if self._thread is not None:
            self._thread.start(self._execute_async(requests))
            return None
        return self._execute(requests)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._thread is not None:
                self._thread.stop()


class _LoopThread:
    """An event loop of the model's own, for coroutines that go on after ``execute`` has returned."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

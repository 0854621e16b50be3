"""Readiness checks of a model, by its instances with `check_ready`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from modserve.backends.api import Executor
from modserve.core.version import ModelId

_log = logging.getLogger(__name__)

LIMIT_SECONDS = 5.0
"""Time limit, as in Triton; an instance that takes longer counts as not ready."""


class _Reason(NamedTuple):
    """Reason that a model is not ready. Its text may vary between checks without another log line."""

    instance: str
    kind: str
    text: str


class ReadinessCheck:
    """Readiness check of one model version, on the event loop's thread. Concurrent callers share one check.

    `executors`: available instances by name. An instance with an overdue check is not asked again before that has
    ended.
    """

    def __init__(
        self,
        model: ModelId,
        executors: Callable[[], Sequence[tuple[str, Executor]]],
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._model = model
        self._executors = executors
        self._limit_seconds = limit_seconds
        self._running: asyncio.Task[bool] | None = None
        self._under_way: dict[str, asyncio.Task[bool]] = {}
        """Pending checks of instances, by name."""
        self._last: _Reason | None = None

    def __repr__(self) -> str:
        return f"ReadinessCheck({self._model.name}, {len(self._under_way)} under way)"

    async def check(self) -> bool:
        """Return whether every instance with a check reports in time that it is ready."""
        if self._running is None:
            if not any(hasattr(executor, "check_ready") for _, executor in self._executors()):
                return True
            self._running = asyncio.create_task(self._check())
            self._running.add_done_callback(self._over)
        running = self._running
        await asyncio.wait((running,))  # cancelling a caller does not cancel the check
        return not running.cancelled() and running.result()

    def close(self) -> None:
        """Cancel pending checks; waiters get the answer that the model is not ready."""
        for task in (self._running, *self._under_way.values()):
            if task is not None:
                task.cancel()

    def _over(self, task: asyncio.Task[bool]) -> None:
        self._running = None

    async def _check(self) -> bool:
        reasons = []
        late = dict(self._under_way)
        for name, executor in self._executors():
            if name not in late and (ask := getattr(executor, "check_ready", None)) is not None:
                self._under_way[name] = task = asyncio.create_task(_ask(ask))
                task.add_done_callback(partial(self._forget, name))
        tasks = {name: task for name, task in self._under_way.items() if name not in late}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._limit_seconds)
        for name in late:
            reasons.append(_Reason(name, "late", f"has not ended an earlier check within {self._limit_seconds:g} s"))
        for name, task in tasks.items():
            reason = self._reason(name, task)
            if reason is not None:
                reasons.append(reason)
        self._tell(min(reasons, default=None))
        return not reasons

    def _reason(self, name: str, task: asyncio.Task[bool]) -> _Reason | None:
        if not task.done():
            task.cancel()
            return _Reason(name, "late", f"has not reported within {self._limit_seconds:g} s whether it is ready")
        if task.cancelled():
            return _Reason(name, "cancelled", "was closed meanwhile")
        if (error := task.exception()) is not None:
            return _Reason(
                name, type(error).__name__, f"failed to report whether it is: {type(error).__name__}: {error}"
            )
        return None if task.result() else _Reason(name, "no", "says so")

    def _forget(self, name: str, task: asyncio.Task[bool]) -> None:
        del self._under_way[name]
        if not task.cancelled():
            task.exception()  # retrieved even without a waiter, to avoid asyncio's warning

    def _tell(self, reason: _Reason | None) -> None:
        last, self._last = self._last, reason
        if (last and last[:2]) == (reason and reason[:2]):
            return
        name, version = self._model
        if reason is None:
            _log.info("model '%s', version %d: its instances say that it is ready again", name, version)
        else:
            text = "model '%s', version %d: not ready: instance '%s' %s"
            _log.warning(text, name, version, reason.instance, reason.text)


async def _ask(check: Callable[[], Awaitable[object]]) -> bool:
    """Ask an instance. Raises the engine's errors, and TypeError if the answer is no bool."""
    ready = await check()
    if not isinstance(ready, bool):
        raise TypeError(f"'check_ready' returned {ready!r}, expected True or False")
    return ready

"""Failure counts of background work, which has no caller to report to."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    import asyncio  # the supervisor is small

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")

failures: dict[str, int] = {}
"""Failures in this process, by the task's name."""


def register_task(task: str) -> None:
    """Create the count of the task with this name before it fails."""
    failures.setdefault(task, 0)


def count_failure(task: str, error: BaseException | None = None) -> None:
    """Count a failure of the task with this name, and log an unexpected `error` now and then. On any thread."""
    count = failures[task] = failures.get(task, 0) + 1
    if error is not None and count & (count - 1) == 0:  # the first, second, fourth, eighth, …
        text = "the background task '%s' failed unexpectedly, and the server goes on; failure %d: this is a bug"
        _log.error(text, task, count, exc_info=error)


def count_unforeseen(loop: "asyncio.AbstractEventLoop") -> None:
    """Count what callbacks of the loop and threads of the process raise that nothing else has handled."""
    register_task("event_loop")
    register_task("threads")
    log_thread_failure = threading.excepthook

    def of_loop(loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
        count_failure("event_loop")
        loop.default_exception_handler(context)

    def of_thread(failure: threading.ExceptHookArgs) -> None:
        count_failure("threads")
        log_thread_failure(failure)

    loop.set_exception_handler(of_loop)
    threading.excepthook = of_thread


def guard(task: str, work: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap `work` for a one-shot timer or a thread: an exception is counted, logged, and goes no further."""
    register_task(task)

    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            count_failure(task, error)

    return run

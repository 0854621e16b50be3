"""Counts of failures of background work, which is tried again after each."""

import logging

_log = logging.getLogger(__name__)

failures: dict[str, int] = {}
"""Failures in this process, by the task's name."""


def register_task(task: str) -> None:
    """Have a count for the task with this name before it fails."""
    failures.setdefault(task, 0)


def count_failure(task: str, error: BaseException | None = None) -> None:
    """Count a failure of the task with this name, and log an unexpected `error` now and then. On any thread."""
    count = failures[task] = failures.get(task, 0) + 1
    if error is not None and count & (count - 1) == 0:  # the first, second, fourth, eighth, …
        text = "the background task '%s' failed unexpectedly and is tried again, failure %d: this is a bug"
        _log.error(text, task, count, exc_info=error)

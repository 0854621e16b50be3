"""What installing a log changes is put back."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def kept_logging() -> Iterator[None]:
    """Handlers and levels are afterwards as they were before."""
    root, ours = logging.getLogger(), logging.getLogger("modserve")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """For tests that install a log: import it, and use it by its name or with `usefixtures`."""
    with kept_logging():
        yield


def flush_logs() -> None:
    """Wait until the lines so far are written, and those that writing them has caused."""
    for _ in range(2):
        for handler in logging.getLogger().handlers:
            handler.flush()

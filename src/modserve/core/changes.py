"""Who wants to know when something changes. Told on the event loop's thread, without saying what has changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Changes:
    """Listeners, told one after the other. They must be quick and not raise: set an event, and look later."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    def notify(self) -> None:
        for listener in list(self._listeners):
            listener()

    @contextmanager
    def told(self, listener: Callable[[], None]) -> Iterator[None]:
        """`listener` is told of what changes while the context lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

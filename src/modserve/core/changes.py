"""Change notifications: sent after a model is loaded or unloaded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Changes:
    """Notifier of listeners, one after the other, on the event loop's thread, without details of the change.

    A listener must be quick and must not raise: it sets an event and looks later.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def notify(self) -> None:
        for listener in list(self._listeners):
            listener()

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Notify `listener` while the context lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

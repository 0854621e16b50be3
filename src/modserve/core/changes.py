"""Word that models were loaded or unloaded, for those who look again then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Changes:
    """Notifies its listeners one after the other, on the event loop's thread, without saying what has changed.

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
        """`listener` is notified while the context lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

"""Ctrl-C while a command changes servers: what has begun is finished or undone, and told."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """For a block of the main thread, in which the first Ctrl-C, or a termination signal, is only noted.

    `on_first` is called then. The second raises KeyboardInterrupt.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.happened = False
        self._on_first = on_first
        self._former: list[Any] = []

    def __enter__(self) -> Self:
        self._former = [signal.signal(number, self._handle) for number in _SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in zip(_SIGNALS, self._former, strict=True):
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.happened:
            raise KeyboardInterrupt
        self.happened = True
        self._on_first()

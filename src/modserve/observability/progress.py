"""How far loading has come, for those who wait: nothing where it is quick, else a line from time to time.

On a terminal the line stands below the others, and changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from modserve.core.lifecycle import IndexEntry, State

from .logging import Logs

_log = logging.getLogger("modserve.progress")

FIRST_S: Final = 2.0
"""Nothing is said of what takes less."""

EVERY_S: Final = 5.0
ON_A_TERMINAL_S: Final = 0.5

_BAR: Final = 20


class LoadingProgress:
    """Entered while models load; `index` says what state they are in. For the event loop's thread."""

    def __init__(
        self,
        index: Callable[[], Sequence[IndexEntry]],
        logs: Logs | None,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] | None = None,
    ) -> None:
        self._index = index
        self._logs = logs
        self._clock = clock
        self._call_later = call_later
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._shown = False

    def __enter__(self) -> Self:
        self._began = self._clock()
        self._later(FIRST_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._shown and self._logs is not None:
            self._logs.show("")

    def _later(self, seconds: float) -> None:
        later = self._call_later or asyncio.get_running_loop().call_later
        self._timer = later(seconds, self._say)

    def _say(self) -> None:
        states = [entry.state for entry in self._index()]
        total, ready, failed = len(states), states.count(State.READY), states.count(State.UNAVAILABLE)
        seconds = self._clock() - self._began
        text = progress_text(total, ready, failed, seconds)
        on_terminal = self._logs is not None and self._logs.terminal
        if self._logs is not None and on_terminal:
            done = _BAR * (ready + failed) // total if total else 0
            self._logs.show(f"[{'#' * done}{'.' * (_BAR - done)}] {text}")
            self._shown = True
        else:
            _log.info("%s", text)
        self._later(ON_A_TERMINAL_S if on_terminal else EVERY_S)


def progress_text(total: int, ready: int, failed: int, seconds: float) -> str:
    """What the line says; `seconds` since the beginning."""
    if not total:
        return f"looking for models, {seconds:.0f} s"
    parts = [f"{ready} ready", *([f"{failed} failed"] if failed else [])]
    return f"loading {total} model{'' if total == 1 else 's'}: {', '.join(parts)}, {seconds:.0f} s"

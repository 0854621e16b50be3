"""Shows the progress of loading: a line from time to time, and nothing if loading is quick.

On a terminal the line stands below the others, and changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.runtime.periodic import PeriodicTask

from .logging import Logs

_log = logging.getLogger("modserve.progress")

FIRST_S: Final = 2.0
"""Minimum duration of loads that are reported."""

EVERY_S: Final = 5.0
ON_A_TERMINAL_S: Final = 0.5

_BAR: Final = 20


class ProgressLine:
    """The line itself, and when it is written. `text` gets the seconds since the beginning, and says what is done.

    For the event loop's thread.
    """

    def __init__(
        self,
        text: Callable[[float], tuple[str, float]],
        logs: Logs | None,
        clock: Callable[[], float] = time.monotonic,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._text = text
        self._logs = logs
        self._clock = clock
        self._loop = loop
        self._began = 0.0
        self._task = PeriodicTask("progress", FIRST_S, self._say)
        self._shown = False

    def begin(self) -> None:
        self._began = self._clock()
        self._task.start(self._loop)

    def end(self) -> None:
        self._task.stop()
        if self._shown and self._logs is not None:
            self._logs.show("")
            self._shown = False

    def _say(self) -> float:
        text, share = self._text(self._clock() - self._began)
        on_terminal = self._logs is not None and self._logs.terminal
        if self._logs is not None and on_terminal:
            done = int(_BAR * share)
            self._logs.show(f"[{'#' * done}{'.' * (_BAR - done)}] {text}")
            self._shown = True
        else:
            _log.info("%s", text)
        return ON_A_TERMINAL_S if on_terminal else EVERY_S


class LoadingProgress:
    """Progress of the loads at the start: entered while models load; `index` gives their states."""

    def __init__(
        self,
        index: Callable[[], Sequence[IndexEntry]],
        logs: Logs | None,
        clock: Callable[[], float] = time.monotonic,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._index = index
        self._line = ProgressLine(self._text, logs, clock, loop)

    def __enter__(self) -> Self:
        self._line.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._line.end()

    def _text(self, seconds: float) -> tuple[str, float]:
        states = [entry.state for entry in self._index()]
        total, ready, failed = len(states), states.count(LifecycleState.READY), states.count(LifecycleState.UNAVAILABLE)
        return progress_text(total, ready, failed, seconds), (ready + failed) / max(1, total)


class LaterLoads:
    """Progress of loads that calls and polling begin: implements `core.loading.LoadWatcher`, silent until `start`.

    Concurrent loads share one line, which ends with the last of them. The index would not do here: a version that is
    loaded again stays READY meanwhile.
    """

    def __init__(
        self,
        logs: Logs | None,
        clock: Callable[[], float] = time.monotonic,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._on = False
        self._under_way: set[tuple[str, int]] = set()
        self._ready = self._failed = 0
        self._line = ProgressLine(self._text, logs, clock, loop)

    def start(self) -> None:
        self._on = True

    def begins(self, name: str, version: int) -> None:
        if not self._on:
            return
        if not self._under_way:
            self._ready = self._failed = 0
            self._line.begin()
        self._under_way.add((name, version))

    def ends(self, name: str, version: int, failed: bool) -> None:
        if (name, version) not in self._under_way:
            return  # it began with the start
        self._under_way.discard((name, version))
        self._failed += failed
        self._ready += not failed
        if not self._under_way:
            self._line.end()

    def _text(self, seconds: float) -> tuple[str, float]:
        done = self._ready + self._failed
        total = len(self._under_way) + done
        if total == 1:
            ((name, version),) = self._under_way
            return f"loading model '{name}', version {version}: {seconds:.0f} s", 0
        return progress_text(total, self._ready, self._failed, seconds), done / total


def progress_text(total: int, ready: int, failed: int, seconds: float) -> str:
    """Return the text of the line; `seconds` since the beginning."""
    if not total:
        return f"looking for models, {seconds:.0f} s"
    parts = [f"{ready} ready", *([f"{failed} failed"] if failed else [])]
    return f"loading {total} model{'' if total == 1 else 's'}: {', '.join(parts)}, {seconds:.0f} s"

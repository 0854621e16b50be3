"""What each load adds to the memory of the server, also where several go on at the same time.

The growth of the process between two moments belongs to the loads that were under way between them: to one that was
alone all of it. What several have added together is an estimate: they divide it by what their files have more than they
added alone. Loads whose models turn out to run in processes of their own take no part in that. Since it shows in the
end only, the sizes are known once no load is under way any more.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .sizes import Meter, children, files_of, share_of

_LEAST = 2**20
"""What each model counts with at least where several divide: an engine takes something for a model of any size."""


class MeasuredLoad:
    """A load that is under way, or was."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.elsewhere = 0
        """Bytes of the processes that run the model."""
        self.own = False
        """It has added nothing to this process."""
        self.grown = 0.0
        self.on_measured: Callable[[int], None] | None = None
        """Gets the bytes that the model holds; None for a load that failed."""


class _Span(NamedTuple):
    """By how much the process has grown while some loads were under way."""

    grown: int
    loads: Sequence[MeasuredLoad]


class Growth:
    """Measures all loads of a server. Its methods block, and are for any thread but the event loop's."""

    def __init__(self, meter: Meter | None = None, share: Callable[[int], int] | None = None) -> None:
        self._meter = meter or Meter()
        self._share = share or _with_children
        self._lock = threading.Lock()
        self._under_way: list[MeasuredLoad] = []
        self._ended: list[MeasuredLoad] = []
        self._spans: list[_Span] = []
        self._last = 0

    def begin(self, directory: Path) -> MeasuredLoad:
        """Called before a load of the files in `directory`, for which there must be one call of `end`."""
        load = MeasuredLoad(files_of(directory).size)
        with self._lock:
            self._look()
            self._under_way.append(load)
        return load

    def end(
        self, load: MeasuredLoad, processes: Sequence[int] = (), on_measured: Callable[[int], None] | None = None
    ) -> Callable[[], None]:
        """The load is over; `processes` run the model, if this one does not.

        What is returned gives all sizes that are known by now to the `on_measured` of their loads.
        """
        load.own = bool(processes)
        load.elsewhere = sum(self._share(pid) for pid in processes)
        load.on_measured = on_measured
        with self._lock:
            self._look()
            self._under_way.remove(load)
            self._ended.append(load)
            if self._under_way:
                return _nothing
            spans, ended, self._spans, self._ended = self._spans, self._ended, [], []
        if not self._last:
            return _nothing  # the system does not say
        _divide(spans)
        return lambda: _report(ended)

    def _look(self) -> None:
        self._meter.trim()
        last, self._last = self._last, self._meter.own()
        if self._under_way:
            self._spans.append(_Span(self._last - last, tuple(self._under_way)))


def _divide(spans: Sequence[_Span]) -> None:
    """Give what the process has grown by to the loads."""
    together, sharing = 0, dict[MeasuredLoad, None]()
    for grown, loads in spans:
        here = [each for each in loads if not each.own]
        if len(here) == 1:
            here[0].grown += grown
        elif here:
            together += grown
            sharing |= dict.fromkeys(here)
    weights = {each: max(_LEAST, each.files - each.grown) for each in sharing}
    whole = sum(weights.values())
    for each, weight in weights.items():
        each.grown += together * weight / whole


def _report(loads: Sequence[MeasuredLoad]) -> None:
    for load in loads:
        if load.on_measured is not None:
            load.on_measured(load.elsewhere + max(0, round(load.grown)))


def _with_children(pid: int) -> int:
    """The share of memory of a process, and of those that it has started."""
    return share_of(pid) + sum(share_of(each) for each in children(pid))


def _nothing() -> None: ...

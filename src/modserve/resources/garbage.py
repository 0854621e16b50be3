"""Sets Python's garbage collector for a server.

Requests leave no reference cycles. A full collection visits, in vain and with every thread stopped, the hundreds of
thousands of objects that live as long as the server: 27 ms with one small model. So all objects that exist when the
models have loaded are frozen: the collector does not visit them. What an engine's import brings (PyTorch: 130,000
objects, a tenth of a second) is frozen at once, before anything visits it. An unloaded model may leave cycles in there,
so `QUIET_S` after the last change of models everything is collected once more, if one was unloaded, and frozen again.
That holds every thread for up to a tenth of a second, so it waits for a second without requests, a minute at most, and
the watchdog of the event loop takes it for what it is (`last_collection_ns`).
"""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from modserve.core.runtime.failures import guard

YOUNG, MIDDLE, OLD = 1_000, 20, 500
"""The thresholds of the three generations. The youngest is collected when 1,000 more containers were made than freed,
which takes some tenths of a millisecond; with 10,000 the pause was 2 to 5 ms, at any moment. Calls over gRPC reach the
threshold, because the library leaves a cycle of six containers behind each call. Every ten-thousandth collection is
full, and by Python's own rule only if the objects that are not frozen have grown by a quarter."""

QUIET_S = 5.0
"""Seconds without a change of models before the collector visits everything."""

IDLE_S, MOST_LOOKS = 1.0, 60
"""Seconds without a request that everything is collected after; and how often they are waited for, under way or not."""


def set_aside() -> None:
    """Freeze all that there is, as it is: after imports, which leave some tens of objects of garbage. Any thread."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.freeze()


@dataclass(slots=True)
class _Collection:
    """The last collection that was ordered here, in the time of `time.monotonic_ns`."""

    began_ns: int = 0
    ended_ns: int = 0
    """Before `began_ns` while it runs."""


_last = _Collection()


def freeze() -> None:
    """Collect what was made since the last time, and freeze the rest: some milliseconds, if nothing was imported."""
    _last.began_ns = time.monotonic_ns()
    gc.collect()
    set_aside()
    _last.ended_ns = time.monotonic_ns()


def last_collection_ns(since_ns: int) -> int:
    """Nanoseconds since a moment that the last ordered collection took, or takes. Any thread."""
    ended_ns = _last.ended_ns if _last.ended_ns >= _last.began_ns else time.monotonic_ns()
    return max(0, ended_ns - max(_last.began_ns, since_ns))


def collect() -> None:
    """Collect everything, also what was set aside, and freeze the rest. Takes 30 to 100 ms."""
    gc.unfreeze()
    freeze()


class Freezer:
    """Freezes again after changes of models. For the event loop's thread, in a process that is the server's own.

    `models` are those that serve; `requests` counts those that have come or ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        models: Callable[[], Iterable[object]],
        requests: Callable[[], int] = lambda: 0,
    ) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._models = models
        self._requests = requests
        self._requests_before = 0
        self._looks_left = 0
        self._served: set[weakref.ref[object]] = set()

    def on_change(self) -> None:
        """Models have been loaded or unloaded: freezes again once that is over."""
        self._looks_left = MOST_LOOKS
        self._look_in(QUIET_S)

    def _look_in(self, seconds: float) -> None:
        self._cancel()
        self._requests_before = self._requests()
        self._timer = self._loop.call_later(seconds, guard("garbage", self._look))

    def _look(self) -> None:
        """Freeze, once no request would wait for it."""
        self._looks_left -= 1
        if self._looks_left > 0 and self._requests() != self._requests_before and self._has_unloaded():
            self._look_in(IDLE_S)
        else:
            self.freeze()

    def _has_unloaded(self) -> bool:
        """True if a model was unloaded since the last time."""
        return not self._served <= set(map(weakref.ref, self._models()))

    def freeze(self) -> None:
        """Freezes now, and not again for the changes so far. Collects first if a model has gone."""
        self._cancel()
        gone = self._has_unloaded()
        self._served = set(map(weakref.ref, self._models()))
        (collect if gone else freeze)()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

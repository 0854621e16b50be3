"""Tunes Python's garbage collector for a server.

Requests leave no reference cycles. A full collection visits, with every thread stopped and without result, the hundreds
of thousands of objects that live as long as the server: 27 ms with one small model. So all objects that exist when the
models have loaded are frozen, and the collector skips them. Objects from an engine's import (PyTorch: 130,000 objects,
a tenth of a second) are frozen at once, before any collection. An unloaded model may leave cycles among them, so
`QUIET_S` after the last change of models everything is frozen again, after a full collection if one was unloaded. That
stops every thread for up to a tenth of a second, so it waits for a second without requests, a minute at most, and the
watchdog of the event loop recognises it (`last_collection_ns`).
"""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from modserve.core.runtime.failures import guard

YOUNG, MIDDLE, OLD = 1_000, 20, 500
"""Thresholds of the three generations. The youngest is collected when 1,000 more containers were created than freed,
which takes some tenths of a millisecond; with 10,000 the pause was 2 to 5 ms, at any moment. gRPC calls reach the
threshold, because the library leaves a cycle of six containers behind each call. Every ten-thousandth collection is
full, and by Python's own rule only if the unfrozen objects have grown by a quarter."""

QUIET_S = 5.0
"""Seconds without a change of models before a full collection."""

IDLE_S, MOST_LOOKS = 1.0, 60
"""Seconds without a request before a full collection, and the maximum number of checks for that."""


def freeze_uncollected() -> None:
    """Freeze all objects without a collection: after imports, which leave some tens of garbage objects. Any thread."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.freeze()


@dataclass(slots=True)
class _Collection:
    """The last collection requested here, in the time of `time.monotonic_ns`."""

    began_ns: int = 0
    ended_ns: int = 0
    """End of the collection; before `began_ns` while it runs."""


_last = _Collection()


def freeze() -> None:
    """Collect the objects created since the last time, and freeze the rest; takes some milliseconds without imports."""
    _last.began_ns = time.monotonic_ns()
    gc.collect()
    freeze_uncollected()
    _last.ended_ns = time.monotonic_ns()


def last_collection_ns(since_ns: int) -> int:
    """Return the nanoseconds spent since a moment on the last requested collection. Any thread."""
    ended_ns = _last.ended_ns if _last.ended_ns >= _last.began_ns else time.monotonic_ns()
    return max(0, ended_ns - max(_last.began_ns, since_ns))


def collect() -> None:
    """Collect everything, including frozen objects, and freeze the rest. Takes 30 to 100 ms."""
    gc.unfreeze()
    freeze()


class Freezer:
    """Freezes objects again after changes of models. For the event loop's thread, in a server's own process.

    `models`: returns the serving models. `requests`: counts arrived or ended requests.
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
        """Schedule another freeze after models were loaded or unloaded."""
        self._looks_left = MOST_LOOKS
        self._look_in(QUIET_S)

    def _look_in(self, seconds: float) -> None:
        self._cancel()
        self._requests_before = self._requests()
        self._timer = self._loop.call_later(seconds, guard("garbage", self._look))

    def _look(self) -> None:
        """Freeze once no request would wait for it."""
        self._looks_left -= 1
        if self._looks_left > 0 and self._requests() != self._requests_before and self._has_unloaded():
            self._look_in(IDLE_S)
        else:
            self.freeze()

    def _has_unloaded(self) -> bool:
        """True if a model was unloaded since the last time."""
        return not self._served <= set(map(weakref.ref, self._models()))

    def freeze(self) -> None:
        """Freeze now, for all changes so far. Collects first if a model was unloaded."""
        self._cancel()
        gone = self._has_unloaded()
        self._served = set(map(weakref.ref, self._models()))
        (collect if gone else freeze)()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

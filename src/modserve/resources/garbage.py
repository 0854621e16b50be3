"""Python's garbage collector, set for a server.

Requests leave no reference cycles: what they held is freed at once, without the collector. What is left for it is
everything that lives as long as the server: modules, models, engines, some hundreds of thousands of objects. Each full
collection goes through all of them in vain, with every thread stopped: 27 ms with one small model, seen as a p99 of
14 ms at 16 connections. So what is there when the models have loaded is frozen: set aside, where the collector does
not look.

A model that is unloaded may leave cycles among what was frozen. So after changes of models everything is looked through
once more, when no change has come for `QUIET_S`, and frozen again.
"""

import asyncio
import gc

YOUNG, MIDDLE, OLD = 1_000, 20, 500
"""The thresholds of the three generations. The youngest is looked through when 1,000 more containers were made than
freed, which takes some tenths of a millisecond: of 10,000 the pause was 2 to 5 ms, on whatever was running just then.
Calls over gRPC come to that, since the library leaves a cycle of six containers behind each of them. A full collection
comes with every ten-thousandth of those, and by Python's own rule only when the objects that are not frozen have grown
by a quarter."""

QUIET_S = 5.0
"""Seconds without a change of models before the collector looks through everything; that takes tens of milliseconds."""


def freeze() -> None:
    """Collect what is garbage, and set aside all that is left."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Freezer:
    """Freezes again when models have changed. On the event loop's thread, in a process that is the server's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Models have come or gone: freeze again when that is over."""
        self._forget()
        self._timer = self._loop.call_later(QUIET_S, freeze)

    def freeze(self) -> None:
        """Freeze now, and not once more for the changes so far."""
        self._forget()
        freeze()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""Is a model so quick that handing a batch to a thread costs more than running it?

Waking a thread and waiting for the interpreter twice can cost more than a small model does (`benchmarks/hop.py`). Such
batches run where they are formed, on the event loop's thread.
"""

from collections import deque

from modserve.core.model_config import ModelConfig

_QUICK_NS = 150_000
"""An execution this short may run on the event loop; on threads, waiting for the interpreter makes them look longer."""
_TOO_LONG_NS = 400_000
"""When the event loop's own executions take this long on average, they go back to threads."""
_WINDOW = 16
_PAUSE = 1024
"""Executions on threads before it is tried again."""
_MOST_BYTES = 64 * 1024


def could_be_quick(config: ModelConfig) -> bool:
    """Whether all inputs are of fixed and small size, so that one execution is much like the other."""
    rows = max(1, config.max_batch_size)
    size = 0
    for spec in config.inputs:
        if -1 in spec.dims or not spec.datatype.size:
            return False
        elements = rows
        for dimension in spec.dims:
            elements *= dimension
        size += elements * spec.datatype.size
    return size <= _MOST_BYTES


class QuickRule:
    """Decides, by what executions have taken, whether the next may run on the event loop's thread."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._pause = 0
        self.quick = False

    def observe(self, ns: int) -> None:
        """An execution took `ns`, on whichever thread."""
        if self._pause:
            self._pause -= 1
            return
        recent = self._recent
        recent.append(ns)
        if len(recent) < _WINDOW:
            return
        if not self.quick:
            self.quick = min(recent) <= _QUICK_NS
            recent.clear()
        elif sum(recent) > _TOO_LONG_NS * _WINDOW:
            self.quick = False
            self._pause = _PAUSE
            recent.clear()

"""Is an instance so quick that handing a batch to its thread costs more than running it?

Waking a thread and waiting for the interpreter twice can cost more than a small model does (`benchmarks/hop.py`). Such
batches run where they are formed, on the event loop's thread, where everybody waits for them: so an instance has to be
quick reliably, and one long execution ends it.
"""

from modserve.core.model_config import InstanceKind, ModelConfig

_QUICK_NS = 150_000
"""An execution this short may run on the event loop."""
_LONG_NS = 400_000
"""On the event loop, a second execution of this length among `_WINDOW` sends the instance back to its thread."""
_TOO_LONG_NS = 1_000_000
"""On the event loop, one execution of this length does so at once."""
_WAIT_NS = 20_000_000
"""So long may an execution on a thread have waited for the interpreter, which says nothing of the engine."""
_WINDOW = 32
_FIRST_PAUSE = 1024
"""Executions on the thread before it is tried again, the first time. It doubles with each time."""
_LONGEST_PAUSE = 1 << 20
_MOST_BYTES = 64 * 1024


def could_be_quick(config: ModelConfig) -> bool:
    """Whether executions are likely to be much alike.

    All inputs are of fixed and small size, and all instances run on the CPU, or wherever the model puts them.
    """
    kinds = {group.kind for group in config.instance_groups}
    if len(kinds) > 1 or InstanceKind.GPU in kinds:
        return False
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
    """Decides, by what one instance's executions have taken, whether the next may run on the event loop's thread.

    The second-longest of the latest `_WINDOW` executions decides. On the thread that is the processor's time, since
    waiting for the interpreter makes the other look longer; the shortest one must be quick by the clock as well, or it
    is an engine that sleeps. What still turns out to be long on the event loop goes back, each time for twice as long.
    """

    __slots__ = ("_least_ns", "_long", "_next_pause", "_pause", "_seen", "quick")

    def __init__(self) -> None:
        self.quick = False
        self._seen = 0
        self._long = 0
        self._least_ns = _WAIT_NS
        self._pause = 0
        self._next_pause = _FIRST_PAUSE

    def ran_on_thread(self, ns: int, cpu_ns: int) -> None:
        """An execution on the instance's thread took `ns`, and `cpu_ns` of a processor's time."""
        if self._pause:
            self._pause -= 1
            return
        self._seen += 1
        self._least_ns = min(self._least_ns, ns)
        if cpu_ns > _QUICK_NS or ns > _WAIT_NS:
            self._long += 1
        if self._seen == _WINDOW:
            self.quick = self._long <= 1 and self._least_ns <= _QUICK_NS
            self._start_anew()

    def ran_on_loop(self, ns: int) -> None:
        """An execution on the event loop's thread took `ns`."""
        self._seen += 1
        if ns > _LONG_NS:
            self._long += 1
            if ns > _TOO_LONG_NS or self._long > 1:
                self.quick = False
                self._pause = self._next_pause
                self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
                self._start_anew()
                return
        if self._seen == _WINDOW:
            self._start_anew()

    def _start_anew(self) -> None:
        self._seen = self._long = 0
        self._least_ns = _WAIT_NS

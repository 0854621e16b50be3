"""Decides whether batches are so short that they run on the event loop, not on the instance's thread.

Waking a thread and waiting twice for the interpreter can cost more than a small model does (`benchmarks/hop.py`). On
the event loop a batch blocks all other requests, so the instance must be reliably quick: one long execution ends it.
"""

import gc
import math
import time
from dataclasses import dataclass

from modserve.core.configuration.model_config import InstanceKind, ModelConfig

_QUICK_NS = 150_000
"""An execution this short may run on the event loop."""
LONG_NS = 400_000
"""Execution time on the event loop; a second one this long among `_WINDOW` returns the instance to its thread."""
_TOO_LONG_NS = 1_000_000
"""Execution time on the event loop that returns the instance to its thread at the first occurrence."""
_WAIT_NS = 20_000_000
"""Longest wait of an execution for the interpreter or a processor, which says nothing about the engine."""
_WAITS = 4
"""Number of such executions; more among `_WINDOW` on the event loop return the instance to its thread."""
_FRESH_NS = 1_000_000
_WINDOW = 32
_STALL_NS = 10_000_000
"""Execution time on the event loop that is felt by other models, whatever has caused it."""
_RELIABLE = 2048
"""Executions on the event loop after which a long one is an exception rather than the engine's habit."""
_FIRST_PAUSE = 64
"""Executions on the thread before it is tried again, the first time. It doubles if the next time comes soon."""
_LONGEST_PAUSE = 1 << 20
_MOST_BYTES = 64 * 1024


def may_run_inline(config: ModelConfig) -> bool:
    """True if the run times of executions are likely to be similar.

    All inputs are of fixed and small size, and all instances run on the CPU, or wherever the model puts them.
    """
    kinds = {group.kind for group in config.instance_groups}
    if len(kinds) > 1 or InstanceKind.GPU in kinds:
        return False
    if any(-1 in spec.dims or not spec.datatype.size for spec in config.inputs):
        return False
    row_size = sum(math.prod(spec.dims) * spec.datatype.size for spec in config.inputs)
    return max(1, config.max_batch_size) * row_size <= _MOST_BYTES


class InlineRule:
    """Decides, by what one instance's executions have taken, whether the next may run on the event loop's thread.

    The second-longest of the latest `_WINDOW` executions decides. On the thread that is the processor's time, since
    waiting for the interpreter makes the other look longer; the shortest one must be quick by the clock as well, or it
    is an engine that sleeps. An execution that is long on the event loop sends the engine back to its thread: for twice
    as long each time; after a reliable stay of two pauses and `_RELIABLE` executions for half as long, and at last for
    one window. So neighbours on the same machine, which take the processor away now and then and make any execution
    look long, do not send an engine to its thread for good: there its batches cost twice the CPU, and wait for the
    interpreter.
    """

    __slots__ = ("_last_pause", "_least_ns", "_long", "_pause", "_seen", "_stayed", "_waits", "on_loop")

    def __init__(self) -> None:
        self.on_loop = False
        self._seen = 0
        self._long = 0
        self._waits = 0
        self._least_ns = _WAIT_NS
        self._pause = 0
        self._last_pause = 0
        self._stayed = 0

    def ran_on_thread(self, ns: int, cpu_ns: int) -> None:
        """Record an execution on the instance's thread of `ns`, and `cpu_ns` of CPU time."""
        if self._pause:
            self._pause -= 1
            return
        self._seen += 1
        self._least_ns = min(self._least_ns, ns)
        if cpu_ns > _QUICK_NS or ns > _WAIT_NS:
            self._long += 1
        if self._seen == _WINDOW:
            self.on_loop = self._long <= 1 and self._least_ns <= _QUICK_NS
            self._restart()

    def ran_on_loop(self, ns: int, cpu_ns: int) -> None:
        """Record an execution on the event loop's thread of `ns`, and at least `cpu_ns` of CPU time."""
        self._seen += 1
        self._stayed += 1
        if ns > LONG_NS:
            waited = cpu_ns < ns // 2 and ns <= _WAIT_NS
            if waited:
                self._waits += 1
            else:
                self._long += 1
            if self._long > 1 or self._waits > _WAITS or (ns > _TOO_LONG_NS and not waited):
                self._leave_loop(ns)
                return
        if self._seen == _WINDOW:
            self._restart()

    def _leave_loop(self, ns: int) -> None:
        last = self._last_pause
        if self._stayed >= max(2 * last, _RELIABLE) and ns < _STALL_NS:
            self._last_pause = last // 2 if last > _FIRST_PAUSE else 0
        else:
            self._last_pause = min(max(_FIRST_PAUSE, 2 * last), _LONGEST_PAUSE)
        self._pause = self._last_pause
        self._stayed = 0
        self.on_loop = False
        self._restart()

    def _restart(self) -> None:
        self._seen = self._long = self._waits = 0
        self._least_ns = _WAIT_NS


@dataclass(slots=True)
class _Collector:
    """Start and duration of the latest garbage collection, which is not counted as the engine's time."""

    began_ns: int = 0
    took_ns: int = 0

    def observe(self, phase: str, info: object) -> None:
        """Record the start or the end of a collection; a callback for `gc.callbacks`."""
        now_ns = time.monotonic_ns()
        if phase == "start":
            self.began_ns = now_ns
            self.took_ns = 0
        else:
            self.took_ns = now_ns - self.began_ns


_collector = _Collector()


class LoopThreadTime:
    """CPU time of the event loop's thread, queried so rarely that it costs next to nothing.

    Call `look` before an execution; `cpu_ns` then returns the least CPU time that the engine had.
    """

    __slots__ = ("_cpu_ns", "_looked_ns")

    def __init__(self) -> None:
        self._looked_ns = 0
        self._cpu_ns = 0
        if _collector.observe not in gc.callbacks:
            gc.callbacks.append(_collector.observe)

    def look(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns > _FRESH_NS:
            self._looked_ns = now_ns
            self._cpu_ns = time.thread_time_ns()

    def cpu_ns(self, start_ns: int) -> int:
        """Return the CPU time since `start_ns`, without garbage collection, of an execution that has just ended."""
        collected_ns = _collector.took_ns if _collector.began_ns >= start_ns else 0
        return time.thread_time_ns() - self._cpu_ns - (start_ns - self._looked_ns) - collected_ns

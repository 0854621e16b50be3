"""Thread counts for operators: one for each thread that calls PyTorch, and process-wide settings.

PyTorch uses OpenMP's threads: ``torch.set_num_threads`` applies to the calling thread and to threads that have not
called PyTorch yet (aten/src/ATen/ParallelOpenMP.cpp). Each calling thread has its own workers.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import torch

_log = logging.getLogger(__name__)

_CALM = 8
"""Consecutive executions without overlap after which requests are taken to be sequential."""


class SharedThreads:
    """Thread counts of a model's instances: `own` for each, or the threads of all for an instance that runs alone.

    Only the first instance gets all threads. libgomp's workers spin before they sleep only while the process has no
    more workers than cores, idle ones included (libgomp: throttled spinning, in wait.h). It gets them only while
    executions do not overlap: a worker without a core stalls its whole team.
    """

    def __init__(self, own: int, instances: int) -> None:
        self.own = own
        self.all = own * max(1, instances)
        self._lock = threading.Lock()
        self._running = 0
        self._alone = _CALM
        """Executions since the last overlap."""
        self._instances: list[InstanceThreads] = []

    def enter(self, instance: "InstanceThreads") -> int:
        """Begin an execution of the instance and return its number of threads, until it leaves."""
        with self._lock:
            self._running += 1
            self._alone = self._alone + 1 if self._running == 1 else 0
            return self.all if self._alone > _CALM and instance is self._instances[0] else self.own

    def leave(self) -> None:
        with self._lock:
            self._running -= 1

    def add(self, instance: "InstanceThreads") -> None:
        with self._lock:
            self._instances.append(instance)

    def remove(self, instance: "InstanceThreads") -> None:
        with self._lock:
            self._instances.remove(instance)


class InstanceThreads:
    """Thread count of one instance. The executing thread enters it for each execution."""

    def __init__(self, shared: SharedThreads) -> None:
        self._shared = shared
        shared.add(self)

    def __enter__(self) -> None:
        count = self._shared.enter(self)
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._shared.leave()

    def close(self) -> None:
        self._shared.remove(self)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit a thread that executes no model to one thread, as leftover workers would count for libgomp."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ProcessModes:
    """Process-wide settings of PyTorch. The first model that sets one decides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}

    def configure(self, label: str, inter_op_threads: int, jit_modes: Mapping[str, bool], *, cudnn: bool) -> None:
        settings: dict[str, int] = dict(jit_modes)
        if inter_op_threads:
            settings["INTER_OP_THREAD_COUNT"] = inter_op_threads
        if not cudnn and torch.cuda.is_available():
            settings["DISABLE_CUDNN"] = True
        with self._lock:
            for key, value in settings.items():
                if key in self._values:
                    if self._values[key] != value:
                        _log.warning(
                            "%s: parameter '%s' has no effect: PyTorch has one value for the whole "
                            "process, and another model has already set it to %s",
                            label,
                            key,
                            self._values[key],
                        )
                    continue
                try:
                    _SETTERS[key](value)
                except RuntimeError:  # the threads have already started
                    _log.warning(
                        "%s: parameter '%s' has no effect: PyTorch accepts it only before the first execution",
                        label,
                        key,
                    )
                else:
                    self._values[key] = value


def _without_cudnn(_: int) -> None:
    torch.backends.cudnn.enabled = False


_SETTERS = {
    "INTER_OP_THREAD_COUNT": torch.set_num_interop_threads,
    "ENABLE_JIT_EXECUTOR": lambda value: torch._C._jit_set_profiling_executor(bool(value)),
    "ENABLE_JIT_PROFILING": lambda value: torch._C._jit_set_profiling_mode(bool(value)),
    "ENABLE_TENSOR_FUSER": lambda value: torch._C._jit_set_texpr_fuser_enabled(bool(value)),
    "DISABLE_CUDNN": _without_cudnn,
}
process_modes = ProcessModes()

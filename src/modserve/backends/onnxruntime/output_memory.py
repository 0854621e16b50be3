"""Release of memory that a session's arena keeps after many large outputs were in use at the same time.

Outputs are views of the arena's memory, and responses hold them until their clients have read them. The arena grows by
what is held at once, and never shrinks by itself, only at the end of a run with an option for it. That run need not
compute anything: it may be terminated before its first node.
"""

import logging
import threading
import weakref
from collections.abc import Iterable

import numpy as np
import onnxruntime as ort

from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

from . import SILENT
from .options import SHRINKAGE
from .providers import CPU
from .tensors import Value, describe, to_bfloat16

LARGE = 256 * 1024
"""Bytes of the smallest output that is counted."""

_log = logging.getLogger(__name__)


class OutputMemory:
    """A `long_buffers.Keeper` for the outputs of one instance, which may share its session."""

    def __init__(self, session: ort.InferenceSession, feeds: dict[str, Array | Value]) -> None:
        self._session = session
        self._feeds = feeds
        self._options = ort.RunOptions()
        self._options.add_run_config_entry(SHRINKAGE, "cpu:0")
        self._options.log_severity_level = SILENT
        self._options.terminate = True
        self._lock = threading.RLock()  # a callback may come at any place, also where this thread has the lock
        self._views: dict[int, _View] = {}
        """Views by their own ids: they hash like their referents, which arrays cannot."""
        self._held = 0
        self._lately = 0
        """The most that was held at once since the last look."""
        self._most = 0
        """Largest `_lately` since memory was given back."""

    def hold(self, output: Array) -> None:
        """Count an output until it is released."""
        view = _View(output, self._let_go)
        view.size = output.nbytes
        with self._lock:
            self._views[id(view)] = view
            self._held += view.size
            self._lately = max(self._lately, self._held)

    def _let_go(self, view: "_View") -> None:
        with self._lock:
            del self._views[id(view)]
            self._held -= view.size

    def spare(self) -> int:
        with self._lock:
            lately, self._lately = self._lately, self._held
            self._most = max(self._most, lately)
            return self._most - lately

    def give_back(self) -> None:
        with self._lock:
            self._most = self._lately
        try:
            self._session.run(None, self._feeds, self._options)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but this
            if "terminate" not in str(error):
                _log.debug("ONNX Runtime did not return memory: %s", error)


class _View(weakref.ref[Array]):
    __slots__ = ("size",)
    size: int


def output_memory(session: ort.InferenceSession) -> OutputMemory | None:
    """Return the memory for outputs; None if there is no arena, or another one as well."""
    if session.get_providers() != [CPU] or not session.get_session_options().enable_cpu_mem_arena:
        return None
    return OutputMemory(session, dict(_make_up_inputs(session.get_inputs())))


def _make_up_inputs(arguments: Iterable[ort.NodeArg]) -> Iterable[tuple[str, Array | Value]]:
    """Yield inputs of the least size for a run that computes nothing."""
    for argument in arguments:
        described = describe(argument)
        shape = [abs(size) for size in described.shape]  # 1 for variable dimensions, which are -1
        if described.datatype is dtypes.BYTES:
            yield argument.name, np.full(shape, "", object)
        else:
            array = np.zeros(shape, described.datatype.numpy)
            yield argument.name, to_bfloat16(array) if described.datatype is dtypes.BF16 else array

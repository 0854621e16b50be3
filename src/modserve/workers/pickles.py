"""Values sent from one worker to another: pickles that may contain only the types listed here."""

import enum
import io
import pickle
from collections.abc import Mapping
from functools import partial
from typing import Any

from modserve.core.configuration.log_settings import LogFormat
from modserve.core.configuration.trace_settings import TraceLevel
from modserve.core.errors import Code, MemoryExhaustedError, ModserveError, OverloadedError
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.routing.router import RouteRollback

from .journal import ServerChange
from .pages import Question, SampleTable, WorkerPage

_ERRORS = (MemoryExhaustedError, ModserveError, OverloadedError)
_RECORDS = (CudaRegion, IndexEntry, Question, WorkerPage, RouteRollback, SampleTable, ServerChange, SystemRegion)
_TYPES: tuple[type, ...] = (Code, LogFormat, LifecycleState, TraceLevel, partial, *_ERRORS, *_RECORDS)
_NAMED: Mapping[tuple[str, str], type] = {(each.__module__, each.__qualname__): each for each in _TYPES}


def dumps(value: object) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def loads(data: bytes) -> Any:
    """Raises UnpicklingError for a type that is not known."""
    return _Unpickler(io.BytesIO(data)).load()


def portable_error(error: ModserveError) -> ModserveError:
    """Return the error, or one of a known type that says the same."""
    return error if type(error) in _ERRORS else ModserveError(error.code, error.message)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Some versions of Python write members of an enum as calls of `getattr`, which are refused."""
        return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMED:
            raise pickle.UnpicklingError(f"workers do not send each other values of type {module}.{name}")
        return _NAMED[module, name]

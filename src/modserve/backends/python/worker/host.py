"""The process as the objects of ``triton_python_backend_utils`` use it.

There are two kinds of process. In a worker, all of it goes to the server through the worker's socket; in the server,
for models that run in a thread there, the server is at hand. A worker has one model and one host; the server has one
for each model, which `current` finds.
"""

import sys
import threading
from types import FrameType
from typing import Any, Awaitable, Mapping, Optional, Protocol

from .response import InferenceResponse, ResponseIterator


class Host(Protocol):
    """Services of the server for a model, apart from its requests. Any thread may use it.

    The requests that it runs are of the class `request.InferenceRequest`, which knows hosts.
    """

    def log(self, level: str, message: str) -> None:
        """Write a line into the server's log; `level` is ERROR, WARNING, INFO or VERBOSE."""

    def call(self, request: Any) -> InferenceResponse:
        """Run a request on another model and wait for its one response, which may be an error."""

    def call_decoupled(self, request: Any) -> ResponseIterator:
        """Run a request on another model; its responses come one after the other."""

    def call_async(self, request: Any) -> "Awaitable[InferenceResponse]":
        """Run `call` for the running event loop of the model."""

    def call_decoupled_async(self, request: Any) -> "Awaitable[ResponseIterator]":
        """Run `call_decoupled` for the running event loop of the model."""

    def control(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run an operation on the server and wait for its result; raises `TritonModelException` if it refuses.

        ``load`` (name, config or None, files: name to bytes, or None), ``unload`` (name, unload_dependents), ``ready``
        (name, version or None; a bool), ``metric_family`` (name, description, kind; nothing), ``metric`` (family,
        labels, buckets or None; a number to name it by), ``metric_value`` (metric; a float).
        """

    def metric(self, metric: int, operation: str, value: float, times: int) -> None:
        """Apply ``increment``, ``set`` or (`times` times) ``observe`` to a metric; raises `TritonModelException`."""

    def drop_metric(self, metric: int) -> None:
        """Drop a metric: the model has it no more."""


class _ThreadHost(threading.local):
    host: Optional[Host] = None


NAME_IN_GLOBALS = "__modserve_host__"
"""A model's module has its host under this name, for threads that the model itself has started."""

_here = _ThreadHost()
_of_process: Optional[Host] = None


def set_of_process(host: Optional[Host]) -> None:
    """Set the only host of this process: a worker's."""
    global _of_process
    _of_process = host


def set_of_thread(host: Optional[Host]) -> None:
    """Set the host of the model that this thread runs."""
    _here.host = host


def current() -> Host:
    """Return the host of the calling model. Raises RuntimeError where no model runs."""
    host = _of_process or _here.host
    if host is not None:
        return host
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        of_module: Optional[Host] = frame.f_globals.get(NAME_IN_GLOBALS)
        if of_module is not None:
            return of_module
        frame = frame.f_back
    raise RuntimeError("this works only in a model that a server runs")

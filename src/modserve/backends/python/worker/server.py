"""The server's services for models besides calls: log lines, custom metrics, loading and unloading of models."""

import enum
import json
import sys
from typing import Any, Dict, List, Mapping, Optional

from . import host
from .errors import TritonModelException, shorten, type_name


class LogLevel(enum.IntEnum):
    """Triton's levels, with its numbers."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class Logger:
    """Writer to the server's log, or to standard error without a server."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log a message. Raises TypeError for one that is no text, or an invalid level."""
        if isinstance(message, bytes):
            message = message.decode("utf-8", "replace")
        if not isinstance(message, str):
            raise TypeError(f"Logger.log(): message must be a str, not {type_name(message)}")
        if not isinstance(level, LogLevel):
            raise TypeError(f"Logger.log(): level must be one such as Logger.INFO, not {level!r}")
        message = shorten(message)
        try:
            here = host.current()
        except RuntimeError:
            sys.stderr.write(f"{level.name} {message}\n")
            return
        here.log(level.name, message)

    @staticmethod
    def log_info(message: str) -> None:
        Logger.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        Logger.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        Logger.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        Logger.log(message, LogLevel.VERBOSE)


Logger.LogLevel = LogLevel  # type: ignore[attr-defined]


class MetricKind(enum.IntEnum):
    """Kind of a metric. The numbers are Triton's."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


_OPERATIONS = {
    MetricKind.COUNTER: ("increment",),
    MetricKind.GAUGE: ("increment", "set"),
    MetricKind.HISTOGRAM: ("observe",),
}


class Metric:
    """A series of a `MetricFamily`, which makes it. Its methods raise TritonModelException if the operation is not
    possible.
    """

    __slots__ = ("__weakref__", "_family", "_host", "_number")

    def __init__(self, family: "MetricFamily", number: int, of_host: host.Host) -> None:
        self._family = family  # a family lives as long as its metrics
        self._number = number
        self._host = of_host

    def increment(self, value: float) -> None:
        """Add to a counter, only a value of 0 or more, or to a gauge."""
        self._change("increment", value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._change("set", value)

    def observe(self, value: float, times: int = 1) -> None:
        """Observe in a histogram. Not in Triton: `times` counts equal values."""
        self._change("observe", value, times)

    def value(self) -> float:
        """Return the value. Not for histograms."""
        return float(self._host.control("metric_value", {"metric": self._number}))

    def _change(self, operation: str, value: float, times: int = 1) -> None:
        kind = self._family._kind
        if operation not in _OPERATIONS[kind]:
            raise TritonModelException(f"a metric of kind {kind.name} has no {operation}()")
        if kind == MetricKind.COUNTER and value < 0:
            raise TritonModelException(f"a counter cannot be incremented by {value}, which is less than 0")
        self._host.metric(self._number, operation, _real(f"Metric.{operation}()", value), times)

    def __del__(self) -> None:
        here = getattr(self, "_host", None)
        if here is not None:
            here.drop_metric(self._number)


class MetricFamily:
    """A name on the server's metrics port. Another model may have created it, with the same kind."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    __slots__ = ("__weakref__", "_kind", "_name")

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        for what, text in (("name", name), ("description", description)):
            if not isinstance(text, str):
                raise TypeError(f"MetricFamily(): {what} must be a str, not {type_name(text)}")
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily(): kind must be MetricFamily.COUNTER, GAUGE or HISTOGRAM, not {kind!r}")
        self._name = name
        self._kind = kind
        host.current().control("metric_family", {"name": name, "description": description, "kind": kind.name})

    def Metric(self, labels: Optional[Mapping[str, str]] = None, buckets: Optional[List[float]] = None) -> Metric:
        """Make the series with these labels. A histogram needs `buckets`, the upper bounds; other kinds have none."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        for label, value in (labels or {}).items():
            if not isinstance(label, str) or not isinstance(value, str):
                raise TritonModelException(f"Failed to create metric. Labels must be texts: {label!r} is {value!r}.")
        if self._kind == MetricKind.HISTOGRAM:
            if buckets is None:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
            buckets = [_real("MetricFamily.Metric(): a bucket", bound) for bound in buckets]
        elif buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        here = host.current()
        arguments = {"family": self._name, "labels": dict(labels or {}), "buckets": buckets}
        return Metric(self, int(here.control("metric", arguments)), here)


def _real(subject: str, value: Any) -> float:
    try:
        return float(value) if not isinstance(value, (str, bytes)) else float("refused")
    except (TypeError, ValueError):
        raise TypeError(f"{subject} needs a number, not {type_name(value)}") from None


def load_model(model_name: str, config: str = "", files: Optional[Dict[str, bytes]] = None) -> None:
    """Load a model like a client: `config` is JSON text, `files` have names such as ``file:1/model.onnx``.

    Raises TritonModelException if it does not load.
    """
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    content: Any
    for name, content in (files or {}).items():
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise TypeError(f"load_model(): the file {name!r} must be bytes, not {type_name(content)}")
    contents = None if files is None else {name: bytes(content) for name, content in files.items()}
    if isinstance(config, dict):
        config = json.dumps(config)
    arguments = {"name": _name("load_model", model_name), "config": config or None, "files": contents}
    host.current().control("load", arguments)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model, and with `unload_dependents` an ensemble's models."""
    arguments = {"name": _name("unload_model", model_name), "unload_dependents": bool(unload_dependents)}
    host.current().control("unload", arguments)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a version of a model accepts requests; by default the version used by calls without one."""
    if not isinstance(model_version, str):
        raise TypeError(f"is_model_ready(): model_version must be a str, not {type_name(model_version)}")
    arguments = {"name": _name("is_model_ready", model_name), "version": model_version or None}
    return bool(host.current().control("ready", arguments))


def _name(function: str, name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{function}(): model_name must be a str, not {type_name(name)}")
    return name

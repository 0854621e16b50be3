"""TensorFlow sessions, and the instances that run them.

Every SavedModel and frozen graph, including TensorFlow 2's, runs in a session of TensorFlow 1, as in TensorFlow Serving
and Triton. A session supports the signature, the tag, initialisation operations, and thread counts of each model. It
accepts and returns numpy arrays, and several threads may run it at once.

A process has one intra-op thread pool, created with the first session, and one inter-op pool for sessions without their
own.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# 3: fatal messages only. Other failures also raise an exception.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.errors import ModserveError, invalid
from modserve.core.files import regular_file
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape

from ..api import InstanceSpec, ModelSource, Placement, refused
from ..options import library_path
from . import graphs
from .options import IN_CALLER, TensorFlowOptions, find_saved_model, read_options, warnings

_log = logging.getLogger(__name__)

_ALIGNMENT = 64
"""Alignment in bytes of arrays that TensorFlow reads in place. It copies others."""
_WORTH_ALIGNING = 16 * 1024
_MOST_CALLS = 64
"""Limit of an instance's cached callables, one for each set of inputs and outputs."""
_NO_OPERATOR = (
    "This TensorFlow does not have that operator; if a library has it, name it in model_operations "
    "{ op_library_filename: … }."
)
_LOAD_HINTS = {
    "Op type not registered": _NO_OPERATOR,
    "No op named": _NO_OPERATOR,
    "not a valid checkpoint": "It must contain the folder 'variables' with the weights.",
    "variables.index": "It must contain the folder 'variables' with the weights.",
    "checkpoint": "The weights in its folder 'variables' are incomplete or belong to another model.",
    "Data loss": "The weights in its folder 'variables' are truncated.",
}
"""Part of a message of TensorFlow → explanation. The first match counts."""
_GRAPH_LEVELS = {
    -1: config_pb2.OptimizerOptions.OFF,
    1: config_pb2.OptimizerOptions.ON_1,
    2: config_pb2.OptimizerOptions.ON_2,
}
"""``optimization.graph.level`` → XLA level, as in Triton, where levels above 1 are the highest."""

Call = Callable[..., Sequence[Array]]
Load = Callable[[Any], object]
"""Loads the model into the default graph, for a session."""


class _Deprecations(logging.Filter):
    """Filter for TensorFlow's deprecation warnings, which concern programmers, not operators."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "deprecated" not in record.getMessage()


def _log_as_we_do() -> None:
    """Redirect TensorFlow's Python log from standard error to the server's log."""
    log = tf.get_logger()
    for handler in list(log.handlers):
        log.removeHandler(handler)
    log.propagate = True
    log.setLevel(logging.WARNING)
    log.addFilter(_Deprecations())


class TensorFlowEngine:
    default_cpu_instances = 2
    any_thread = True

    def __init__(self) -> None:
        _log_as_we_do()
        self._threads = _ProcessThreads()

    def gpu_count(self) -> int:
        return len(tf.config.list_physical_devices("GPU"))

    def open(self, source: ModelSource) -> "TensorFlowModel":
        if not source.path.exists():
            raise invalid(f"unable to find model file '{source.path}' for model '{source.config.name}'")
        for warning in warnings(source.config, source.options):
            _log.warning("%s", warning)
        options = read_options(source)
        for library in source.config.operation_libraries:
            _load_operators(library, source)
        if warning := self._threads.claim(source.config.name, options.intra_threads):
            _log.warning("%s", warning)
        return TensorFlowModel(source, options, self.gpu_count())


def _load_operators(name: str, source: ModelSource) -> None:
    """Load a library of operators, for all models of the process. Raises INVALID_ARG."""
    try:
        tf.load_op_library(library_path(name, source))
    except (tf.errors.OpError, RuntimeError) as error:
        raise invalid(
            f"model '{source.config.name}': the operator library '{name}' (model_operations.op_library_filename) "
            f"cannot be used: {_text(error)}. The path must be absolute, or relative to the server's working "
            "directory, the version's or the model's directory. The system also finds a name without a path, for "
            "instance in LD_LIBRARY_PATH"
        ) from error


class _ProcessThreads:
    """Process-wide intra-op threads. The first model sets their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: tuple[str, int] | None = None

    def claim(self, model: str, count: int) -> str:
        """Return a warning if the number is already fixed and differs from the model's parameter."""
        with self._lock:
            first, number = self._first = self._first or (model, count)
        if number == count:
            return ""
        return (
            f"model '{model}' runs with the {number} threads for single operators that TensorFlow started "
            f"for model '{first}', not with {count}: a process has only one set of these threads"
        )


class TensorFlowModel:
    """A SavedModel or frozen graph, and its sessions."""

    def __init__(self, source: ModelSource, options: TensorFlowOptions, gpus: int) -> None:
        self._source = source
        self._options = options
        self._gpus = gpus
        self._lock = threading.Lock()
        self._sessions: dict[tuple[Placement, int], _Session] = {}
        directory = find_saved_model(source.path)
        name = source.config.name
        if directory is not None:
            saved = graphs.find_tagged(graphs.read_saved_model(directory, name), options.tag, name)
            self._graph = saved.graph_def
            self._signature: graphs.GraphSignature | None = graphs.signature_of(saved, options.signature, source.config)
            load = tf.compat.v1.saved_model.loader.load
            self._load: Load = lambda session: load(session, [options.tag], str(directory))
        else:
            graph = self._graph = graphs.read_graph(source.path, name)
            self._signature = None
            self._load = lambda _: tf.import_graph_def(graph, name="")
        first = source.placements[0] if source.placements else Placement(InstanceKind.CPU)
        session = self._session(first, 0)  # also validates the file
        if self._signature is None:
            self._signature = graphs.signature_of_graph(self._graph, session.graph, source.config)
        self._data_dependent = graphs.depends_on_data(self._graph, self._signature.outputs.values())
        if directory is not None:
            self._graph = type(self._graph)()  # frees the graph, which may be large

    @property
    def signature(self) -> graphs.GraphSignature:
        assert self._signature is not None
        return self._signature

    def describe(self) -> ModelDescription:
        signature = self.signature
        return ModelDescription(
            signature.described_inputs, signature.described_outputs, self._options.default_max_batch_size
        )

    def instance(self, spec: InstanceSpec) -> "TensorFlowInstance":
        share = self._options.share_count
        session = self._session(spec.placement, max(0, spec.index) // share if share else 0)
        return TensorFlowInstance(session, self.signature, data_dependent=self._data_dependent)

    def report(self) -> Mapping[str, object]:
        kinds = {tensor.datatype for tensor in (*self.signature.described_inputs, *self.signature.described_outputs)}
        precision = next((name for kind, name in _PRECISIONS.items() if kind in kinds), "fp32")
        inter = self._options.inter_threads
        return {
            "engine": "TensorFlow",
            "version": tf.__version__,
            "precision": precision,
            "device": "GPU" if any(place.kind is InstanceKind.GPU for place, _ in self._sessions) else "CPU",
            "threads": self._options.intra_threads,
            "inter_op_threads": 1 if inter == IN_CALLER else inter,
            "sessions": len(self._sessions),
            "signature": self.signature.name,
            "tag": self._options.tag,
            "file": self._source.path.name,
        }

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _session(self, placement: Placement, number: int) -> "_Session":
        if placement.kind is not InstanceKind.GPU:
            placement = Placement(placement.kind)
        with self._lock:
            session = self._sessions.get((placement, number))
            if session is None:
                session = _Session(self._source, self._options, placement, self._gpus, self._load)
                self._sessions[placement, number] = session
            return session


_PRECISIONS = {dtypes.BF16: "bf16", dtypes.FP16: "fp16", dtypes.FP64: "fp64"}


class _Session:
    """A loaded graph. Several instances may run it at once."""

    def __init__(
        self,
        source: ModelSource,
        options: TensorFlowOptions,
        placement: Placement,
        gpus: int,
        load: Load,
    ) -> None:
        name, path = source.config.name, source.path
        self.graph = tf.Graph()
        settings = _session_settings(source.config, options, placement, gpus)
        self._session = tf.compat.v1.Session(graph=self.graph, config=settings)
        try:
            with self.graph.as_default(), self.graph.device(_device(placement, gpus)):
                load(self._session)
                self._initialise(options.init_ops_file, name)
        except ModserveError:
            self._session.close()
            raise
        except Exception as error:  # depending on the file's fault, also ValueError, OSError and KeyError
            self._session.close()
            text = _text(error)
            hint = next((hint for part, hint in _LOAD_HINTS.items() if part in text), "")
            reason = f"{text.rstrip('.')}. {hint}" if hint else text
            raise invalid(f"failed to load model '{name}' from '{path}': {reason}") from error

    def call(self, feeds: Sequence[str], fetches: Sequence[str]) -> Call:
        """Return a callable that maps arrays for the tensors `feeds` to arrays of the tensors `fetches`, in order."""
        prepare = getattr(self._session, "_make_callable_from_options", None)
        if prepare is not None:  # ten times faster for small graphs; used by Keras since 2018
            options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
            call: Call = prepare(options)
            return call
        run = self._session.run
        return lambda *arrays: run(list(fetches), dict(zip(feeds, arrays, strict=True)))

    def close(self) -> None:
        self._session.close()

    def _initialise(self, file: Path | None, name: str) -> None:
        if file is None:
            return
        try:
            operations = json.loads(regular_file.read_text(file))["init_ops"]
            if not isinstance(operations, list):
                raise TypeError("'init_ops' is not a list")
        except (ValueError, KeyError, TypeError, OSError) as error:
            what = f"'{file}', the initialization operations of model '{name}'"
            raise invalid(f'{what}, cannot be read: {error}; expected {{"init_ops": ["init"]}}') from error
        for operation in operations:
            try:
                self._session.run(self.graph.get_operation_by_name(str(operation)))
            except (KeyError, ValueError) as error:
                raise invalid(f"model '{name}' has no operation '{operation}', which '{file}' names") from error


def _session_settings(config: ModelConfig, options: TensorFlowOptions, placement: Placement, gpus: int) -> Any:
    settings = config_pb2.ConfigProto(
        intra_op_parallelism_threads=options.intra_threads,
        inter_op_parallelism_threads=options.inter_threads,
        use_per_session_threads=options.own_threads,
        allow_soft_placement=options.soft_placement,
    )
    level = config.graph_optimization_level
    if level:
        settings.graph_options.optimizer_options.global_jit_level = _GRAPH_LEVELS[max(-1, min(level, 2))]
    if gpus and placement.kind is InstanceKind.CPU:
        settings.device_count["GPU"] = 0
    elif gpus:
        settings.gpu_options.allow_growth = not options.gpu_memory_fraction
        settings.gpu_options.per_process_gpu_memory_fraction = options.gpu_memory_fraction
    return settings


def _device(placement: Placement, gpus: int) -> str | None:
    """Return the device for operators without one; None leaves the choice to TensorFlow."""
    return f"/GPU:{placement.device}" if gpus and placement.kind is InstanceKind.GPU else None


class TensorFlowInstance:
    takes_early = True

    def __init__(self, session: _Session, signature: graphs.GraphSignature, *, data_dependent: bool) -> None:
        self.data_dependent = data_dependent
        self._session = session
        self._inputs = signature.inputs
        self._outputs = signature.outputs
        self._calls: dict[tuple[tuple[str, ...], tuple[str, ...]], Call] = {}

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        names = tuple(inputs)
        call = self._calls.get((names, outputs))
        try:
            if call is None:
                call = self._prepare(names, outputs)
            return dict(zip(outputs, call(*inputs.values()), strict=True))
        except tf.errors.OpError as error:
            raise refused("TensorFlow", _text(error)) from None

    def allocate(self, name: str, datatype: Datatype, shape: Shape) -> Array | None:
        """Allocate memory that TensorFlow reads in place."""
        size = int(np.prod(shape)) * datatype.size
        if size < _WORTH_ALIGNING:
            return None
        buffer = np.empty(size + _ALIGNMENT, np.uint8)
        start = -buffer.ctypes.data % _ALIGNMENT
        return buffer[start : start + size].view(datatype.numpy).reshape(shape)

    def close(self) -> None:
        self._calls.clear()

    def _prepare(self, names: tuple[str, ...], outputs: tuple[str, ...]) -> Call:
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
        call = self._session.call([self._inputs[name] for name in names], [self._outputs[name] for name in outputs])
        self._calls[names, outputs] = call
        return call


def _text(error: Exception) -> str:
    """Return the first lines of TensorFlow's message, without locations in its source and in the graph."""
    text = str(getattr(error, "message", "") or error) or type(error).__name__
    lines = text.split("\n\n")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip() and not line.startswith("\t"))

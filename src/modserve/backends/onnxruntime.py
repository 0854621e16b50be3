"""The ``onnxruntime`` backend: ONNX models on ONNX Runtime.

Model parameters acted on, spelled as in Triton's ONNX Runtime backend: ``intra_op_thread_count``,
``inter_op_thread_count``, ``execution_mode`` (0 sequential, 1 parallel), ``enable_mem_arena``, ``enable_mem_pattern``,
and any session configuration entry of ONNX Runtime by its own key (``session.…``). ``optimization.graph.level`` is -1
(basic), 1 (extended) or 2 (none); absent means all.

The CPU instances of a model share one session: it may be run from several threads at once, and the weights are in
memory once.
"""

import ctypes
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.errors import invalid, unsupported
from modserve.core.model_config import (
    DescribedTensor,
    InstanceKind,
    ModelConfig,
    ModelDescription,
)
from modserve.core.tensor import Array

from .api import ModelSource, Placement
from .onnx_graph import file_depends_on_data

_GRAPH_LEVELS = {
    None: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_EXECUTION_MODES = {0: ort.ExecutionMode.ORT_SEQUENTIAL, 1: ort.ExecutionMode.ORT_PARALLEL}

_ELEMENT_TYPES: dict[str, Datatype] = {
    "bool": dtypes.BOOL,
    "uint8": dtypes.UINT8,
    "uint16": dtypes.UINT16,
    "uint32": dtypes.UINT32,
    "uint64": dtypes.UINT64,
    "int8": dtypes.INT8,
    "int16": dtypes.INT16,
    "int32": dtypes.INT32,
    "int64": dtypes.INT64,
    "float16": dtypes.FP16,
    "bfloat16": dtypes.BF16,
    "float": dtypes.FP32,
    "double": dtypes.FP64,
    "string": dtypes.BYTES,
}
_BFLOAT16_ONNX_TYPE = 16
_DEFAULT_MAX_BATCH_SIZE = 4


class OnnxRuntimeBackend:
    default_model_filename = "model.onnx"
    default_cpu_instances = 2
    any_thread = True

    def gpu_count(self) -> int:
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            return 0
        return len(list(Path("/dev").glob("nvidia[0-9]*")))

    def open(self, source: ModelSource) -> "OnnxRuntimeModel":
        if not source.path.exists():
            raise invalid(f"unable to find model file '{source.path}' for model '{source.config.name}'")
        return OnnxRuntimeModel(source)


class OnnxRuntimeModel:
    """One ONNX file: a session for the CPU, and one for each instance on a GPU."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._cpu_session = self._session(Placement(InstanceKind.CPU))
        path = source.path
        self._data_dependent = file_depends_on_data(path / "model.onnx" if path.is_dir() else path)

    def describe(self) -> ModelDescription:
        session = self._cpu_session
        default = _parsed("backend option 'default-max-batch-size'", self._source.options, "default-max-batch-size")
        return ModelDescription(
            tuple(_describe(argument) for argument in session.get_inputs()),
            tuple(_describe(argument) for argument in session.get_outputs()),
            _DEFAULT_MAX_BATCH_SIZE if default is None else default,
        )

    def instance(self, config: ModelConfig, placement: Placement) -> "OnnxRuntimeInstance":
        session = self._cpu_session if placement.kind is not InstanceKind.GPU else self._session(placement)
        return OnnxRuntimeInstance(session, config, data_dependent=self._data_dependent)

    def close(self) -> None:
        del self._cpu_session

    def _session(self, placement: Placement) -> ort.InferenceSession:
        path = self._source.path
        file = path / "model.onnx" if path.is_dir() else path  # a directory holds external weights too
        providers: list[str | tuple[str, dict[str, int]]] = ["CPUExecutionProvider"]
        if placement.kind is InstanceKind.GPU:
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": placement.device}))
        options = _session_options(self._source)
        try:
            return ort.InferenceSession(str(file), options, providers=providers)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but this
            raise invalid(f"failed to load model '{self._source.config.name}' from '{file}': {_text(error)}") from error


class OnnxRuntimeInstance:
    def __init__(self, session: ort.InferenceSession, config: ModelConfig, *, data_dependent: bool = True) -> None:
        self.data_dependent = data_dependent
        self._session = session
        inputs = [(spec.name, spec.datatype) for spec in config.inputs]
        outputs = [(spec.name, spec.datatype) for spec in config.outputs]
        if config.sequence_batching is not None:
            inputs += config.sequence_batching.inputs
            outputs += config.sequence_batching.state_outputs
        self._strings = _names(inputs, dtypes.BYTES)
        self._bfloat16 = _names(inputs, dtypes.BF16)
        self._gives_bfloat16 = bool(_names(outputs, dtypes.BF16))
        if self._gives_bfloat16 and self._strings:
            raise unsupported(
                f"model '{config.name}': ONNX Runtime's Python interface can not give BF16 outputs to a model that "
                f"takes strings, as input '{self._strings[0]}' is"
            )

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        feeds: dict[str, Array | ort.OrtValue] = dict(inputs)
        for name in self._strings:
            if name in feeds:
                feeds[name] = _decoded(name, inputs[name])
        for name in self._bfloat16:
            if name in feeds:
                feeds[name] = _to_value(inputs[name])
        try:
            if self._gives_bfloat16:
                return self._execute_with_values(feeds, outputs)
            return dict(zip(outputs, self._session.run(outputs, feeds), strict=True))
        except Exception as error:  # as above
            if type(error).__name__ in _CLIENT_FAULTS:
                raise invalid(f"onnxruntime refused the request: {_text(error)}") from error
            raise

    def close(self) -> None:
        del self._session

    def _execute_with_values(
        self, feeds: Mapping[str, Array | ort.OrtValue], outputs: tuple[str, ...]
    ) -> Mapping[str, Array]:
        """The way around numpy's lack of bfloat16: ONNX Runtime's own values, over the same memory."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(feed) if isinstance(feed, np.ndarray) else feed
            for name, feed in feeds.items()
        }
        results = self._session.run_with_ort_values(outputs, values)
        return dict(zip(outputs, map(_to_array, results), strict=True))


_CLIENT_FAULTS = frozenset({"InvalidArgument"})
"""ONNX Runtime's exception types for inputs that do not fit the graph."""


def _names(tensors: Iterable[tuple[str, Datatype]], datatype: Datatype) -> list[str]:
    return [name for name, found in tensors if found is datatype]


def _to_value(array: Array) -> ort.OrtValue:
    """A bfloat16 array as a value over the same memory."""
    bits = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16_ONNX_TYPE)


def _to_array(value: ort.OrtValue) -> Array:
    if value.element_type() != _BFLOAT16_ONNX_TYPE:
        array: Array = value.numpy()
        return array
    shape = value.shape()
    count = int(np.prod(shape))
    if not count:
        return np.empty(shape, dtype=dtypes.BF16.numpy)
    # The copy frees the value's memory from having to outlive the array.
    data = ctypes.string_at(value.data_ptr(), count * 2)
    return np.frombuffer(data, dtype=dtypes.BF16.numpy).reshape(shape)


def _describe(argument: ort.NodeArg) -> DescribedTensor:
    match = re.fullmatch(r"(optional\()?tensor\((\w+)\)\)?", argument.type)
    datatype = _ELEMENT_TYPES.get(match[2]) if match else None
    if match is None or datatype is None:
        raise invalid(f"tensor '{argument.name}' of the ONNX graph is a {argument.type}, which has no v2 datatype")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in argument.shape)
    return DescribedTensor(argument.name, datatype, shape, optional=match[1] is not None)


def _session_options(source: ModelSource) -> ort.SessionOptions:
    config = source.config
    options = ort.SessionOptions()
    level = config.graph_optimization_level
    if level not in _GRAPH_LEVELS:
        raise invalid(f"model '{config.name}': optimization.graph.level is {level}, expected -1, 1 or 2")
    options.graph_optimization_level = _GRAPH_LEVELS[level]
    # Warnings about optimised graphs are noise to whoever runs a server.
    options.log_severity_level = 3
    # The instances share one session: the threads they bring themselves count towards their shares.
    own = source.cpu_instances * (source.cpu_threads - 1) + 1
    options.intra_op_num_threads = _integer(config, "intra_op_thread_count", 0) or own
    options.inter_op_num_threads = _integer(config, "inter_op_thread_count", 0) or 1
    mode = _integer(config, "execution_mode", 0)
    if mode not in _EXECUTION_MODES:
        raise invalid(f"model '{config.name}': parameter 'execution_mode' is {mode}, expected 0 or 1")
    options.execution_mode = _EXECUTION_MODES[mode]
    options.enable_cpu_mem_arena = bool(_integer(config, "enable_mem_arena", 1))
    options.enable_mem_pattern = bool(_integer(config, "enable_mem_pattern", 1))
    for key, value in config.parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options


def _integer(config: ModelConfig, parameter: str, default: int) -> int:
    value = _parsed(f"model '{config.name}': parameter '{parameter}'", config.parameters, parameter)
    return default if value is None else value


def _parsed(where: str, values: Mapping[str, str], key: str) -> int | None:
    """The number under `key`, None if there is none."""
    text = values.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise invalid(f"{where} is '{text}', expected an integer of 0 or more")
    return int(text)


def _decoded(name: str, array: Array) -> Array:
    """BYTES elements as the text that ONNX strings are."""
    flat = array.reshape(-1).tolist()
    try:
        text = [element.decode() for element in flat]
    except UnicodeDecodeError as error:
        raise invalid(f"input '{name}' holds bytes that are not UTF-8, which ONNX strings must be: {error}") from None
    out = np.empty(len(text), dtype=object)
    out[:] = text
    return out.reshape(array.shape)


def _text(error: Exception) -> str:
    return " ".join(str(error).split())

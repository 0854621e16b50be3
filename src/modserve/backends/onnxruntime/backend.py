"""The ``onnxruntime`` backend: ONNX models on ONNX Runtime.

`options` has what users may set. The CPU instances of a model share one session: it may be run from several
threads at once, and the weights are in memory once. A model whose instances are all on GPUs has no session on the CPU.
"""

import ctypes
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

# Since 1.29 it reports models' names and more to its maker over the Internet unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.errors import invalid, unsupported
from modserve.core.model_config import DescribedTensor, InstanceKind, ModelConfig, ModelDescription
from modserve.core.tensor import Array

from ..api import InstanceSpec, ModelSource, Placement
from ..options import integer
from .graph import file_depends_on_data
from .options import (
    BACKEND_OPTIONS,
    MAX_BATCH_SIZE,
    SHRINKAGE,
    SILENT,
    cuda_options,
    global_threads,
    session_options,
    shrunk_devices,
    visible_gpus,
    warnings,
)

_log = logging.getLogger(__name__)

# Its own lines, in colours, would go past the server's log; what they tell comes as exceptions, too.
ort.set_default_logger_severity(SILENT)

_CUDA = "CUDAExecutionProvider"

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
_LOAD_HINTS = {
    "Protobuf parsing failed": " It is cut off, or no ONNX file.",
    "External data path": " The model's weights are in a file of their own, which must lie beside it.",
}
"""What to say of ONNX Runtime's texts, by a part of them."""
_ZIPMAP = (
    "; skl2onnx makes such outputs of classifiers: convert the model again with options={'zipmap': False}, and the "
    "probabilities are a tensor"
)


class OnnxRuntimeBackend:
    default_model_filename = "model.onnx"
    default_cpu_instances = 2
    any_thread = True
    known_options = BACKEND_OPTIONS

    def gpu_count(self) -> int:
        if _CUDA not in ort.get_available_providers():
            return 0
        return visible_gpus(_gpu_devices(), os.environ.get("CUDA_VISIBLE_DEVICES"))

    def open(self, source: ModelSource) -> "OnnxRuntimeModel":
        if not source.path.exists():
            raise invalid(f"unable to find model file '{source.path}' for model '{source.config.name}'")
        global_threads.configure(source.options)
        for warning in warnings(source.config, self.gpu_count()):
            _log.warning("%s", warning)
        return OnnxRuntimeModel(source)


def _gpu_devices() -> list[str]:
    return [device.name for device in Path("/dev").glob("nvidia[0-9]*")]


class OnnxRuntimeModel:
    """One ONNX file: a session for all instances on the CPU, and one for each instance on a GPU."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._shrunk = shrunk_devices(source.config)
        self._cpu_session: ort.InferenceSession | None = None
        self._spare: tuple[int, ort.InferenceSession] | None = None
        """A session on a GPU that no instance has, and its device."""
        placements = source.placements
        if placements and all(placement.kind is InstanceKind.GPU for placement in placements):
            self._described = self._session(placements[0])
            self._spare = placements[0].device, self._described
        else:
            self._described = self._on_cpu()
        path = source.path
        self._data_dependent = file_depends_on_data(path / "model.onnx" if path.is_dir() else path)

    def describe(self) -> ModelDescription:
        session = self._described
        return ModelDescription(
            tuple(_describe(argument) for argument in session.get_inputs()),
            tuple(_describe(argument) for argument in session.get_outputs()),
            integer("backend option", self._source.options, MAX_BATCH_SIZE, _DEFAULT_MAX_BATCH_SIZE),
        )

    def instance(self, spec: InstanceSpec) -> "OnnxRuntimeInstance":
        gpu = spec.device if spec.kind is InstanceKind.GPU else None
        if gpu is None:
            session = self._on_cpu()
        elif self._spare is not None and self._spare[0] == gpu:
            session, self._spare = self._spare[1], None
        else:
            session = self._session(spec.placement)
        # ONNX Runtime refuses to run with the names of devices that a session does not use.
        shrink = ";".join(each for each in self._shrunk if each in ("cpu:0", f"gpu:{gpu}"))
        return OnnxRuntimeInstance(session, spec.config, shrink, data_dependent=self._data_dependent)

    def close(self) -> None:
        self._cpu_session = self._spare = None
        del self._described

    def _on_cpu(self) -> ort.InferenceSession:
        if self._cpu_session is None:
            self._cpu_session = self._session(Placement(InstanceKind.CPU))
        return self._cpu_session

    def _session(self, placement: Placement) -> ort.InferenceSession:
        config, path = self._source.config, self._source.path
        file = path / "model.onnx" if path.is_dir() else path  # a directory holds external weights too
        providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
        on_gpu = placement.kind is InstanceKind.GPU
        if on_gpu:
            providers.insert(0, (_CUDA, cuda_options(config, placement.device)))
        options = session_options(self._source, 1 if on_gpu else self._source.cpu_instances)
        try:
            # With the fallback, ONNX Runtime would print what went wrong and try again without the GPU.
            session = ort.InferenceSession(str(file), options, providers=providers, enable_fallback=0)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but this
            text = _text(error)
            hint = next((hint for part, hint in _LOAD_HINTS.items() if part in text), "")
            raise invalid(f"failed to load model '{config.name}' from '{file}': {text}{hint}") from error
        if on_gpu and _CUDA not in session.get_providers():
            raise invalid(
                f"model '{config.name}' has an instance on GPU {placement.device}, but ONNX Runtime runs it on the "
                "CPU: its CUDA provider could not be used. Are the CUDA and cuDNN libraries that it was built for "
                "installed? Use kind: KIND_CPU to run on the CPU"
            )
        return session


class OnnxRuntimeInstance:
    def __init__(
        self, session: ort.InferenceSession, config: ModelConfig, shrink: str = "", *, data_dependent: bool = True
    ) -> None:
        self.data_dependent = data_dependent
        self._session = session
        self._run_options: ort.RunOptions | None = None
        if shrink:
            self._run_options = ort.RunOptions()
            self._run_options.log_severity_level = SILENT
            self._run_options.add_run_config_entry(SHRINKAGE, shrink)
        inputs = [(spec.name, spec.datatype) for spec in config.inputs]
        outputs = [(spec.name, spec.datatype) for spec in config.outputs]
        if config.sequence_batching is not None:
            inputs += config.sequence_batching.inputs
            outputs += config.sequence_batching.state_outputs
        self._strings = [name for name, datatype in inputs if datatype is dtypes.BYTES]
        self._bfloat16 = [name for name, datatype in inputs if datatype is dtypes.BF16]
        self._gives_bfloat16 = any(datatype is dtypes.BF16 for _, datatype in outputs)
        if self._gives_bfloat16 and self._strings:
            raise unsupported(
                f"model '{config.name}': ONNX Runtime's Python interface cannot give BF16 outputs to a model that "
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
            return dict(zip(outputs, self._session.run(outputs, feeds, self._run_options), strict=True))
        except Exception as error:  # as above
            if type(error).__name__ == "InvalidArgument":  # the inputs do not fit the graph
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
        results = self._session.run_with_ort_values(outputs, values, self._run_options)
        return dict(zip(outputs, map(_to_array, results), strict=True))


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
        hint = _ZIPMAP if "map(" in argument.type else ""
        what = f"tensor '{argument.name}' of the ONNX graph is a {argument.type}"
        raise invalid(f"{what}, which has no v2 datatype{hint}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in argument.shape)
    return DescribedTensor(argument.name, datatype, shape, optional=match[1] is not None)


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

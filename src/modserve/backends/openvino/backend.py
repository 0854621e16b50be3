"""The ``openvino`` backend: models on OpenVINO.

`options` has the users' settings. All instances of a model on one device share one compiled model, and with it the
weights, the threads and the streams, which are lanes of executions at the same time.
"""

import functools
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.errors import invalid

from ..api import QUEUES, InstanceSpec, ModelSource
from ..options import default_max_batch_size
from . import graph
from .files import DEFAULT, model_file
from .instance import OpenVinoInstance, OpenVinoStreams
from .library import VERSION, core, core_with, devices, properties
from .messages import one_line, with_hint
from .names import DATATYPES
from .options import (
    BACKEND_OPTIONS,
    CACHE_DIR,
    CACHE_OPTION,
    PRECISION,
    STREAMS,
    THREADS,
    Value,
    compile_properties,
    read,
    warnings,
)

_log = logging.getLogger(__name__)

_VIRTUAL = ("AUTO", "MULTI", "HETERO", "BATCH")
"""Devices that are others put together, which OpenVINO checks itself."""
_OF_LANGUAGE = "beam_idx"
"""The input of language models that optimum has exported, and of no others."""
_PRECISIONS = {"f32": "fp32", "f16": "fp16"}


class OpenVinoBackend:
    default_model_filename = DEFAULT
    default_cpu_instances = 1
    any_thread = True
    in_place = QUEUES  # the streams of a compiled model are as many as its instances
    known_options = BACKEND_OPTIONS

    def gpu_count(self) -> int:
        return sum(device.partition(".")[0] == "GPU" for device in devices())

    def code_in(self, config: ModelConfig, path: Path) -> str:
        library = read(config).extension
        return f"its parameter CPU_EXTENSION_PATH names an operator library, '{library}'" if library else ""

    def open(self, source: ModelSource) -> "OpenVinoModel":
        for warning in warnings(source.config):
            _log.warning("%s", warning)
        return OpenVinoModel(source)


class OpenVinoModel:
    """A model file, compiled once for each device that it has instances on."""

    def __init__(self, source: ModelSource) -> None:
        config = source.config
        self._source = source
        self._options = read(config)
        self._path = model_file(source.path, config.name)
        self._core = _core(config, self._options.extension)
        self._graph = graph.load(self._core, self._path, config, self._options)
        self._compiled: dict[str, Any] = {}
        self._lock = threading.Lock()
        for warning in self._warnings():
            _log.warning("model '%s': %s", config.name, warning)

    def describe(self) -> ModelDescription:
        config, opened = self._source.config, self._graph
        return ModelDescription(
            tuple(graph.describe_tensors(opened.inputs, config.inputs, opened, config.name)),
            tuple(graph.describe_tensors(opened.outputs, config.outputs, opened, config.name)),
            default_max_batch_size(self._source.options),
        )

    def instance(self, spec: InstanceSpec) -> OpenVinoInstance | OpenVinoStreams:
        device = self._device(spec)
        with self._lock:
            if device not in self._compiled:
                self._compiled[device] = self._compile(device)
            compiled = self._compiled[device]
        streams = -(-int(_value(compiled, STREAMS, 1)) // self._source.cpu_instances)
        count = self._options.requests or max(1, streams)
        if spec.config.sequence_batching is not None:
            count = 1
        current, renew = functools.partial(self._compiled.get, device), functools.partial(self._renew, device)
        instances = [OpenVinoInstance(current, renew, self._graph, narrows=device == "CPU") for _ in range(count)]
        return instances[0] if count == 1 else OpenVinoStreams(spec.name, instances)

    def report(self) -> Mapping[str, object]:
        report: dict[str, object] = {"engine": "OpenVINO", "version": VERSION, "file": self._path.name}
        for device, compiled in self._compiled.items():
            report["device"] = device
            report["device_name"] = str(self._device_name(device))
            report["precision"] = "int8" if self._options.compressed else _precision(compiled)
            report["streams"] = int(_value(compiled, STREAMS, 1))
            report["threads"] = int(_value(compiled, THREADS, self._source.cpu_threads))
        return report

    def close(self) -> None:
        self._compiled.clear()
        del self._graph

    def _renew(self, device: str, compiled: Any) -> None:
        """Compile the model anew after an execution has failed, for all instances on the device."""
        with self._lock:
            if self._compiled.get(device) is compiled:
                self._compiled[device] = self._compile(device)

    def _compile(self, device: str) -> Any:
        source, name = self._source, self._source.config.name
        values = compile_properties(
            self._options,
            device,
            threads=source.cpu_threads * source.cpu_instances,
            streams=source.cpu_instances,
            cache_directory=source.options.get(CACHE_OPTION, ""),
        )
        usable = self._usable(device, values)
        try:
            compiled = self._core.compile_model(self._graph.model, device, usable)
        except Exception as error:  # as in `graph`
            settings = ", ".join(f"{key}={value}" for key, value in usable.items())
            raise invalid(
                f"failed to load model '{name}' from '{self._path}': OpenVINO cannot compile it for {device} with "
                f"{settings}: {with_hint(one_line(str(error)))}"
            ) from error
        precision, hint = _precision(compiled), str(usable.get(PRECISION, ""))
        if hint in DATATYPES and precision != _PRECISIONS.get(hint, hint):
            _log.warning("model '%s': %s is %s, but %s computes in %s", name, PRECISION, hint, device, precision)
        return compiled

    def _usable(self, device: str, values: Mapping[str, Value]) -> dict[str, Value]:
        """Remove properties that the device does not know or that cannot work here, with warnings."""
        name, usable = self._source.config.name, dict(values)
        known = properties(device)
        for key in ("COMPILATION_NUM_THREADS", "CPU_DENORMALS_OPTIMIZATION", "ENABLE_HYPER_THREADING"):
            if key in usable and known and key not in known:
                del usable[key]
                _log.warning("model '%s': parameter '%s' has no effect: device %s does not know it", name, key, device)
        directory = usable.get(CACHE_DIR)
        if directory and (reason := _unwritable(Path(str(directory)))):
            del usable[CACHE_DIR]
            _log.warning("model '%s': it is compiled without a cache: %s", name, reason)
        return usable

    def _device(self, spec: InstanceSpec) -> str:
        """Return OpenVINO's name of an instance's device. Raises INVALID_ARG for one that is not there."""
        device = self._options.device or (f"GPU.{spec.device}" if spec.kind is InstanceKind.GPU else "CPU")
        present = {each.removesuffix(".0") for each in devices()}  # GPU and GPU.0 are the same
        if device.partition(":")[0] not in _VIRTUAL and device.removesuffix(".0") not in present:
            raise invalid(
                f"model '{self._source.config.name}': instance '{spec.name}' is for device {device}, but here OpenVINO "
                f"has: {', '.join(devices())}"
            )
        return device

    def _device_name(self, device: str) -> object:
        try:
            return self._core.get_property(device, "FULL_DEVICE_NAME")
        except RuntimeError:  # devices that are others put together have none
            return device

    def _warnings(self) -> list[str]:
        notes = []
        wide = [
            name
            for name, port in (*self._graph.inputs.items(), *self._graph.outputs.items())
            if port.element_type == "f64"
        ]
        if wide:
            notes.append(f"{', '.join(wide)}: OpenVINO computes in FP32 instead of FP64 on the CPU")
        if _OF_LANGUAGE in self._graph.inputs:
            notes.append(
                "it writes texts, and takes tensors only here; backend 'openvino_genai' serves texts and chats, with "
                "openvino_tokenizer.xml and openvino_detokenizer.xml beside the model (convert_tokenizer "
                "--with-detokenizer makes them)"
            )
        elif self._graph.has_state:
            notes.append("its graph has a state, which is reset for each execution")
        if self._options.fixed_batch and not self._source.config.batching:
            notes.append("parameter 'SKIP_OV_DYNAMIC_BATCHSIZE' has no effect: max_batch_size is 0")
        return notes


def _core(config: ModelConfig, extension: str) -> Any:
    if not extension:
        return core()
    try:
        return core_with(extension)
    except Exception as error:
        raise invalid(
            f"model '{config.name}': parameter 'CPU_EXTENSION_PATH' is '{extension}', expected an operator "
            f"library for OpenVINO {VERSION}: {one_line(str(error))}"
        ) from error


def _value(compiled: Any, name: str, default: int) -> Any:
    """Return a property of a compiled model; the default if the device lacks it."""
    try:
        return compiled.get_property(name)
    except RuntimeError:
        return default


def _precision(compiled: Any) -> str:
    try:
        name = str(compiled.get_property(PRECISION).get_type_name())
    except (RuntimeError, AttributeError):
        return "unknown"
    return _PRECISIONS.get(name, name)


def _unwritable(directory: Path) -> str:
    """Return why a directory cannot keep files, after making it if necessary; empty if it can."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{CACHE_DIR} '{directory}': {error.strerror or error}"
    return "" if os.access(directory, os.W_OK | os.X_OK) else f"{CACHE_DIR} '{directory}' cannot be written to"

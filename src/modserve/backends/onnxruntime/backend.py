"""The ``onnxruntime`` backend: ONNX models on ONNX Runtime.

`options` and `providers` read the settings. The CPU instances of a model share one thread-safe session with one copy of
the weights, unless the model sets one session per instance. Each GPU instance has its own session. A model with
instances only on GPUs has no CPU session.
"""

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort

from modserve.core.configuration.model_config import DescribedTensor, InstanceKind, ModelDescription
from modserve.core.errors import invalid

from ..api import INSTANCES, InstanceSpec, ModelSource, Placement
from ..code import OperatorLibraries
from ..options import default_max_batch_size
from . import builds
from .graph import depends_on_data, find_unranked, precision
from .instance import OnnxRuntimeInstance
from .onnx_file import read_file
from .options import (
    BACKEND_OPTIONS,
    global_threads,
    optimisation_level,
    shares_session,
    shrunk_devices,
    threads_of,
    visible_gpus,
    warnings,
)
from .providers import CUDA
from .quantization import QuantisedFile, is_quantised
from .sessions import ModelFile, OnnxSession, open_session
from .tensors import describe

_log = logging.getLogger(__name__)


@functools.cache
def set_up() -> None:
    """Set up the process once: load the build's dependencies and log its capabilities."""
    builds.preload_cuda()
    _log.info("%s", builds.line())
    if CUDA not in ort.get_available_providers() and (gpus := _gpu_devices()):
        _log.info(
            "this build of ONNX Runtime cannot use the GPUs of this machine (%s); docs/engines/gpu.md "
            "explains how to install onnxruntime-gpu",
            ", ".join(sorted(gpus)),
        )
    if warning := builds.conflict(builds.find_installed(), builds.find_loaded_distribution()):
        _log.warning("%s", warning)


class OnnxRuntimeBackend(OperatorLibraries):
    default_model_filename = "model.onnx"
    default_cpu_instances = 2
    any_thread = True
    in_place = INSTANCES
    known_options = BACKEND_OPTIONS

    def __init__(self) -> None:
        set_up()

    def gpu_count(self) -> int:
        if CUDA not in ort.get_available_providers():
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
    """An ONNX file and its sessions: one shared by the CPU instances or one for each, and one for each GPU instance."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._shrunk = shrunk_devices(source.config)
        self._shared = shares_session(source.config)
        self._own_file = self._file = ModelFile(source.path)
        self._quantised: QuantisedFile | None = None
        if is_quantised(source.config):
            self._quantised = QuantisedFile(self._own_file.path, source)
            self._file = ModelFile(self._quantised.path)
        self._cpu_session: OnnxSession | None = None
        self._spare: tuple[int | None, OnnxSession] | None = None
        """A session not yet used by an instance, and its GPU; None for the CPU."""
        self._gpus: dict[str, int | None] = {}
        """GPU numbers by the names of the instances."""
        placements = source.placements
        gpu = placements[0].device if placements and all(map(_is_gpu, placements)) else None
        try:
            self._first = self._session(gpu)
        except BaseException:
            self._release_file()
            raise
        self._spare = gpu, self._first
        self._log_divisions()
        self._data_dependent = read_file(self._own_file.path, depends_on_data, True)

    def _log_divisions(self) -> None:
        divisions, name = self._file.divisions, self._source.config.name
        if divisions is None:
            return
        if divisions.count:
            _log.info(
                "model '%s' divides integers in %d nodes: requests with a divisor 0 are refused, and the lowest "
                "number divided by -1 is itself. Without this guard, ONNX Runtime might end the server",
                name,
                divisions.count,
            )
        if divisions.others:
            _log.warning(
                "model '%s' may divide integers in %d nodes that cannot be guarded: their type is not in the file, or "
                "ONNX Runtime refuses the guard. Dividing an integer by 0, or the lowest number by -1, may end the "
                "server",
                name,
                divisions.others,
            )

    def describe(self) -> ModelDescription:
        try:
            inputs, outputs = self._tensors()
        except UnicodeDecodeError as error:
            raise invalid(f"a name in '{self._own_file.path}' is not UTF-8: {error}") from None
        return ModelDescription(inputs, outputs, default_max_batch_size(self._source.options))

    def _tensors(self) -> tuple[tuple[DescribedTensor, ...], tuple[DescribedTensor, ...]]:
        """Describe the inputs and the outputs."""
        session = self._first.session
        any_rank = read_file(self._own_file.path, find_unranked, frozenset[str]())
        inputs = [describe(argument, any_rank) for argument in session.get_inputs()]
        # Old files list all weights among the inputs. The configuration tells the real inputs.
        configured = self._source.config.inputs_by_name
        defaults = [each for each in session.get_overridable_initializers() if each.name in configured]
        inputs += [describe(argument, optional=True) for argument in defaults]
        return tuple(inputs), tuple(describe(argument, any_rank) for argument in session.get_outputs())

    def instance(self, spec: InstanceSpec) -> OnnxRuntimeInstance:
        gpu = spec.device if _is_gpu(spec.placement) else None
        if self._spare is not None and self._spare[0] == gpu:
            session = self._spare[1]
            if spec.index >= 0 and (gpu is not None or not self._shared):
                self._spare = None
        else:
            session = self._session(gpu)
        self._gpus[spec.name] = gpu
        # ONNX Runtime rejects names of devices that the session does not use.
        shrink = ";".join(each for each in self._shrunk if each in ("cpu:0", f"gpu:{gpu}"))
        return OnnxRuntimeInstance(session.session, spec.config, shrink, data_dependent=self._data_dependent)

    def report(self) -> Mapping[str, object]:
        first, config = self._first, self._source.config
        gpus = sorted({gpu for gpu in self._gpus.values() if gpu is not None})
        devices = (["CPU"] if None in self._gpus.values() else []) + [f"GPU {gpu}" for gpu in gpus]
        report: dict[str, object] = {
            "engine": "ONNX Runtime",
            "version": ort.__version__,
            "precision": "int8" if self._quantised else read_file(self._file.path, precision, "fp32"),
            "device": ", ".join(devices),
            "threads": threads_of(self._source) if first.threads else 0,
            "session_threads": first.threads,
            "shared_session": self._shared and list(self._gpus.values()).count(None) > 1,
            "providers": list(first.providers),
            "graph_optimization": optimisation_level(config),
            "file": self._own_file.path.name,
        }
        if first.node_counts:
            report["nodes"] = dict(first.node_counts)
        if self._file.labels:
            report["class_labels"] = {name: list(labels) for name, labels in self._file.labels.items()}
        return report

    def close(self) -> None:
        self._cpu_session = self._spare = None
        del self._first
        self._release_file()

    def forget(self) -> None:
        """Delete this object's files from disk, for a caller that only tried the model."""
        if self._quantised is not None:
            self._quantised.forget()

    def _release_file(self) -> None:
        if self._quantised is not None:
            self._quantised.close()

    def _session(self, gpu: int | None) -> OnnxSession:
        if gpu is not None:
            return open_session(self._source, self._file, Placement(InstanceKind.GPU, gpu), 1)
        cpu = Placement(InstanceKind.CPU)
        if not self._shared:
            return open_session(self._source, self._file, cpu, 1)
        if self._cpu_session is None:
            self._cpu_session = open_session(self._source, self._file, cpu, self._source.cpu_instances)
        return self._cpu_session


def _is_gpu(placement: Placement) -> bool:
    return placement.kind is InstanceKind.GPU

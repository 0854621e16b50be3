"""The ``pytorch`` backend. `options` has the users' settings, `naming` the assignment of tensors.

A model's file has one of four forms (`archive.Form`), each with a class here that opens it (`program.TorchProgram`).
`instance.PyTorchInstance` runs the loaded program of any form.
"""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import torch

from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.errors import invalid

from ..api import InstanceSpec, ModelSource, Placement
from .archive import Form, form_of
from .export import CompiledProgram, ExportedProgram
from .instance import PyTorchInstance
from .options import BACKEND_OPTIONS, RUNTIME_MODEL, PyTorchOptions, read, warnings
from .program import TorchProgram
from .python_class import PythonClass
from .threads import SharedThreads, one_thread, process_modes
from .torchscript import TorchScriptProgram

_log = logging.getLogger(__name__)


class PyTorchBackend:
    default_model_filename = "model.pt"
    default_cpu_instances = 2
    any_thread = False
    """The number of threads is that of the calling thread: an instance stays on its own."""
    known_options = BACKEND_OPTIONS

    def gpu_count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def code_in(self, config: ModelConfig, path: Path) -> str:
        file = _class_file(config, path) or path
        form = form_of(file) if file.is_file() else None
        if form is Form.CLASS:
            return f"'{file.name}' is a program"
        return f"'{file.name}' is a compiled package, which contains machine code" if form is Form.COMPILED else ""

    def open(self, source: ModelSource) -> "PyTorchModel":
        config = source.config
        path = _class_file(config, source.path) or source.path
        if not path.exists():
            raise invalid(f"unable to find model file '{path}' for model '{config.name}'{_beside(path)}")
        form = form_of(path)
        options = read(config)
        for warning in warnings(config, form, self.gpu_count()):
            _log.warning("%s", warning)
        process_modes.configure(
            f"model '{config.name}'", options.inter_op_threads, options.jit_modes, cudnn=options.cudnn
        )
        return PyTorchModel(source, options, form, path)


def _class_file(config: ModelConfig, path: Path) -> Path | None:
    """Return the file with the model's class, if ``runtime`` names one, located as in Triton."""
    if config.runtime != RUNTIME_MODEL or path.suffix == ".py":
        return None
    file = path.parent / RUNTIME_MODEL
    return file if file.exists() else None


def _beside(path: Path) -> str:
    """Return a hint for a missing file when there is a class; else empty."""
    if path.suffix == ".py" or not (path.parent / RUNTIME_MODEL).exists():
        return ""
    return f'; to serve the class in {RUNTIME_MODEL} beside it, set runtime: "{RUNTIME_MODEL}" in config.pbtxt'


def _device(placement: Placement) -> torch.device | None:
    """Return the device of a placement; None for KIND_MODEL: the model decides."""
    if placement.kind is InstanceKind.GPU:
        return torch.device("cuda", placement.device)
    return None if placement.kind is InstanceKind.MODEL else torch.device("cpu")


class PyTorchModel:
    """A model file, and the programs loaded from it for each device."""

    def __init__(self, source: ModelSource, options: PyTorchOptions, form: Form, path: Path) -> None:
        self._source = source
        self._options = options
        self._path = path
        self._form = form
        first = source.placements[0] if source.placements else Placement(InstanceKind.CPU)
        self._program = self._open_program(_device(first))
        self._shares = not self._program.stateful if options.weight_sharing is None else options.weight_sharing
        if self._program.stateful and self._shares and form is not Form.CLASS:
            _log.warning(
                "model '%s' changes its own state when it runs, and its instances share it (ENABLE_WEIGHT_SHARING): "
                "with several instances, its results are unreliable",
                source.config.name,
            )
        # Other threads than these would come on top of the server's.
        exact = options.threads
        # Compiled code is made for one number of threads, and made again for another.
        fixed = exact or self._compiled or form is Form.COMPILED
        self._threads = SharedThreads(exact or source.cpu_threads, 1 if fixed else source.cpu_instances)
        if form is Form.COMPILED:
            _log.warning(
                "model '%s' is a compiled package: PyTorch holds Python's lock while it runs, so that the whole server "
                "waits for each execution. If executions are long, run the package from a model.py",
                source.config.name,
            )
        self._devices: dict[str, None] = {}
        self._making = threading.Lock()

    @property
    def _compiled(self) -> bool:
        return self._options.compile is not None and self._form in (Form.EXPORTED, Form.CLASS)

    def describe(self) -> ModelDescription | None:
        return self._program.describe()

    def instance(self, spec: InstanceSpec) -> PyTorchInstance:
        device = _device(spec.placement)
        alone = self._shares or self._form is Form.CLASS or spec.config.sequence_batching is not None
        if spec.index == 1 and not alone and self._program.stateful:
            _log.warning(
                "model '%s' changes its own state when it runs, and each instance has "
                "a separate state: you probably want instance_group [ { count: 1 } ] or sequence_batching",
                spec.config.name,
            )
        with self._making, one_thread(), torch.inference_mode(self._options.inference_mode):
            loaded = self._program.load(spec.config, device, fresh=not self._shares)
        self._devices[str(loaded.device or "cpu")] = None
        return PyTorchInstance(loaded, spec.config, self._options, self._threads)

    def report(self) -> Mapping[str, object]:
        options = self._options
        return {
            "engine": "PyTorch",
            "version": str(torch.__version__),
            "precision": options.served_precision,
            "device": ", ".join(self._devices) or "cpu",
            "threads": self._threads.own,
            "threads_alone": self._threads.all,
            "form": self._form.value,
            "file": self._path.name,
            "weights_shared": self._shares,
            "stateful": self._program.stateful,
            "compiled": self._compiled,
        }

    def close(self) -> None:
        self._program.close()

    def _open_program(self, device: torch.device | None) -> TorchProgram:
        source, options = self._source, self._options
        with one_thread(), torch.inference_mode(options.inference_mode):
            if self._form is Form.CLASS:
                return PythonClass(source, options, self._path)
            if self._form is Form.EXPORTED:
                return ExportedProgram(source, options)
            if self._form is Form.COMPILED:
                return CompiledProgram(source, device)
            return TorchScriptProgram(source, options, device)

"""The ``mlflow`` backend: runs a directory saved by MLflow as a pyfunc in a worker process.

The model is a Python model with `program` as its model.py, so docs/python-models.md applies to its instances,
environments and limits. Loading an MLflow model runs its author's code, like a model.py.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig, ModelDescription

from ..api import Executor, InstanceSpec, ModelSource
from ..options import MAX_BATCH_SIZE, default_max_batch_size
from ..python import options as python_options
from ..python.backend import PythonBackend, PythonModel
from .description import FILENAME, locate, read

_log = logging.getLogger(__name__)

_PROGRAM = Path(__file__).parent / "program" / "model.py"
_DEFAULT_MAX_BATCH_SIZE = 1024


class MlflowBackend:
    default_model_filename = FILENAME
    default_cpu_instances = 1
    any_thread = False
    parallel_instances = True
    known_options: Mapping[str, str] = {**python_options.BACKEND_OPTIONS, MAX_BATCH_SIZE: ""}

    def gpu_count(self) -> int:
        return PythonBackend().gpu_count()

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return "a model saved by MLflow is a program"

    def open(self, source: ModelSource) -> "MlflowModel":
        return MlflowModel(source)


class MlflowModel:
    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._description = description = read(locate(source.path))
        _log.info(
            "model '%s': '%s' runs with %s in a process of its own; it was saved by MLflow %s",
            source.config.name,
            description.directory,
            description.loader,
            description.version or "(unknown version)",
        )
        self._python = PythonModel(replace(source, path=_PROGRAM, auto_complete=False))

    def describe(self) -> ModelDescription | None:
        inputs, outputs = self._description.inputs, self._description.outputs
        if inputs is None or outputs is None:
            _log.info(
                "model '%s' was saved without a signature of inputs and outputs: its configuration must name them",
                self._source.config.name,
            )
            return None
        default = default_max_batch_size(self._source.options, _DEFAULT_MAX_BATCH_SIZE)
        # A pyfunc may mix its rows, so requests are batched only if the configuration enables it.
        return ModelDescription(inputs, outputs, default, dynamic_batching=False)

    def instance(self, spec: InstanceSpec) -> Executor:
        return self._python.instance(spec)

    def report(self) -> Mapping[str, object]:
        return {
            "engine": "MLflow",
            "version": self._description.version,
            "precision": "",
            "device": "cpu",
            "threads": self._source.cpu_threads,
            "loader": self._description.loader,
            "parameters": list(self._description.parameters),
        }

    def close(self) -> None:
        self._python.close()

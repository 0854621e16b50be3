"""Models written in Python, as Triton's python backend runs them: a ``model.py`` with a class ``TritonPythonModel``.

Each instance is a process of its own (`instance`), or, with the model's parameters, a thread of the server
(`thread`), or runs on its event loop (`inline`). All run the same code of the package `worker`.
"""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from modserve.backends.api import AsyncRequestInstance, InstanceSpec, ModelSource, RequestInstance
from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
from modserve.core.errors import invalid, unavailable
from modserve.core.files.config_file import python_tensors
from modserve.core.tensors import dtypes

from . import environment, options
from .inline import InlineInstance
from .instance import WorkerInstance
from .missing_modules import hints
from .process import WorkerProcess
from .thread import PythonThreadInstance

_log = logging.getLogger(__name__)

_IN_SERVER: Mapping[str, type[PythonThreadInstance] | type[InlineInstance]] = {
    "thread": PythonThreadInstance,
    "inline": InlineInstance,
}
_Instance: TypeAlias = WorkerInstance | PythonThreadInstance | InlineInstance
_NVIDIA = Path("/proc/driver/nvidia/gpus")


class PythonBackend:
    """Implementation of `backends.api.Backend`."""

    default_model_filename = "model.py"
    default_cpu_instances = 1
    any_thread = False
    parallel_instances = True
    in_place = frozenset({"instance_group", "version_policy"})  # `initialize` gets all others, and may read them
    writes_files = True
    known_options = options.BACKEND_OPTIONS

    def gpu_count(self) -> int:
        """Return the GPUs that a model may use: its use of them is its own affair."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            count = len(list(_NVIDIA.iterdir()))
        except OSError:
            return 0
        if visible is not None:
            count = min(count, len([each for each in visible.split(",") if each.strip() not in ("", "-1")]))
        return count

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return "a Python model is a program"

    def open(self, source: ModelSource) -> "PythonModel":
        if not source.path.is_file():
            raise invalid(f"unable to find '{source.path}', the file with the class TritonPythonModel")
        return PythonModel(source)


class PythonModel:
    """Implementation of `backends.api.BackendModel`."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._name = source.config.name
        self._backend_options = options.backend_options(source.options)
        self._options = options.model_options(source.config)
        for warning in options.warnings(source.config):
            _log.warning("%s", warning)
        self._interpreter = environment.prepare(source, self._options, self._backend_options, os.environ)
        self._first: _Instance | None = None

    def describe(self) -> ModelDescription | None:
        """Return the description from ``auto_complete_config``. The process that runs it becomes the first instance."""
        if not self._source.auto_complete:
            return None
        before = _config(self._source.config_json)
        completed = self.complete(before)
        if completed is None:
            return self._without_tensors(before)
        try:
            return _description(before, completed)
        except (KeyError, TypeError, ValueError) as error:
            raise invalid(
                f"auto_complete_config of model '{self._name}' returned a configuration that "
                f"cannot be read: {type(error).__name__}: {error}"
            ) from error

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Complete a configuration by ``auto_complete_config``; None if the model has no such method.

        The process that runs it becomes the first instance.
        """
        instance = self._first = self._start(f"model '{self._name}'")
        with self._hints():
            completed = instance.complete(json.dumps(config))
        return None if completed is None else json.loads(completed)

    def _without_tensors(self, config: Mapping[str, Any]) -> ModelDescription | None:
        """Describe a model that names no tensors, nor does its configuration: as in Triton, it loads."""
        if config["input"] or config["output"]:
            return None
        _log.warning(
            "model '%s' has no inputs and no outputs: neither its configuration nor the auto_complete_config "
            "of its model.py adds any; %s",
            self._name,
            python_tensors(self._name),
        )
        return ModelDescription((), ())

    def instance(self, spec: InstanceSpec) -> AsyncRequestInstance | RequestInstance:
        label = f"model '{self._name}', instance '{spec.name}'"
        instance, self._first = self._first, None
        if instance is None:
            instance = self._start(label)
        try:
            with self._hints():
                instance.initialize(label, spec, self._arguments(spec))
        except BaseException:
            instance.close()
            raise
        return instance

    def close(self) -> None:
        if self._first is not None:
            self._first.close()

    def _start(self, label: str) -> _Instance:
        source = self._source
        folder = source.model_directory / str(source.version)
        is_linked = folder.is_symlink() and folder.readlink() == source.path.parent
        load = {  # by the link, modules are looked for in the model's directory and not around the user's folder
            "path": str(folder / source.path.name if is_linked else source.path),
            "name": self._name,
            "full_errors": self._backend_options.full_errors,
        }
        if self._options.in_server:
            with self._hints():
                return _IN_SERVER[self._options.execution_mode](label, source, load)
        if source.loop is None:
            raise unavailable(f"{label}: a worker process needs a server, whose event loop drives it")
        worker = WorkerProcess(source.loop, label)
        instance = WorkerInstance(
            worker, source, self._backend_options, self._interpreter, self._options.execution_timeout_s
        )
        with self._hints():
            instance.load(load)
        return instance

    def _hints(self) -> AbstractContextManager[None]:
        return hints(self._source, self._options, self._backend_options, self._interpreter.python)

    def _arguments(self, spec: InstanceSpec) -> dict[str, str]:
        """Return the arguments of ``initialize``: Triton's keys, all values texts."""
        return {
            "model_config": spec.config_json,
            "model_instance_kind": spec.kind.name,
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.device),
            "model_repository": str(self._source.model_directory),
            "model_version": str(self._source.version),
            "model_name": self._name,
        }


def _config(text: str) -> dict[str, Any]:
    """Return the configuration with the fields that models read, which Triton fills in before it asks them."""
    config: dict[str, Any] = json.loads(text)
    pinned = {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}}
    optimization = pinned | config.get("optimization", {})
    latest = {"latest": {"num_versions": 1}}
    return {
        "version_policy": latest,
        "max_batch_size": 0,
        "input": [],
        "output": [],
        **config,
        "optimization": optimization,
    }


def _description(before: Mapping[str, Any], config: Mapping[str, Any]) -> ModelDescription:
    policy = config.get("model_transaction_policy")
    return ModelDescription(
        inputs=tuple([_tensor(tensor) for tensor in config["input"]]),
        outputs=tuple([_tensor(tensor) for tensor in config["output"]]),
        max_batch_size=int(config["max_batch_size"]),
        batch_dimension=False,
        decoupled=None if policy is None else bool(policy.get("decoupled")),
        dynamic_batching="dynamic_batching" in config,
        adds_tensors=True,
    )


def _tensor(tensor: Mapping[str, Any]) -> DescribedTensor:
    datatype = dtypes.BY_CONFIG_NAME[tensor["data_type"]]
    shape = tuple([int(dim) for dim in tensor["dims"]])
    return DescribedTensor(str(tensor["name"]), datatype, shape, bool(tensor.get("optional")))

"""Backends, the models they open, and what they are told about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from modserve.core.errors import unavailable
from modserve.core.model_config import InstanceKind, ModelConfig, ModelDescription

from .calls import ModelCaller
from .instances import Executor


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instance runs: CPU, MODEL (the model decides), or GPU number `device`."""

    kind: InstanceKind
    device: int = 0


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """The instance that a `BackendModel` is to make."""

    name: str
    """As Triton names them: ``<instance group>_<number>``, on GPUs ``<instance group>_<device>_<number>``."""
    kind: InstanceKind
    """CPU, GPU, or MODEL: the model decides."""
    device: int
    """The number of the GPU; 0 for the other kinds."""
    index: int
    """Its number among the instances of the model version, from 0. An instance keeps it when it is made anew."""
    config: ModelConfig
    """The completed configuration, as far as the server acts on it."""
    write_config: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def config_json(self) -> str:
        """The whole normalised configuration as JSON with the names of ``config.pbtxt``, as Triton hands it to models.

        The text is made when the first instance of a model reads it, and then kept.
        """
        return self.write_config()

    @property
    def placement(self) -> Placement:
        return Placement(self.kind, self.device)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a backend gets to open a model version.

    `config` may still lack inputs, outputs and max_batch_size; `path` is the model file (or directory) inside the
    version directory. `cpu_threads` is this instance's share of the CPU cores; `cpu_instances` how many of the model's
    instances run on the CPU, and `placements` where each is likely to run; the completed configuration may change that.
    """

    config: ModelConfig
    version: int
    path: Path
    model_directory: Path
    cpu_threads: int = 1
    cpu_instances: int = 1
    placements: tuple[Placement, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """The server's options for this backend (``--backend-config``)."""
    models: ModelCaller = field(default_factory=lambda: cast(ModelCaller, _NoModels()), repr=False, compare=False)
    """The other models of the server."""
    write_config: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def config_json(self) -> str:
        """The whole configuration as it was written, as `InstanceSpec.config_json` has it."""
        return self.write_config()


class _NoModels:
    """Stands for `ModelCaller` where there is no server."""

    def __getattr__(self, name: str) -> Any:
        raise unavailable("there are no other models here to call")


class BackendModel(Protocol):
    """One opened model version. Called on a loading thread, never on the event loop's."""

    def describe(self) -> ModelDescription | None:
        """What the model file says of the model; None when it says nothing."""
        ...

    def instance(self, spec: InstanceSpec) -> Executor:
        """A new executor; also called to replace one that was lost, while the others run.

        Models written for the first edition have ``instance(config, placement)`` in its place, which goes on working.
        """
        ...

    def close(self) -> None:
        """Let go of everything. All instances are closed."""
        ...


class Backend(Protocol):
    """One engine."""

    default_model_filename: str
    """The model file in a version directory when the configuration names none; empty when there need be no file."""
    default_cpu_instances: int
    """How many instances a model gets on the CPU when its configuration says nothing."""

    any_thread: bool
    """Whether instances may be used by different threads, one at a time.

    Lets very short executions skip a hop, of instances that say that they are not `data_dependent`.
    """

    def gpu_count(self) -> int:
        """How many GPUs this engine can use here."""
        ...

    def open(self, source: ModelSource) -> BackendModel:
        """Read a model version. Blocking; called on a loading thread. Raises when the file is no good."""
        ...

"""The backend API: what an engine implements to run models.

Three small objects: a `Backend` (one in the process) opens model files; a `BackendModel` is one opened model version;
a `BackendInstance` executes batches, one at a time. A package offers a backend by an entry point in the group
``modserve.backends`` whose name is the one that configurations use and whose value is a class without constructor
arguments.

Any exception an engine raises fails the requests at hand (or the load) with its text. Engines that know better whose
fault it was raise `modserve.ModserveError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

from modserve.core.errors import ModserveError
from modserve.core.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.request import ParameterValue
from modserve.core.tensor import Array


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instance runs: CPU, MODEL (the model decides), or GPU number `device`."""

    kind: InstanceKind
    device: int = 0


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


class BackendInstance(Protocol):
    """One executor, used by one thread at a time: always the same, unless its backend says `any_thread`.

    It may have these attributes besides:

    `reuses_outputs` (bool, False where it is absent): the engine uses the memory of its outputs again, see `execute`.

    `data_dependent` (bool, True where it is absent): executions of the same shapes may take very different times,
    because of the values in them. Only where it is False, and the backend says `any_thread`, may very short executions
    run on the event loop's thread, where one that takes long stops the whole server.
    """

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        """Run one batch, blocking.

        `inputs` are arrays as `core.dtypes` maps the datatypes, with the batch dimension if the model has one, and
        possibly read-only. `outputs` names what is wanted; more may be returned. A model with a batch dimension gives
        as many rows as it got.

        The memory of the inputs is the engine's to read until it returns, and to hand back as outputs. The memory of
        the outputs is the server's from then on, which reads it while later batches run: the engine must not write to
        it any more, or say `reuses_outputs`, and the server copies what it needs before the next execution begins.

        When a merged batch fails with INVALID_ARG, INTERNAL or any other exception, the server runs its requests once
        more, one by one, unless the model keeps state.
        """
        ...

    def close(self) -> None:
        """Let go of everything. No execution is under way."""
        ...


class EngineRequest(Protocol):
    """One request, for engines that answer each by itself.

    It may be kept after the execution has returned, and be used from any thread, by one at a time. Each must get a
    final answer: one that is let go of without it is failed.
    """

    id: str
    inputs: Mapping[str, Array]
    """As `BackendInstance.execute` gets them, of this request alone."""
    outputs: tuple[str, ...]
    """The wanted ones; more may be given."""
    parameters: Mapping[str, ParameterValue]

    @property
    def cancelled(self) -> bool:
        """Nobody waits for an answer any more. It must be ended all the same, by `complete` or any final answer."""
        ...

    def respond(
        self,
        outputs: Mapping[str, Array],
        *,
        parameters: Mapping[str, ParameterValue] = MappingProxyType({}),
        final: bool = False,
    ) -> None:
        """Give a response. For models that are not decoupled it is the final one; decoupled ones may leave outputs out.

        `parameters` are those of the response. Raises RuntimeError after the final answer.

        Blocks while the client has 64 MiB of this request's responses still to take, but for the final one. It gets 10
        seconds for some progress each time, and 300 for all of the request; then it is over, and `cancelled` says so.
        So not for a thread that others wait for, if that matters, and never for the event loop's.
        """
        ...

    def fail(self, error: ModserveError, *, final: bool = True) -> None:
        """Answer with a failure, after which decoupled models may go on if it is not `final`.

        Raises as `respond`, and blocks as that does if it is not `final`.
        """
        ...

    def complete(self) -> None:
        """No more answers. Does nothing after the final one."""
        ...

    def reschedule(self) -> None:
        """In place of a final answer: run the request again in a later execution, with the states it has by then.

        It comes back as another object. For models with ``sequence_batching { iterative_sequence: true }``; raises
        RuntimeError for others, and after the final answer.
        """
        ...


@runtime_checkable
class RequestInstance(Protocol):
    """An executor that gets the requests of a batch one by one, and answers each by itself.

    For engines that need more of a request than its tensors, and for decoupled models with any number of responses.
    It may have the attribute `reuses_outputs`, as `BackendInstance` has it: what it gives to `respond` is then copied.
    """

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        """Begin to answer requests, blocking as long as it keeps the instance busy.

        What it raises is the answer to those that have no final one by then.
        """
        ...

    def close(self) -> None:
        """Let go of everything. No execution is under way; requests may still be open at the end of the process."""
        ...


Executor: TypeAlias = BackendInstance | RequestInstance


def reuses_outputs(executor: Executor) -> bool:
    """Whether the server has to copy what the executor gives."""
    return bool(getattr(executor, "reuses_outputs", False))


def data_dependent(executor: Executor) -> bool:
    """Whether executions of the same shapes may take very different times."""
    return bool(getattr(executor, "data_dependent", True))


class BackendModel(Protocol):
    """One opened model version. Called on a loading thread, never on the event loop's."""

    def describe(self) -> ModelDescription | None:
        """What the model file says of its tensors; None when it says nothing."""
        ...

    def instance(self, config: ModelConfig, placement: Placement) -> Executor:
        """A new executor; `config` is complete now."""
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

"""The backend API: what an engine implements to run models, second edition. docs/backends.md has examples.

Three small objects: a `Backend` (one in the process) opens model files; a `BackendModel` is one opened model version;
an instance executes batches. A package offers a backend by an entry point in the group ``modserve.backends`` whose name
is the one that configurations use and whose value is a class without constructor arguments.

There are four kinds of instance. An engine chooses by what it needs, and is recognised by the method it has: on its own
thread ``execute`` (`BackendInstance`: a merged batch, arrays in and arrays out) or ``execute_requests``
(`RequestInstance`: the requests of a batch, one by one); on the event loop ``start`` (`AsyncInstance`) or
``start_requests`` (`AsyncRequestInstance`).

Any exception an engine raises fails the requests at hand (or the load) with its text. Engines that know better whose
fault it was raise `modserve.ModserveError`; `InstanceLostError` says that the instance itself is gone, and is replaced.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.statistics.metrics import MetricStore
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape

from .metrics import MetricKind as MetricKind
from .metrics import ModelMetric as ModelMetric
from .metrics import ModelMetrics as ModelMetrics
from .requests import Call as Call
from .requests import EngineRequest as EngineRequest
from .requests import FinalResponse as FinalResponse
from .requests import ModelCaller as ModelCaller
from .requests import OnResponse as OnResponse
from .requests import Parents as Parents
from .requests import Values as Values


class InstanceLostError(ModserveError):
    """The instance cannot run anything any more: its process has ended, its device is gone.

    An instance on a thread raises it; one on the event loop reports it through its `InstanceHandle`. The requests at
    hand fail with UNAVAILABLE and this text, and the server makes another instance.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class BackendInstance(Protocol):
    """One executor, used by one thread at a time: always the same, unless its backend says `any_thread`.

    It may have these attributes besides, and the other kinds of instance all but `data_dependent`: `reuses_outputs`
    (bool, False where it is absent): the engine uses the memory of its outputs again, see `execute`; `allocate`, an
    `Allocate`, asked for each merged input; `devices`, pairs as ``__dlpack_device__`` gives them, whose tensors it
    takes as they are, see `execute`; `check_ready`, a `CheckReady`; `takes_early` (bool, False where it is absent): the
    server may start an execution a moment before the one under way is over, and it waits for its turn, on the
    instance's thread or, after `start`, inside the engine; `prefers_first` (bool, False where it is absent): of the
    instances that are free, the first is to run the next batch, and not all in turn; `data_dependent` (bool, True where
    it is absent): executions of the same shapes may take very different times. Only where it is False, and the backend
    says `any_thread`, may very short executions run on the event loop's thread, where one that takes long stops the
    whole server; `process_id` (int): the process that runs it, if that is not the server's, whose memory is the model's
    then.
    """

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Values:
        """Run one batch, blocking.

        `inputs` are arrays as `core.tensors.dtypes` maps the datatypes, with the batch dimension if the model has one.
        `outputs` names the requested ones; more may be returned. A model with a batch dimension returns as many rows as
        it gets.

        The engine may read the inputs until it returns, and return them as outputs. It must not write to them: arrays
        over a client's bytes are read-only. The memory of the outputs is the server's from then on, which reads it
        while later batches run. With `reuses_outputs` the server copies what it needs before the next execution.

        When a merged batch fails with INVALID_ARG, INTERNAL or any other exception, the server runs its requests once
        more, one by one, unless the model keeps state.

        Outputs may be `Tensor`s, also in the memory of a device: `Tensor.from_dlpack`. An input of a request that runs
        alone is what another engine has left on a device, an object with ``__dlpack__``, if `devices` has that device.
        """

    def close(self) -> None:
        """Let go of everything. No execution is under way. May block, and is called for a lost instance, too."""


CheckReady: TypeAlias = Callable[[], Awaitable[bool]]
"""Whether the model is ready, as far as this instance knows: an ``async def``, called on the event loop's thread.

It is called when somebody asks for the readiness of the model, also during executions, and once at a time. The model is
ready if all of its instances say so within 5 s. Raising means not ready.
"""


Allocate: TypeAlias = Callable[[str, Datatype, Shape], Array | None]
"""Memory of the engine (shared memory, pinned memory) that the server writes an input to, by name, datatype and shape.

None leaves the input to the server. The array must be writable, in row-major order, of the shape and of the datatype's
numpy type; the server checks that. It belongs to the execution that it was asked for until that is over. Called on the
thread that merges the batch: the instance's thread, or of an instance on the event loop any thread, one at a time for
each execution. Inputs of BYTES are not asked for.
"""


@runtime_checkable
class RequestInstance(Protocol):
    """An executor that gets the requests of a batch one by one, and responds to each by itself, as often as it likes.

    With `reuses_outputs`, what it gives to `respond` is copied.
    """

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        """Begin to respond, blocking while the instance is busy. Raising fails those without a final response."""

    def close(self) -> None:
        """Let go of everything. No execution is under way; requests may still be open at the end of the process."""


class InstanceHandle(Protocol):
    """What an instance on the event loop has of the server."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def lost(self, error: InstanceLostError) -> None:
        """The instance is gone, whatever it was doing. Any thread; the first call counts.

        All executions and requests under way fail with `error`. The server calls `detach` and `close`.
        """


BatchDone: TypeAlias = Callable[[Values | BaseException], None]
"""The end of an execution: its outputs, or why there are none. Any thread; the first call counts."""
RequestsDone: TypeAlias = Callable[[BaseException | Sequence[FinalResponse] | None], None]
"""The end of an execution. An exception is the response to the requests that have no final one by then.

A sequence has the responses to all requests of the execution in order, none of which has had one: that is quicker than
`EngineRequest.respond` for each.
"""


class _OnLoop(Protocol):
    """What the two kinds of instance on the event loop have in common.

    `max_in_flight` (int, 1 where it is absent, and for models with ``sequence_batching``): the executions at a time.
    `max_ahead` (int, 0 where it is absent): how many more the engine takes before it is their turn, and runs in order.
    The server makes use of that while executions are shorter than the way to the engine and back is worth.
    """

    def attach(self, handle: InstanceHandle) -> None:
        """Once, on the event loop's thread, before anything is started. What it raises makes the load fail."""

    def detach(self) -> None:
        """Let go of the event loop: nothing more is started. On the event loop's thread, before `close`."""

    def close(self) -> None:
        """Let go of everything else. May block; on another thread."""


@runtime_checkable
class AsyncInstance(_OnLoop, Protocol):
    """An executor of merged batches that blocks no thread: behind a pipe or a socket, or with callbacks of its own."""

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        """Begin an execution and return at once; `done` ends it. Raising ends it as well. On the event loop's thread.

        All else is as in `BackendInstance.execute`: the engine may read the inputs until it calls `done`.
        """


@runtime_checkable
class AsyncRequestInstance(_OnLoop, Protocol):
    """An executor of single requests that blocks no thread. As `RequestInstance` and `AsyncInstance` together."""

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        """Begin to respond to requests and return at once; after `done` the instance takes others.

        Responses may come before and after that. On the event loop's thread, where `respond` takes ``wait=False``.
        """


Executor: TypeAlias = BackendInstance | RequestInstance | AsyncInstance | AsyncRequestInstance


def reuses_outputs(executor: Executor) -> bool:
    """Whether the server has to copy what the executor returns."""
    return bool(getattr(executor, "reuses_outputs", False))


# Models and backends

QUEUES: Final = frozenset({"dynamic_batching", "model_warmup", "response_cache", "version_policy"})
"""For `in_place` of a backend whose models know nothing of the server's queues."""
INSTANCES: Final = QUEUES | {"instance_group"}
"""The same where instances may come and go while others run."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instance runs: CPU, MODEL (the model decides), or GPU number `device`."""

    kind: InstanceKind
    device: int = 0


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """The instance that a `BackendModel` is to make.

    `name` is as in Triton: ``<instance group>_<number>``, on GPUs ``<instance group>_<device>_<number>``. `device` is
    the number of the GPU, 0 for the other kinds. `index` is the instance's number in the model version, from 0, also
    when it is made anew. `config` is the completed configuration, as far as the server acts on it.
    """

    name: str
    kind: InstanceKind
    device: int
    index: int
    config: ModelConfig
    write_config: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def config_json(self) -> str:
        """The whole normalised configuration as JSON with the names of ``config.pbtxt``, as Triton hands it over."""
        return self.write_config()

    @property
    def placement(self) -> Placement:
        return Placement(self.kind, self.device)


class _NoModels:
    """Stands for `ModelCaller` where there is no server."""

    def __getattr__(self, name: str) -> Any:
        raise unavailable("there are no other models here to call")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a backend gets to open a model version.

    `config` may still lack inputs, outputs and max_batch_size; `path` is the model file (or directory) inside the
    version directory. `cpu_threads` is this instance's share of the CPU cores; `cpu_instances` how many of the model's
    instances run on the CPU, and `placements` where each is likely to run; the completed configuration may change that.
    `options` are the server's for this backend (``--backend-config``), `models` calls the server's other models, and
    `metrics` are of this version's own making. `auto_complete`: what `BackendModel.describe` says is used. `loop` is
    the server's event loop. For a backend that hands models to others: `options_of` has the options of all backends by
    name, and `complete` fills in what an engine says of the model.
    """

    config: ModelConfig
    version: int
    path: Path
    model_directory: Path
    cpu_threads: int = 1
    cpu_instances: int = 1
    placements: tuple[Placement, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    models: ModelCaller = field(default_factory=lambda: cast(ModelCaller, _NoModels()), repr=False, compare=False)
    metrics: ModelMetrics = field(default_factory=lambda: MetricStore().of_model(), repr=False, compare=False)
    write_config: Callable[[], str] = field(default=str, repr=False, compare=False)
    auto_complete: bool = True
    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False, compare=False)
    options_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    complete: Callable[[ModelDescription | None], ModelConfig] | None = field(default=None, repr=False, compare=False)

    def completed(self, description: ModelDescription | None) -> ModelConfig:
        """The configuration as the server would complete it with an engine's description. Raises INVALID_ARG."""
        return self.config if self.complete is None else self.complete(description)

    @property
    def config_json(self) -> str:
        """The whole configuration as it was written, as `InstanceSpec.config_json` has it."""
        return self.write_config()


class BackendModel(Protocol):
    """One opened model version. Called on a loading thread, never on the event loop's.

    It may have two more members. `report() -> Mapping[str, object]`, called when the instances are made, says what runs
    the model, for ``GET /v2/models/{model}/engine`` and ``modserve_engine_info``, in values that JSON has: at least
    `engine` (the library), `version`, `precision`, `device` and `threads`. `any_thread` (bool) takes the place of its
    backend's.
    """

    def describe(self) -> ModelDescription | None:
        """What the model file says of the model; None when it says nothing."""

    def instance(self, spec: InstanceSpec) -> Executor:
        """A new executor; also called to replace one that was lost, while the others run. May block.

        Models written for the first edition have ``instance(config, placement)`` in its place, which goes on working.
        """

    def close(self) -> None:
        """Let go of everything. All instances are closed."""


class Backend(Protocol):
    """One engine.

    `default_model_filename` is the model file in a version directory when the configuration names none; empty when
    there need be no file. A model whose configuration says nothing has `default_cpu_instances` on the CPU. With
    `any_thread`, different threads may use an instance, one at a time; that lets very short executions of instances
    that are not `data_dependent` skip a hop.

    It may have two more attributes. `parallel_instances` (bool, False where it is absent): `BackendModel.instance` may
    be called on several threads at once, for instances that take long to make. `in_place` (a set of names of fields,
    empty where it is absent): fields of the configuration that may change while a model is open, since nothing that was
    made of it depends on them: `QUEUES`, or `INSTANCES`, where instances may be made and closed at any time, too. The
    server then applies such a change without opening the model again. A backend that says it only reads the model's
    files: if they change while it opens a model, the load fails.

    And one more method, ``code_in(config: ModelConfig, path: Path) -> str``: which code of the model repository the
    engine would run to load the model at `path`, in words; empty if none. With ``--deny-code`` the server refuses
    models for which that is not empty, and those of backends without the method.
    """

    default_model_filename: str
    default_cpu_instances: int
    any_thread: bool

    def gpu_count(self) -> int:
        """How many GPUs this engine can use here."""

    def open(self, source: ModelSource) -> BackendModel:
        """Read a model version. Blocking; called on a loading thread. Raises when the file is no good."""

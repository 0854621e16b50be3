"""The backend API, second edition: the interface of engines that run models. docs/backends.md has examples.

Three small objects: a `Backend` (one per process) opens model files; a `BackendModel` is one open model version; an
instance executes batches. A package registers a backend by an entry point in the group ``modserve.backends``. Its name
is the backend name in configurations; its value is a class without constructor arguments.

There are four kinds of instance, recognised by the method they have. On a thread of their own: ``execute``
(`BackendInstance`: a merged batch, arrays in and arrays out) or ``execute_requests`` (`RequestInstance`: the requests
of a batch, one by one). On the event loop: ``start`` (`AsyncInstance`) or ``start_requests`` (`AsyncRequestInstance`).

Any exception of an engine fails the current requests (or the load) with its text. Raise `modserve.ModserveError` to
choose the error code, and `InstanceLostError` if the instance itself is gone; the server then replaces it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from modserve.core.configuration.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.errors import Code, ModserveError, internal, unavailable
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


def refused(engine: str, reason: str) -> ModserveError:
    """Return INTERNAL for inputs that match the configuration but that the engine cannot run.

    Triton's backends use the same code. Rollbacks and alerts count it as a failure of the model.
    """
    return internal(f"{engine} refused the request: {reason}")


class InstanceLostError(ModserveError):
    """The instance cannot run anything any more: its process has ended, its device is gone.

    An instance on a thread raises it; one on the event loop reports it through its `InstanceHandle`. The current
    requests fail with UNAVAILABLE and this text, and the server makes another instance.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class BackendInstance(Protocol):
    """Executor used by one thread at a time: always the same thread, unless its backend has `any_thread`.

    Optional attributes, for the other kinds of instance, too, except `data_dependent`:

    - `reuses_outputs` (bool, False by default): the engine reuses the memory of its outputs, see `execute`.
    - `allocate`, an `Allocate`: called for each merged input.
    - `devices`, pairs as ``__dlpack_device__`` returns them: tensors on these are passed without a copy, see `execute`.
    - `check_ready`, a `CheckReady`.
    - `takes_early` (bool, False by default): the server may start an execution shortly before the current one ends. It
      waits on the instance's thread or, after `start`, inside the engine.
    - `prefers_first` (bool, False by default): the first free instance runs the next batch; otherwise they alternate.
    - `data_dependent` (bool, True by default): executions of the same shapes may take very different times. Only if it
      is False, and the backend has `any_thread`, may very short executions run on the event loop's thread, where a long
      one would stop the whole server.
    - `process_id` (int): the process that runs the instance, if not the server's. Its memory counts as the model's.
    """

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Values:
        """Run one batch, blocking.

        `inputs` are arrays of the types in `core.tensors.dtypes`, with the batch dimension if the model has one.
        `outputs` names the requested ones; more may be returned. A model with a batch dimension returns as many rows as
        it gets.

        The engine may read the inputs until it returns, and return them as outputs. It must not write to them: arrays
        over a client's bytes are read-only. The memory of the outputs then belongs to the server, which reads it while
        later batches run. With `reuses_outputs` the server copies what it needs before the next execution.

        If a merged batch fails with INVALID_ARG, INTERNAL or a foreign exception, the server runs its requests once
        more, one by one, unless the model keeps state.

        Outputs may be `Tensor`s, also in the memory of a device: `Tensor.from_dlpack`. If `devices` has the device of
        an input that another engine has left there, and its request runs alone, the input is that object with
        ``__dlpack__``.
        """

    def close(self) -> None:
        """Release everything. No execution is running. May block; also called for a lost instance."""


CheckReady: TypeAlias = Callable[[], Awaitable[bool]]
"""Readiness check of the model, as far as this instance knows: an ``async def``, called on the event loop's thread.

Called for queries of the model's readiness, also during executions, but never concurrently. The model is ready if all
of its instances report so within 5 s. Raising means not ready.
"""


Allocate: TypeAlias = Callable[[str, Datatype, Shape], Array | None]
"""Allocates memory of the engine (shared or pinned) for an input, by name, datatype and shape.

None leaves the input to the server. The array must be writable, row-major, and of the requested shape and numpy type;
the server checks that. It belongs to its execution until that ends. Called on the thread that merges the batch: the
instance's thread, or, for an instance on the event loop, any thread, one at a time for each execution. Not called for
BYTES.
"""


@runtime_checkable
class RequestInstance(Protocol):
    """An executor that gets the requests of a batch one by one, and responds to each separately, any number of times.

    With `reuses_outputs`, arguments of `respond` are copied. `max_ahead` is as for instances on the event loop.
    """

    def execute_requests(self, requests: Sequence[EngineRequest]) -> Sequence[FinalResponse] | None:
        """Begin to respond, blocking while the instance is busy. Raising fails requests without a final response.

        May return the final responses to all of the requests, in their order, if it has given none itself: together
        they cost the server less. None: it responds, or has responded, to each by itself.
        """

    def close(self) -> None:
        """Release everything. No execution is running; when the process ends, requests may still be open."""


class InstanceHandle(Protocol):
    """The server's side of an instance on the event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def lost(self, error: InstanceLostError) -> None:
        """Report that the instance is gone, at any time. Any thread; only the first call counts.

        All executions and requests in flight fail with `error`. The server calls `detach` and `close`.
        """


BatchDone: TypeAlias = Callable[[Values | BaseException], None]
"""Ends an execution with its outputs, or with the reason for having none. Any thread; only the first call counts."""
RequestsDone: TypeAlias = Callable[[BaseException | Sequence[FinalResponse] | None], None]
"""Ends an execution. An exception is the response to requests without a final one.

A sequence has the responses to all requests of the execution in order; none of them may have had one. This is faster
than `EngineRequest.respond` for each.
"""


class _OnLoop(Protocol):
    """Common part of the two kinds of instance on the event loop.

    `max_in_flight` (int, 1 by default and for models with ``sequence_batching``): concurrent executions. `max_ahead`
    (int, 0 by default): how many more the engine accepts and runs in order afterwards. The server uses this while
    executions are shorter than the round trip to the engine.
    """

    def attach(self, handle: InstanceHandle) -> None:
        """Attach the instance to the event loop: once, on its thread, before any start. Raising fails the load."""

    def detach(self) -> None:
        """Release the event loop: nothing more is started. Called on the event loop's thread, before `close`."""

    def close(self) -> None:
        """Release all other resources. May block; called on another thread."""


@runtime_checkable
class AsyncInstance(_OnLoop, Protocol):
    """An executor of merged batches that blocks no thread: behind a pipe or a socket, or with its own callbacks."""

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        """Begin an execution and return at once; `done` or raising ends it. Called on the event loop's thread.

        Otherwise like `BackendInstance.execute`: the engine may read the inputs until it calls `done`.
        """


@runtime_checkable
class AsyncRequestInstance(_OnLoop, Protocol):
    """An executor of single requests that blocks no thread: `RequestInstance` and `AsyncInstance` combined."""

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        """Begin to respond to requests and return at once; after `done` the instance accepts others.

        Responses may come before and after that. Called on the event loop's thread, where `respond` takes
        ``wait=False``.
        """


Executor: TypeAlias = BackendInstance | RequestInstance | AsyncInstance | AsyncRequestInstance


def reuses_outputs(executor: Executor) -> bool:
    """Return True if the server must copy what the executor returns."""
    return bool(getattr(executor, "reuses_outputs", False))


# Models and backends

QUEUES: Final = frozenset({"dynamic_batching", "model_warmup", "response_cache", "version_policy"})
"""Value for `in_place` of a backend with models that do not depend on the server's queues."""
INSTANCES: Final = QUEUES | {"instance_group"}
"""Value for `in_place` of a backend that also allows making and closing instances while others run."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Device of an instance: CPU, MODEL (the model decides), or GPU number `device`."""

    kind: InstanceKind
    device: int = 0


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Instance for a `BackendModel` to make.

    `name` has Triton's form: ``<instance group>_<number>``, on GPUs ``<instance group>_<device>_<number>``. `device` is
    the number of the GPU, 0 for other kinds. `index` is the instance's number in the model version, from 0; a
    replacement keeps it. -1 is an instance for a trial, which is closed before the others are made. `config` is the
    completed configuration, as far as the server uses it.
    """

    name: str
    kind: InstanceKind
    device: int
    index: int
    config: ModelConfig
    write_config: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def config_json(self) -> str:
        """The whole normalised configuration as JSON with the names of ``config.pbtxt``, as in Triton."""
        return self.write_config()

    @property
    def placement(self) -> Placement:
        return Placement(self.kind, self.device)


class _NoModels:
    """Stand-in for `ModelCaller` without a server."""

    def __getattr__(self, name: str) -> Any:
        raise unavailable("no other models can be called here")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Complete input of a backend for opening a model version.

    `config` may still lack inputs, outputs and max_batch_size. `path` is the model file (or directory) inside the
    version directory. `cpu_threads` is this instance's share of the CPU cores, `cpu_instances` the number of the
    model's instances on the CPU, and `placements` where each will probably run; the completed configuration may change
    these. `options` are the server's for this backend (``--backend-config``), `models` calls the server's other models,
    and `metrics` creates metrics of this version. `auto_complete`: the server uses the result of
    `BackendModel.describe`. `loop` is the server's event loop. For backends that delegate to others, `options_of` has
    the options of all backends by name, and `complete` fills in an engine's description.
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
        """Return the configuration as the server would complete it with an engine's description. Raises INVALID_ARG."""
        return self.config if self.complete is None else self.complete(description)

    @property
    def config_json(self) -> str:
        """The whole configuration as written, in the form of `InstanceSpec.config_json`."""
        return self.write_config()


class BackendModel(Protocol):
    """An open model version. Called on a loading thread, never on the event loop's.

    Two more members are optional. `report() -> Mapping[str, object]`, called after the instances are made, describes
    the engine for ``GET /v2/models/{model}/engine`` and ``modserve_engine_info``, in JSON values: at least `engine`
    (the library), `version`, `precision`, `device` and `threads`. `any_thread` (bool) overrides the backend's.
    """

    def describe(self) -> ModelDescription | None:
        """Return what the model file says about the model; None if nothing."""

    def instance(self, spec: InstanceSpec) -> Executor:
        """Make an executor; also called to replace a lost one while the others run. May block.

        Models of the first edition have ``instance(config, placement)`` instead, which still works.
        """

    def close(self) -> None:
        """Release everything. All instances are closed."""


class Backend(Protocol):
    """An engine.

    `default_model_filename` is the model file in a version directory if the configuration names none; empty if no file
    is needed. A model without a configured count has `default_cpu_instances` on the CPU. With `any_thread`, different
    threads may use an instance, one at a time; very short executions of instances that are not `data_dependent` can
    then skip a hop.

    Three more attributes are optional. `parallel_instances` (bool, False by default): `BackendModel.instance` may be
    called on several threads at once, for instances that are slow to make. `in_place` (a set of field names, empty by
    default): fields of the configuration that may change while a model is open, since nothing made of it depends on
    them. Use `QUEUES`, or `INSTANCES` if instances may also be made and closed at any time. The server then applies
    such a change without opening the model again. A backend with `in_place` must only read the model's files: if they
    change while it opens a model, the load fails. With `writes_files` (bool, False by default) it may write there.

    One more method is optional: ``code_in(config: ModelConfig, path: Path) -> str`` names, in words, the code of the
    model repository that the engine would run to load the model at `path`; empty if none. With ``--deny-code`` the
    server refuses models with such code and models of backends without the method.
    """

    default_model_filename: str
    default_cpu_instances: int
    any_thread: bool

    def gpu_count(self) -> int:
        """Return the number of GPUs that this engine can use here."""

    def open(self, source: ModelSource) -> BackendModel:
        """Open a model version. Blocking; called on a loading thread. Raises if the file is invalid."""

"""Interface of a server to its front ends; a server may be one process, or several that act as one.

Inference, and all other calls that need the models themselves, concern the process that receives them. Coroutines
concern the whole server.

Also the protocol extensions, and a server's parts other than its models.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from modserve.core.changes import Changes
from modserve.core.configuration.trace_settings import TraceChange
from modserve.core.lifecycle import IndexEntry
from modserve.core.recording import RequestRecorder
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget
from modserve.core.residency import NO_MEMORY, MemoryReport
from modserve.core.servable import Handle, Servable
from modserve.core.statistics.metrics import MetricStore
from modserve.core.tenants import Tenant
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.core.version import ModelId
from modserve.observability.access_log import AccessLog
from modserve.observability.failures import FailureLog
from modserve.observability.logging import Logs
from modserve.observability.trace import Tracer
from modserve.pb import inference as pb
from modserve.resources.quotas import Quotas
from modserve.resources.shared_memory import SharedMemory
from modserve.routing.routings import Routings

from .drain import DrainPhase, DrainReport

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
)
"""Supported protocol extensions, as listed in server metadata."""


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of a server other than its models."""

    logs: Logs | None = None
    """The log, if clients may change its settings."""
    tracer: Tracer = field(default_factory=Tracer)
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    quotas: Quotas = field(default_factory=Quotas)
    """Requests in flight, and the limits of the server and of tenants."""
    model_memory: Callable[[], MemoryReport] = lambda: NO_MEMORY
    failure_log: FailureLog = field(default_factory=FailureLog)
    access_log: AccessLog | None = None
    recorder: RequestRecorder | None = None
    engine_metrics: MetricStore = field(default_factory=MetricStore)


Region: TypeAlias = SystemRegion | CudaRegion
RegionT = TypeVar("RegionT", bound=Region)


class Phase(enum.Enum):
    """Phase in the life of a server."""

    STARTING = "starting"
    """Until every model of the first load is READY or has failed. READY models are served."""
    RUNNING = "running"
    STOPPING = "stopping"
    """No new requests are accepted; accepted ones are finished."""


class Readiness(NamedTuple):
    """Readiness of a server for inference, and the reasons against it."""

    ready: bool
    reasons: Sequence[IndexEntry] = ()


class Server(Protocol):
    """A server, for the event loop's thread. All methods with a model's name may raise NOT_FOUND."""

    name: str
    version: str
    changes: Changes
    """Notified whenever the readiness of this process or of a model in it may have changed."""
    memory: MemoryBudget
    """Memory of requests, and its limit."""
    quotas: Quotas
    """Requests in flight, and the limits of the server and of tenants."""
    shared_memory: SharedMemory
    """Shared-memory regions registered by clients."""
    tracer: Tracer
    """Tracer for requests, with the current settings; `change_trace_settings` changes these."""
    routings: Routings
    failure_log: FailureLog
    """Log of failed requests, written by the front ends."""
    access_log: AccessLog | None
    """Log of all requests, written by the front ends if it exists when they start."""
    recorder: RequestRecorder | None
    """Records sampled requests; None if nothing is recorded."""
    engine_metrics: MetricStore
    """Metrics of this process's engines for the metrics page."""

    @property
    def tenant(self) -> Tenant | None:
        """Tenant of the calling client; None if the server has no tenants."""
        ...

    # This process

    @property
    def phase(self) -> Phase: ...

    @property
    def retiring(self) -> bool:
        """True if the server is about to stop: arriving requests are still served, and watchers are notified."""
        ...

    @property
    def leaving(self) -> bool:
        """True if the server is stopping or about to stop, without a replacement."""
        ...

    @property
    def drain_phase(self) -> DrainPhase: ...

    @property
    def live(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    @property
    def extensions(self) -> Sequence[str]: ...

    @property
    def control_mode(self) -> str:
        """Model control mode: ``explicit`` if clients may load and unload models."""
        ...

    @property
    def logs(self) -> Logs:
        """The log with its current settings. Raises UNAVAILABLE if the server cannot change them."""
        ...

    def model(self, name: str, version: int | None = None) -> Servable:
        """Return the READY model version that serves requests, by its `submit`. Raises UNAVAILABLE if not READY."""
        ...

    def borrow(self, name: str, version: int | None = None) -> Handle:
        """Return the model like `model`, but keep the version alive until the handle is released."""
        ...

    def pace(self, inflight: Inflight) -> None:
        """Keep the engine of a request with many responses from running ahead of its client."""
        ...

    def models(self, name: str | None = None, version: int | None = None) -> list[Servable]:
        """Return the READY versions of a model, or of all models for None, by name and version."""
        ...

    def ready_models(self) -> list[Servable]:
        """Return every READY version of every model, in any phase."""
        ...

    def folder(self, id: ModelId) -> Path | None:
        """Return the local files of a READY version; None if it is not READY.

        They exist while the version is in service or borrowed.
        """
        ...

    def model_names(self) -> list[str]: ...

    def index(self) -> list[IndexEntry]:
        """Return every version of every model that was ever loaded, by name and version."""
        ...

    def model_memory(self) -> MemoryReport:
        """Return the memory of models, and its limit."""
        ...

    def tracer_for(self, model: str) -> Tracer:
        """Return the tracer for calls about a model, or all if empty. Raises INVALID_ARG if the model is not READY."""
        ...

    async def check_model_ready(self, name: str, version: int | None) -> bool:
        """Return True if a model (version) accepts requests in this process, also according to its engine."""
        ...

    # Queries of the whole server

    async def readiness(self) -> Readiness: ...

    async def model_trouble(self, name: str, version: int | None) -> str | None:
        """Return the reason why a model (version) accepts no requests: empty if unknown, None if it does."""
        ...

    async def statistics(self, name: str = "", version: int | None = None) -> pb.ModelStatisticsResponse:
        """Return the statistics of a READY model version, or of all. Raises INVALID_ARG, as Triton does here."""
        ...

    async def repository_index(self, only_ready: bool) -> list[IndexEntry]:
        """Return `index` with never loaded models in the repositories. Raises UNAVAILABLE when stopping."""
        ...

    async def regions(self, kind: type[RegionT], name: str = "", tenant: str = "") -> Sequence[RegionT]:
        """Return the registered regions of a kind, or the named one; with tenants, only the tenant's."""
        ...

    async def routing(self, name: str) -> dict[str, Any]:
        """Return the routing of a model and its results so far, as JSON values.

        Raises UNAVAILABLE if no version is READY.
        """
        ...

    async def failures(self) -> list[dict[str, Any]]:
        """Return recent failed requests, latest first, with identical failures combined."""
        ...

    async def reading(self, own: Callable[[], Any]) -> tuple[Any, Mapping[str, int] | None]:
        """Return the console's figures of all workers, with their number; for a single process, `own()` and None."""
        ...

    # Changes of the whole server

    async def drain(self) -> DrainReport:
        """Take the server out of service permanently, and finish accepted requests. All calls get the same report."""
        ...

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model of the repositories; READY on return. See `LocalServer.load_model`."""
        ...

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service. See `LocalServer.unload_model`."""
        ...

    async def set_routing(self, name: str, document: object) -> None:
        """Set a model's routing to `document`, a JSON object; None restores that of its configuration.

        It lasts until no version of the model is READY any more. Raises INVALID_ARG, and the errors of `routing`.
        """
        ...

    async def change_log_settings(self, change: Mapping[str, Any]) -> None:
        """Change fields of `LogSettings` to new values."""
        ...

    async def change_trace_settings(self, change: TraceChange, model: str) -> None:
        """Change the settings of a model, or with an empty name of all models without their own."""
        ...

    async def register_region(self, region: Region, handle: bytes = b"") -> None:
        """Register a region; `handle`: of GPU memory. Raises like `SharedMemory.register_system`."""
        ...

    async def unregister_region(self, kind: type[Region], name: str, tenant: str = "") -> None:
        """Unregister a tenant's named region, or all of a kind. An unknown name is not an error."""
        ...

"""The services that a server uses besides its models."""

from collections.abc import Callable
from dataclasses import dataclass, field

from modserve.core.recording import RequestRecorder
from modserve.core.requests.memory import MemoryBudget
from modserve.core.residency import NO_MEMORY, MemoryReport
from modserve.core.statistics.metrics import MetricStore
from modserve.observability.access_log import AccessLog
from modserve.observability.failure_log import FailureLog
from modserve.observability.logging import Logs
from modserve.observability.trace import Tracer
from modserve.resources.quotas import Quotas
from modserve.resources.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True)
class Services:
    """What a server has beside its models."""

    logs: Logs | None = None
    """The log whose settings clients may change."""
    tracer: Tracer = field(default_factory=Tracer)
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    quotas: Quotas = field(default_factory=Quotas)
    """What clients have in flight, against the limits of the server and of tenants."""
    model_memory: Callable[[], MemoryReport] = lambda: NO_MEMORY
    failure_log: FailureLog = field(default_factory=FailureLog)
    access_log: AccessLog | None = None
    recorder: RequestRecorder | None = None
    engine_metrics: MetricStore = field(default_factory=MetricStore)

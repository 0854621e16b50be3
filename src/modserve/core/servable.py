"""Interface of a loaded model version for the server, the front ends and other models. `models/` implements it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from .configuration.model_config import ModelConfig
from .requests.inflight import Inflight, RequestTrace
from .requests.request import InferenceRequest
from .requests.response import ResponseSink
from .requests.sequence import SequenceKey
from .residency import residency
from .statistics.model_statistics import ModelStatistics
from .version import ModelId


class Submitter(Protocol):
    """Receiver of requests for a model version: a `Servable`, or an object in front of one."""

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Submit a request like `Servable.submit`."""


def submit_traced(
    trace: RequestTrace, servable: Submitter, request: InferenceRequest, sink: ResponseSink, now_ns: int
) -> Inflight:
    """Submit a request like `servable.submit`, and record it in `trace`."""
    trace.request_id = request.id
    _submitting.append(trace)
    try:
        inflight = servable.submit(request, sink, now_ns)
    finally:
        _submitting.pop()
    inflight.trace = trace  # in time, as no response arrives before `submit` returns
    start_ns = inflight.request_start_ns
    trace.on_submit(inflight.inputs, start_ns, inflight.queue_start_ns or start_ns)
    return inflight


_submitting: list[RequestTrace] = []
"""Traces of the requests being submitted, on the event loop's thread."""


def context_to_pass_on() -> str:
    """Return the span of the request being submitted, for forwarding to another process; empty for none."""
    return _submitting[-1].context if _submitting else ""


class Servable(Protocol):
    """A loaded model version that takes requests."""

    id: ModelId
    statistics: ModelStatistics
    labels: Mapping[str, tuple[str, ...]]
    """Class names by output, for outputs with a label file."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def config_message(self) -> bytes:
        """Serialised, normalised ``inference.ModelConfig`` for the configuration calls."""

    @property
    def unready_reason(self) -> str | None:
        """Reason why a loaded version is not ready, such as lost instances; None while it is healthy.

        It affects readiness and the repository index; requests are still submitted. Code that changes the value calls
        `ModelTable.changes.notify`.
        """

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Check and queue a request. `sink` receives the response, never before this method returns.

        Never waits. Raises `ModserveError` for an invalid or refused request; `sink` is not called then.
        """

    async def drain(self) -> None:
        """Refuse new requests and return when all accepted ones are settled."""

    async def close(self) -> None:
        """Release the engine. Unsettled requests fail."""


@runtime_checkable
class RequestHolder(Protocol):
    """Servable that counts its accepted, unsettled requests."""

    @property
    def outstanding(self) -> int:
        """Number of outstanding requests. An ensemble's step requests count for the steps' models."""


class Oldest(NamedTuple):
    """Ages of a model's oldest execution and oldest waiting request, in nanoseconds; 0 for none."""

    execution_ns: int = 0
    waiting_ns: int = 0


@runtime_checkable
class OldestReporter(Protocol):
    """Servable that queues and executes requests."""

    def oldest(self, now_ns: int) -> Oldest: ...


def oldest(servable: Servable, now_ns: int) -> Oldest | None:
    """Return the report of an `OldestReporter`; None for other servables, such as ensembles."""
    reporter = base(servable)
    return reporter.oldest(now_ns) if isinstance(reporter, OldestReporter) else None


@runtime_checkable
class Finisher(Protocol):
    """Servable that can finish its accepted requests while it still accepts requests from other models."""

    @property
    def busy(self) -> bool:
        """True while there are requests in flight or open sequences."""

    def hurry(self) -> None:
        """Stop delaying requests to form larger batches."""

    async def idle(self) -> None:
        """Wait until it is not `busy`."""


@runtime_checkable
class ReadinessChecker(Protocol):
    """Servable with an engine that may report its own readiness."""

    async def check_ready(self) -> bool:
        """Query the engine's readiness, for a few seconds at most. Never raises."""


@runtime_checkable
class SequenceKeeper(Submitter, Protocol):
    """Servable that continues open sequences while it drains, and refuses all other requests."""

    @property
    def open_sequences(self) -> int:
        """Number of open sequences."""

    def has_sequence(self, key: SequenceKey) -> bool:
        """Return True if a sequence is open."""

    def abandon_sequence(self, key: SequenceKey) -> None:
        """End a sequence, if it exists, after its accepted requests, as it restarts elsewhere."""


@runtime_checkable
class EngineReporter(Protocol):
    """Servable with its own engine."""

    @property
    def engine_report(self) -> Mapping[str, object]:
        """Report in JSON values: `backend`, `instances`, `engine`, and the engine's own report.

        Empty without an engine, such as for an ensemble.
        """


def engine_report(servable: object) -> Mapping[str, object]:
    """Return the report of an `EngineReporter`; empty for other servables."""
    return servable.engine_report if isinstance(servable, EngineReporter) else {}


@runtime_checkable
class ProcessOwner(Protocol):
    """Servable that may run in its own processes."""

    @property
    def process_ids(self) -> list[int]:
        """Processes of its running instances."""


def process_ids(servable: object) -> list[int]:
    """Return the processes of a `ProcessOwner`; none for other servables, which run in the server's process."""
    return servable.process_ids if isinstance(servable, ProcessOwner) else []


_FULL_PRECISIONS = frozenset({"", "fp32", "fp64"})


def engine_title(report: Mapping[str, object]) -> str:
    """Return the display name of a report's engine, with version and reduced precision."""
    precision = str(report.get("precision") or "")
    parts = (report.get("engine"), report.get("version"), precision if precision not in _FULL_PRECISIONS else "")
    return " ".join(str(part) for part in (*parts, report.get("variant")) if part)


def resident_bytes(servable: Servable) -> int:
    """Return the memory of a model in bytes, as measured at its last load; 0 if not in memory, -1 if unknown."""
    report = residency(servable)
    if report is not None:
        return report.size if report.resident else 0
    return servable.statistics.memory


class Handle(Protocol):
    """A borrowed servable. It accepts requests until released, even while its version is being unloaded."""

    @property
    def servable(self) -> Servable: ...

    def release(self) -> None:
        """Release the servable. Called once."""


Borrow: TypeAlias = Callable[[str, int | None], Handle]
"""Borrows a READY version of a model; None is the latest. Raises NOT_FOUND or UNAVAILABLE with Triton's texts."""


def base(servable: Servable) -> Servable:
    """Return the model or ensemble inside its wrappers. Each wrapper has the next one as `inner`."""
    while (inner := getattr(servable, "inner", None)) is not None:
        servable = inner
    return servable

"""A loaded model version, as the server, the front ends and other models see it. `models/` implements it."""

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
    inflight.trace = trace  # in time, since no response comes before `submit` returns
    start_ns = inflight.request_start_ns
    trace.on_submit(inflight.inputs, start_ns, inflight.queue_start_ns or start_ns)
    return inflight


_submitting: list[RequestTrace] = []
"""The traces of the requests that are being submitted, on the event loop's thread."""


def context_to_pass_on() -> str:
    """Return the span of the request being submitted, for one that goes on to another process; empty for none."""
    return _submitting[-1].context if _submitting else ""


class Servable(Protocol):
    """A loaded model version that takes requests."""

    id: ModelId
    statistics: ModelStatistics
    labels: Mapping[str, tuple[str, ...]]
    """The names of the classes by output, for the outputs that have a label file."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def config_message(self) -> bytes:
        """The normalised ``inference.ModelConfig``, serialised, for the configuration calls."""

    @property
    def unready_reason(self) -> str | None:
        """Reason why a loaded version is not ready, such as lost instances; None while it is healthy.

        Requests are still submitted to it; only readiness and the repository index change. Code that changes the value
        calls `ModelTable.changes.notify`.
        """

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Check and queue a request; the response comes to `sink`, never before this method returns.

        Never waits. Raises `ModserveError` when the request is wrong or cannot be taken; `sink` is then not called.
        """

    async def drain(self) -> None:
        """Take nothing new; return when everything accepted is settled."""

    async def close(self) -> None:
        """Release the engine. Unsettled requests fail."""


@runtime_checkable
class RequestHolder(Protocol):
    """Servable that counts its accepted, unsettled requests."""

    @property
    def outstanding(self) -> int:
        """Number of outstanding requests. Those of an ensemble's steps count at the models of the steps."""


class Oldest(NamedTuple):
    """Nanoseconds that the oldest execution of a model and its oldest waiting request have lasted; 0 for none."""

    execution_ns: int = 0
    waiting_ns: int = 0


@runtime_checkable
class OldestReporter(Protocol):
    """A servable that has requests wait, and executes them."""

    def oldest(self, now_ns: int) -> Oldest: ...


def oldest(servable: Servable, now_ns: int) -> Oldest | None:
    """Return the report of an `OldestReporter`; None for other servables: ensembles."""
    reporter = base(servable)
    return reporter.oldest(now_ns) if isinstance(reporter, OldestReporter) else None


@runtime_checkable
class Finisher(Protocol):
    """Servable that can finish its accepted requests while it still takes those that other models make."""

    @property
    def busy(self) -> bool:
        """True if it has accepted requests that are not settled, or sequences that have begun."""

    def hurry(self) -> None:
        """Stop requests from waiting for others to share their batch."""

    async def idle(self) -> None:
        """Return when it is not `busy`."""


@runtime_checkable
class ReadinessChecker(Protocol):
    """Servable with an engine that may report its own readiness."""

    async def check_ready(self) -> bool:
        """Ask the engine, for a few seconds at most. Never raises."""


@runtime_checkable
class SequenceKeeper(Submitter, Protocol):
    """Servable that continues begun sequences while it drains, and refuses all other requests."""

    @property
    def open_sequences(self) -> int:
        """Number of sequences that have begun and not ended."""

    def has_sequence(self, key: SequenceKey) -> bool:
        """Return True if a sequence has begun and not ended."""

    def abandon_sequence(self, key: SequenceKey) -> None:
        """End a sequence, if it exists, after its accepted requests: it begins again elsewhere."""


@runtime_checkable
class EngineReporter(Protocol):
    """A servable with an engine of its own."""

    @property
    def engine_report(self) -> Mapping[str, object]:
        """Report in JSON's values: `backend`, `instances`, `engine`, and the engine's own report.

        Empty without an engine, as for an ensemble.
        """


def engine_report(servable: object) -> Mapping[str, object]:
    """Return the report of an `EngineReporter`; empty for other servables."""
    return servable.engine_report if isinstance(servable, EngineReporter) else {}


@runtime_checkable
class ProcessOwner(Protocol):
    """A servable that may run in processes of its own."""

    @property
    def process_ids(self) -> list[int]:
        """Processes of its instances that are up."""


def process_ids(servable: object) -> list[int]:
    """Return its processes, as `ProcessOwner` has them; none for a servable that runs in the server's process."""
    return servable.process_ids if isinstance(servable, ProcessOwner) else []


_FULL_PRECISIONS = frozenset({"", "fp32", "fp64"})


def engine_title(report: Mapping[str, object]) -> str:
    """Return a report's engine and version for people, with a reduced precision."""
    precision = str(report.get("precision") or "")
    parts = (report.get("engine"), report.get("version"), precision if precision not in _FULL_PRECISIONS else "")
    return " ".join(str(part) for part in (*parts, report.get("variant")) if part)


def resident_bytes(servable: Servable) -> int:
    """Return the bytes that a model holds, as last measured at a load; 0 while it is not in memory, -1 if unknown."""
    report = residency(servable)
    if report is not None:
        return report.size if report.resident else 0
    return servable.statistics.memory


class Handle(Protocol):
    """A borrowed servable. It takes requests until it is released, also while its version is being unloaded."""

    @property
    def servable(self) -> Servable: ...

    def release(self) -> None:
        """Return the servable; called once."""


Borrow: TypeAlias = Callable[[str, int | None], Handle]
"""Lender of the READY version of a model, the latest for None. Raises NOT_FOUND or UNAVAILABLE with Triton's texts."""


def base(servable: Servable) -> Servable:
    """Return the model or ensemble behind its wrappers. Each of them has the next one as its `inner`."""
    while (inner := getattr(servable, "inner", None)) is not None:
        servable = inner
    return servable

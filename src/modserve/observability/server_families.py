"""The metrics of a server itself, besides those of its models."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modserve.core.configuration.routing_config import RouteFigures, ShadowFigures
from modserve.core.lifecycle import IndexEntry
from modserve.core.recording import RecordFigures
from modserve.core.requests.memory import MemoryBudget
from modserve.core.residency import NO_MEMORY, MemoryReport
from modserve.core.servable import Oldest
from modserve.core.statistics.histogram import Histogram
from modserve.core.tenants import TenantReport
from modserve.core.version import ModelId

from . import model_memory
from .families import Family, family, histogram_family, labelled
from .routing_families import routing_families
from .span_figures import SpanFigures, span_families


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The state of a server itself, besides the statistics of its models, at the time of a scrape."""

    version: str
    ready: bool
    index: Sequence[IndexEntry]
    in_flight: Mapping[str, int]
    """Requests that are accepted and not settled, by model; models without any may be absent."""
    connections: Mapping[str, int]
    """Open connections by protocol."""
    memory: MemoryBudget
    routings: Sequence[RouteFigures | ShadowFigures] = ()
    model_memory: MemoryReport = NO_MEMORY
    form: str = ""
    """As `modserve.form` says it."""
    engines: Sequence[tuple[str, str, str]] = ()
    """Backends whose library is installed, the library's name and its version."""
    failed_loads: Mapping[tuple[str, int | None], int] = field(default_factory=dict)
    """By model and version, None for the whole model."""
    responses: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By protocol, then by code; codes that never occurred may be absent."""
    spans: SpanFigures | None = None
    endings: Mapping[str, int] = field(default_factory=dict)
    """gRPC connections that the server closed early, by reason."""
    tenants: Sequence[TenantReport] = ()
    tenant_times: Mapping[str, Histogram] = field(default_factory=dict)
    """Nanoseconds of the requests of each tenant that are over."""
    drain_phase: int = 0
    records: RecordFigures | None = None
    """None if nothing is recorded."""
    oldest: Mapping[ModelId, Oldest] = field(default_factory=dict)
    processes: Sequence[tuple[str, int, Sequence[int]]] = ()
    """Metrics of models that run in processes of their own, as `ModelProcesses` reads them."""
    repository_reads: Mapping[str, float] = field(default_factory=dict)
    """Last good reading of each repository, in seconds since 1970, of a server that looks again and again."""


_MEMORY: tuple[tuple[str, str, str, Callable[[MemoryBudget], float]], ...] = (
    ("modserve_request_memory_bytes", "gauge", "Bytes that requests hold", lambda m: m.held),
    ("modserve_request_memory_peak_bytes", "gauge", "The most bytes that requests held at one time", lambda m: m.peak),
    (
        "modserve_request_memory_limit_bytes",
        "gauge",
        "Bytes that all requests together may hold; 0: any number",
        lambda m: m.limit,
    ),
    ("modserve_request_memory_refused", "counter", "Requests refused for lack of memory", lambda m: m.refused),
)

_OLDEST: tuple[tuple[str, str, Callable[[Oldest], int]], ...] = (
    (
        "modserve_oldest_execution_seconds",
        "How long the oldest execution has run, that of a decoupled model without a response; 0: none runs",
        lambda oldest: oldest.execution_ns,
    ),
    (
        "modserve_oldest_waiting_seconds",
        "How long the oldest request has waited for its execution; 0: none waits",
        lambda oldest: oldest.waiting_ns,
    ),
)

UNLOADED_STATE = "UNLOADED"
"""The state on this page of a version that was unloaded on purpose. The index, like Triton's, says UNAVAILABLE."""


def server_families(figures: ServerFigures) -> Iterator[Family]:
    """The metric families of a server's figures."""
    build = {"version": figures.version, "python": platform.python_version()}
    if figures.form:
        build["form"] = figures.form
    text = "Always 1; the labels name the server"
    yield family("modserve_build_info", "gauge", text, [(labelled(build), 1)])
    engines = [
        {"backend": backend, "engine": name, "engine_version": version} for backend, name, version in figures.engines
    ]
    text = "Always 1; the labels name the installed engines"
    yield family("modserve_engine_installed_info", "gauge", text, [(labelled(each), 1) for each in engines])
    yield family("modserve_ready", "gauge", "1 when the server accepts inference", [("", figures.ready)])
    text = "0: serving, 1: unready before a stop, 2: ports are closing, 3: finishing requests, 4: drained"
    yield family("modserve_drain_phase", "gauge", text, [("", figures.drain_phase)])
    text = "Always 1; the label is a model version's state"
    yield family("modserve_model_state", "gauge", text, [(labelled(_state(entry)), 1) for entry in figures.index])
    failed = [(labelled(_version(*key)), count) for key, count in sorted(figures.failed_loads.items(), key=str)]
    yield family("modserve_model_load_failures_total", "counter", "Loads of a model version that failed", failed)
    names = sorted({entry.name for entry in figures.index} | figures.in_flight.keys())
    rows = [(labelled({"model": name}), figures.in_flight.get(name, 0)) for name in names]
    yield family("modserve_requests_in_flight", "gauge", "Requests accepted and not answered yet", rows)
    by_model = [(labelled(_version(id.name, id.version)), each) for id, each in figures.oldest.items()]
    for name, text, age_ns in _OLDEST:
        yield family(name, "gauge", text, [(labels, max(0, age_ns(each)) / 1e9) for labels, each in by_model])
    rows = [(labelled({"protocol": protocol}), count) for protocol, count in figures.connections.items()]
    yield family("modserve_connections", "gauge", "Open connections, by protocol", rows)
    for protocol, text in _RESPONSES.items():
        counts = figures.responses.get(protocol, {})
        rows = [(labelled({"code": code}), count) for code, count in counts.items()]
        yield family(f"modserve_{protocol}_responses_total", "counter", text, rows)
    rows = [(labelled({"reason": reason}), count) for reason, count in sorted(figures.endings.items())]
    text = "gRPC connections that the server closed early, by reason"
    yield family("modserve_grpc_connections_ended_total", "counter", text, rows)
    for name, kind, text, value in _MEMORY:
        yield family(name, kind, text, [("", value(figures.memory))])
    if figures.model_memory.limit:
        for name, text, read in model_memory.OF_ALL:
            yield family(name, "gauge", text, [("", read(figures.model_memory))])
    reads = [(labelled({"repository": place}), end) for place, end in figures.repository_reads.items()]
    text = "When a model repository could be read last, in seconds since 1970"
    yield family("modserve_repository_read_timestamp_seconds", "gauge", text, reads)
    yield from _tenant_families(figures.tenants)
    times = [(labelled({"tenant": name}), each) for name, each in sorted(figures.tenant_times.items())]
    text = "Time that accepted requests took, whatever became of them"
    yield histogram_family("modserve_tenant_request_duration_seconds", text, 1e9, times)
    if figures.records is not None:
        yield from _record_families(figures.records)
    for name, kind, text, samples in (*routing_families(figures.routings), *span_families(figures.spans)):
        yield family(name, kind, text, [(labelled(labels), count) for labels, count in samples])


_TENANTS: tuple[tuple[str, str, str, Callable[[TenantReport], float]], ...] = (
    ("modserve_tenant_rows_total", "counter", "Rows of accepted requests", lambda t: t.rows),
    ("modserve_tenant_tokens_total", "counter", "Tokens that routes of texts have counted", lambda t: t.tokens),
    ("modserve_tenant_requests_in_flight", "gauge", "Requests accepted and not answered yet", lambda t: t.in_flight),
    ("modserve_tenant_requests_waiting", "gauge", "Requests that wait in the queues of models", lambda t: t.waiting),
)


def _tenant_families(tenants: Sequence[TenantReport]) -> Iterator[Family]:
    if not tenants:
        return
    rows = [
        (labelled({"tenant": each.name, "result": result}), count)
        for each in tenants
        for result, count in each.results.items()
    ]
    yield family("modserve_tenant_requests_total", "counter", "Requests by tenant and by what became of them", rows)
    for name, kind, text, value in _TENANTS:
        yield family(name, kind, text, [(labelled({"tenant": each.name}), value(each)) for each in tenants])


def _record_families(records: RecordFigures) -> Iterator[Family]:
    text = "Sampled requests that were written to a file"
    yield family("modserve_recorded_requests_total", "counter", text, [("", records.recorded)])
    text = "Sampled requests that were not recorded, by reason"
    rows = [(labelled({"reason": reason}), count) for reason, count in records.dropped.items()]
    yield family("modserve_record_dropped_total", "counter", text, rows)
    yield family("modserve_record_bytes", "gauge", "Bytes of the files of recorded requests", [("", records.size)])


_RESPONSES = {
    "http": "Responses at the HTTP port, by status",
    "grpc": "Calls that ended at the gRPC port, by status",
}


def _version(name: str, version: int | None) -> dict[str, str]:
    return {"model": name, "version": "" if version is None else str(version)}


def _state(entry: IndexEntry) -> dict[str, str]:
    state = UNLOADED_STATE if entry.unloaded else entry.state.value
    return {**_version(entry.name, entry.version), "state": state}

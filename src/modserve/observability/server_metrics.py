"""Metrics of a server itself: process, machine, and model memory."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from modserve.core.configuration.routing_config import RouteFigures, ShadowFigures
from modserve.core.lifecycle import IndexEntry
from modserve.core.recording import RecordFigures
from modserve.core.requests.memory import MemoryBudget
from modserve.core.residency import NO_MEMORY, MemoryReport, ResidencyReport
from modserve.core.servable import Oldest
from modserve.core.statistics.histogram import Histogram
from modserve.core.tenants import TenantReport
from modserve.core.version import ModelId

from .families import Family, family, format_labels, histogram_family
from .routing_families import routing_families
from .span_figures import SpanFigures, span_families

_PROC = Path("/proc")


class _Times(NamedTuple):
    """Work of all cores since the machine started, in ticks."""

    busy: int
    total: int


class MachineCollector:
    """Metrics of the machine, read at each scrape, at most every `interval_ms`. No families without ``/proc``.

    Utilisation is between two readings, as in Triton; the first one counts from the creation of this object.
    """

    def __init__(self, interval_ms: int, proc: Path = _PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval_ms / 1e3
        self._proc = proc
        self._clock = clock
        self._read = clock()
        self._times = self._now()
        self._utilisation = 0.0
        self._first = True

    def collect(self) -> Iterator[Family]:
        if self._times is not None:
            text = "Utilization of all cores between the last two readings, from 0 to 1"
            yield family("nv_cpu_utilization", "gauge", text, [("", self._current())])
        memory = self._memory()
        if memory is not None:
            total, available = memory
            yield family("nv_cpu_memory_total_bytes", "gauge", "Total memory of the machine in bytes", [("", total)])
            text = "Used memory of the machine in bytes"
            yield family("nv_cpu_memory_used_bytes", "gauge", text, [("", total - available)])

    def _current(self) -> float:
        now = self._clock()
        before = self._times
        if before is not None and (self._first or now - self._read >= self._interval):
            times = self._now()
            if times is not None and times.total > before.total:
                self._utilisation = (times.busy - before.busy) / (times.total - before.total)
                self._times, self._read, self._first = times, now, False
        return self._utilisation

    def _now(self) -> _Times | None:
        """Return the first line: user, nice, system, idle, iowait, irq, softirq, steal; user includes guest."""
        try:
            line = (self._proc / "stat").read_text().partition("\n")[0]
            ticks = [int(word) for word in line.split()[1:9]]
            return _Times(sum(ticks) - ticks[3] - ticks[4], sum(ticks))
        except (OSError, ValueError, IndexError):
            return None

    def _memory(self) -> tuple[int, int] | None:
        """Return total and available memory in bytes."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            values = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
            return values["MemTotal"], values["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return None


_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21
"""Field indices in ``/proc/self/stat`` after the command, which is in parentheses and may have spaces (proc(5))."""


class _Status(NamedTuple):
    cpu_s: float
    began_s: float
    """Seconds after the start of the machine."""
    virtual: int
    resident: int


def _status(process: Path) -> _Status:
    """Read a process from its directory in ``/proc``. Raises OSError, ValueError or IndexError."""
    words = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    cpu_s = (int(words[_UTIME]) + int(words[_STIME])) / ticks
    resident = int(words[_RSS]) * os.sysconf("SC_PAGE_SIZE")
    return _Status(cpu_s, int(words[_STARTTIME]) / ticks, int(words[_VSIZE]), resident)


class ModelProcesses:
    """Processes that run models. CPU time of ended processes stays counted, as of the last page.

    `read` returns the labels of each model, a number of its load, and its processes.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, int, Sequence[int]]]], proc: Path = _PROC) -> None:
        self._read = read
        self._proc = proc
        self._used: dict[tuple[str, int], dict[tuple[int, float], float]] = {}
        """CPU seconds by load of a model and process; the 0 entry sums ended processes."""

    def collect(self) -> Iterator[Family]:
        used: dict[tuple[str, int], dict[tuple[int, float], float]] = {}
        resident = []
        for labels, load, ids in self._read():
            now: dict[tuple[int, float], float] = {}
            size = 0
            for id in ids:
                with suppress(OSError, ValueError, IndexError):
                    status = _status(self._proc / str(id))
                    now[id, status.began_s] = status.cpu_s
                    size += status.resident
            before = self._used.get((labels, load), {})
            if now or before:
                ended = sum(cpu_s for process, cpu_s in before.items() if process not in now)
                used[labels, load] = {**now, (0, 0.0): ended}
            if now:
                resident.append((labels, size))
        self._used = used
        text = "Resident memory of the processes that run a model, in bytes"
        yield family("modserve_model_process_resident_bytes", "gauge", text, resident)
        rows = [(labels, sum(each.values())) for (labels, _), each in used.items()]
        text = "CPU time of the processes that run a model, in seconds"
        yield family("modserve_model_process_cpu_seconds_total", "counter", text, rows)


class ProcessCollector:
    """Metrics of this process. No families without ``/proc``, as on macOS; unreadable figures are omitted."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._process = proc / "self"
        self._booted = 0.0
        with suppress(OSError, ValueError, StopIteration):
            lines = (proc / "stat").read_text().splitlines()
            self._booted = float(next(line.split()[1] for line in lines if line.startswith("btime ")))

    def collect(self) -> Iterator[Family]:
        with suppress(OSError, ValueError, IndexError):
            status = _status(self._process)
            yield _single("virtual_memory_bytes", "Virtual memory size in bytes.", status.virtual)
            yield _single("resident_memory_bytes", "Resident memory size in bytes.", status.resident)
            if self._booted:
                text = "Start time of the process since the Unix epoch in seconds."
                yield _single("start_time_seconds", text, self._booted + status.began_s)
            text = "Total user and system CPU time spent in seconds."
            yield _single("cpu_seconds_total", text, status.cpu_s, "counter")
        with suppress(OSError, ValueError, StopIteration, IndexError):
            lines = (self._process / "limits").read_text().splitlines()
            limit = next(line.split()[3] for line in lines if line.startswith("Max open files"))
            yield _single("max_fds", "Maximum number of open file descriptors.", int(limit))
        with suppress(OSError):
            count = len(os.listdir(self._process / "fd"))
            yield _single("open_fds", "Number of open file descriptors.", count)


def _single(name: str, text: str, value: float, kind: str = "gauge") -> Family:
    return family(f"process_{name}", kind, text, [("", value)])


_NS = 1e9
_OfModel: TypeAlias = tuple[str, str, Callable[[ResidencyReport], float]]

SIZES: tuple[tuple[str, str, Callable[[int], float]], ...] = (
    (
        "modserve_model_resident_bytes",
        "Memory of the model in bytes, as measured when it was loaded; 0 while it is not in memory",
        float,
    ),
)
"""Metrics of all measured models."""
GAUGES: tuple[_OfModel, ...] = (
    ("modserve_model_resident", "1 while the model is in memory", lambda r: r.resident),
    ("modserve_model_requests_waiting", "Requests that wait for the model to be in memory", lambda r: r.waiting),
)
COUNTERS: tuple[_OfModel, ...] = (
    ("modserve_model_loads_total", "Number of times that the model was loaded into memory", lambda r: r.loads),
    (
        "modserve_model_evictions_total",
        "Number of times that the model left memory while it was served",
        lambda r: r.evictions,
    ),
    ("modserve_model_load_seconds_total", "Time of these loads in seconds", lambda r: r.load_ns / _NS),
    (
        "modserve_model_load_wait_seconds_total",
        "Time that requests waited for the model to be in memory, in seconds",
        lambda r: r.waited_ns / _NS,
    ),
)
OF_ALL: tuple[tuple[str, str, Callable[[MemoryReport], float]], ...] = (
    ("modserve_model_memory_limit_bytes", "Memory limit for all models together, in bytes", lambda r: r.limit),
    (
        "modserve_model_memory_bytes",
        "Memory of all models in bytes, including the expected memory of those that are being loaded",
        lambda r: r.held,
    ),
)


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """State of a server itself at a scrape, in addition to its models' statistics."""

    version: str
    ready: bool
    index: Sequence[IndexEntry]
    in_flight: Mapping[str, int]
    """Accepted and unsettled requests by model; models without any may be missing."""
    connections: Mapping[str, int]
    """Open connections by protocol."""
    memory: MemoryBudget
    routings: Sequence[RouteFigures | ShadowFigures] = ()
    model_memory: MemoryReport = NO_MEMORY
    form: str = ""
    """Form in which modserve runs (`modserve.form`)."""
    engines: Sequence[tuple[str, str, str]] = ()
    """Backends with an installed library: backend, library name, library version."""
    failed_loads: Mapping[tuple[str, int | None], int] = field(default_factory=dict)
    """Failed loads by model and version, None for the whole model."""
    responses: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Responses by protocol and code; codes that never occurred may be missing."""
    spans: SpanFigures | None = None
    endings: Mapping[str, int] = field(default_factory=dict)
    """gRPC connections that the server closed early, by reason."""
    tenants: Sequence[TenantReport] = ()
    tenant_times: Mapping[str, Histogram] = field(default_factory=dict)
    """Durations of completed requests by tenant, in nanoseconds."""
    drain_phase: int = 0
    records: RecordFigures | None = None
    """None without recording."""
    oldest: Mapping[ModelId, Oldest] = field(default_factory=dict)
    processes: Sequence[tuple[str, int, Sequence[int]]] = ()
    """Metrics of models in processes of their own (`ModelProcesses`)."""
    repository_reads: Mapping[str, float] = field(default_factory=dict)
    """Time of the last successful read of each repository, in seconds since 1970, for a polling server."""


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
"""State on this page of a version unloaded on purpose. The index, like Triton's, reports UNAVAILABLE."""


def server_families(figures: ServerFigures) -> Iterator[Family]:
    """Yield the metric families of a server's figures."""
    build = {"version": figures.version, "python": platform.python_version()}
    if figures.form:
        build["form"] = figures.form
    text = "Always 1; the labels name the server"
    yield family("modserve_build_info", "gauge", text, [(format_labels(build), 1)])
    engines = [
        {"backend": backend, "engine": name, "engine_version": version} for backend, name, version in figures.engines
    ]
    text = "Always 1; the labels name the installed engines"
    yield family("modserve_engine_installed_info", "gauge", text, [(format_labels(each), 1) for each in engines])
    yield family("modserve_ready", "gauge", "1 when the server accepts inference", [("", figures.ready)])
    text = "0: serving, 1: unready before a stop, 2: ports are closing, 3: finishing requests, 4: drained"
    yield family("modserve_drain_phase", "gauge", text, [("", figures.drain_phase)])
    text = "Always 1; the label is a model version's state"
    yield family("modserve_model_state", "gauge", text, [(format_labels(_state(entry)), 1) for entry in figures.index])
    failed = [(format_labels(_version(*key)), count) for key, count in sorted(figures.failed_loads.items(), key=str)]
    yield family("modserve_model_load_failures_total", "counter", "Loads of a model version that failed", failed)
    names = sorted({entry.name for entry in figures.index} | figures.in_flight.keys())
    rows = [(format_labels({"model": name}), figures.in_flight.get(name, 0)) for name in names]
    yield family("modserve_requests_in_flight", "gauge", "Requests accepted and not answered yet", rows)
    by_model = [(format_labels(_version(id.name, id.version)), each) for id, each in figures.oldest.items()]
    for name, text, age_ns in _OLDEST:
        yield family(name, "gauge", text, [(labels, max(0, age_ns(each)) / 1e9) for labels, each in by_model])
    rows = [(format_labels({"protocol": protocol}), count) for protocol, count in figures.connections.items()]
    yield family("modserve_connections", "gauge", "Open connections, by protocol", rows)
    for protocol, text in _RESPONSES.items():
        counts = figures.responses.get(protocol, {})
        rows = [(format_labels({"code": code}), count) for code, count in counts.items()]
        yield family(f"modserve_{protocol}_responses_total", "counter", text, rows)
    rows = [(format_labels({"reason": reason}), count) for reason, count in sorted(figures.endings.items())]
    text = "gRPC connections that the server closed early, by reason"
    yield family("modserve_grpc_connections_ended_total", "counter", text, rows)
    for name, kind, text, value in _MEMORY:
        yield family(name, kind, text, [("", value(figures.memory))])
    if figures.model_memory.limit:
        for name, text, read in OF_ALL:
            yield family(name, "gauge", text, [("", read(figures.model_memory))])
    reads = [(format_labels({"repository": place}), end) for place, end in figures.repository_reads.items()]
    text = "When a model repository could be read last, in seconds since 1970"
    yield family("modserve_repository_read_timestamp_seconds", "gauge", text, reads)
    yield from _tenant_families(figures.tenants)
    times = [(format_labels({"tenant": name}), each) for name, each in sorted(figures.tenant_times.items())]
    text = "Time that accepted requests took, whatever became of them"
    yield histogram_family("modserve_tenant_request_duration_seconds", text, 1e9, times)
    if figures.records is not None:
        yield from _record_families(figures.records)
    for name, kind, text, samples in (*routing_families(figures.routings), *span_families(figures.spans)):
        yield family(name, kind, text, [(format_labels(labels), count) for labels, count in samples])


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
        (format_labels({"tenant": each.name, "result": result}), count)
        for each in tenants
        for result, count in each.results.items()
    ]
    yield family("modserve_tenant_requests_total", "counter", "Requests by tenant and by what became of them", rows)
    for name, kind, text, value in _TENANTS:
        yield family(name, kind, text, [(format_labels({"tenant": each.name}), value(each)) for each in tenants])


def _record_families(records: RecordFigures) -> Iterator[Family]:
    text = "Sampled requests that were written to a file"
    yield family("modserve_recorded_requests_total", "counter", text, [("", records.recorded)])
    text = "Sampled requests that were not recorded, by reason"
    rows = [(format_labels({"reason": reason}), count) for reason, count in records.dropped.items()]
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

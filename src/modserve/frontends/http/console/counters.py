"""Counters of a server, in values that JSON has and that add up over several workers."""

import os
import time
from pathlib import Path
from typing import NamedTuple, TypedDict

from modserve.core.lifecycle import IndexEntry
from modserve.core.servable import RequestHolder, SequenceKeeper, Servable, engine_report, engine_title, resident_bytes
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.frontends.http import probes
from modserve.server import Server

from .figures import Durations, durations
from .streams import EngineFigures, StreamCounters, engine_figures, stream_counters
from .tenants import TenantCounters, tenant_counters

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


class RequestCounters(TypedDict):
    """Request counters of a READY version, from its load on; all but the first three only ever grow."""

    pending: int
    in_flight: int
    sequences: int
    """Sequences that have begun; -1 for a model without sequences."""
    success: int
    failures: dict[str, int]
    """Failed requests by reason."""
    inferences: int
    """Batch sizes summed."""
    batches: int
    latency: Durations
    """Latency of the requests that succeeded."""
    times: list[int]
    """Nanoseconds of these requests, altogether and in the parts that `PARTS` names."""
    sizes: list[int]
    """Batches by the buckets `size_bounds`."""
    size_bounds: list[float]
    closed: dict[str, int]
    """Batches by why they did not grow any more."""
    cache: list[int]
    """Hits and misses; empty for a model without a cache."""
    restarts: int
    stream: StreamCounters | None


class ModelCounters(TypedDict):
    """A line of the repository index, and what is known of what serves it."""

    name: str
    version: str
    """Empty if no version of the model can be named."""
    state: str
    reason: str
    load_ms: int
    engine: str
    instances: int
    """Number of instances that there should be; 0 for models without an engine of their own."""
    lost: int
    memory: int
    """Bytes that it holds; -1 if they have not been measured."""
    counts: RequestCounters | None


class ServerCounters(TypedDict):
    phase: str
    ready: bool
    failures: int
    """Requests with an error for a response, of whichever model or none."""
    cpu_s: float
    """CPU time of the process, in seconds."""
    rss: int
    """Resident bytes of the process; 0 where the system does not say."""
    request_memory: int
    request_memory_limit: int
    model_memory: int
    model_memory_limit: int
    recorded: int
    """Requests that were recorded; -1 if nothing is recorded."""


class Counters(TypedDict):
    server: ServerCounters
    models: list[ModelCounters]
    tenants: dict[str, TenantCounters]
    """Counters by the tenant's name."""


class _Known(NamedTuple):
    """Constants of a servable while it serves; to look them up takes longer than to read all counts."""

    servable: Servable
    statistics: ModelStatistics
    engine: str
    final: bool
    """The engine says no more of itself later, as one does that is in memory for the first time."""
    holder: RequestHolder | None
    keeper: SequenceKeeper | None


class CounterReader:
    """Reader of one server's counters. It remembers what does not change from one reading to the next."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[tuple[str, int], _Known] = {}

    def read(self) -> Counters:
        server = self._server
        memory, models = server.memory, server.model_memory()
        served, engines = self._look(), engine_figures(server.engine_metrics)
        return {
            "server": {
                "phase": probes.phase(server),
                "ready": server.ready,
                "failures": server.failure_log.recent.total,
                "cpu_s": time.process_time(),
                "rss": _resident(),
                "request_memory": memory.held,
                "request_memory_limit": memory.limit,
                "model_memory": models.held,
                "model_memory_limit": models.limit,
                "recorded": -1 if server.recorder is None else server.recorder.figures.recorded,
            },
            "models": [
                _model(
                    entry, served.get((entry.name, entry.version or 0)), engines.get((entry.name, str(entry.version)))
                )
                for entry in server.index()
            ],
            "tenants": tenant_counters(server),
        }

    def _look(self) -> dict[tuple[str, int], _Known]:
        """Return the READY servables, by name and version."""
        before = self._known
        self._known = {}
        for servable in self._server.ready_models():
            key = (servable.id.name, servable.id.version)
            known = before.get(key)
            if (
                known is None
                or not known.final
                or known.servable is not servable
                or known.statistics is not servable.statistics
            ):
                known = _Known(
                    servable,
                    servable.statistics,
                    *_engine(servable),
                    servable if isinstance(servable, RequestHolder) else None,
                    servable if isinstance(servable, SequenceKeeper) else None,
                )
            self._known[key] = known
        return self._known


def _engine(servable: Servable) -> tuple[str, bool]:
    """Return the engine and its version, in words for people, and whether it will report no more than that."""
    if servable.config.ensemble is not None:
        return "ensemble", True
    report = engine_report(servable)
    return engine_title({**report, "engine": report.get("engine") or servable.config.backend}), bool(report)


def _resident() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _model(entry: IndexEntry, known: _Known | None, of_engine: EngineFigures | None) -> ModelCounters:
    engine, instances, lost, memory, counts = "", 0, 0, -1, None
    if known is not None:
        statistics = known.statistics
        engine, instances, lost = known.engine, statistics.instances, statistics.instances_lost
        memory = resident_bytes(known.servable)
        counts = _counts(known, of_engine)
    return {
        "name": entry.name,
        "version": "" if entry.version is None else str(entry.version),
        "state": entry.state.value,
        "reason": entry.reason,
        "load_ms": entry.load_ns // 1_000_000,
        "engine": engine,
        "instances": instances,
        "lost": lost,
        "memory": memory,
        "counts": counts,
    }


def _counts(known: _Known, of_engine: EngineFigures | None) -> RequestCounters:
    statistics, config = known.statistics, known.servable.config
    return {
        "pending": statistics.pending,
        "in_flight": 0 if known.holder is None else known.holder.outstanding,
        "sequences": -1 if known.keeper is None else known.keeper.open_sequences,
        "success": statistics.success.count,
        "failures": {reason.value: count for reason, count in statistics.failures.items()},
        "inferences": statistics.inference_count,
        "batches": statistics.execution_count,
        "latency": durations([statistics.request_histogram.sketch]),
        "times": [
            each.ns
            for each in (
                statistics.success,
                statistics.queue,
                statistics.compute_input,
                statistics.compute_infer,
                statistics.compute_output,
            )
        ],
        "sizes": list(statistics.batch_size_histogram.buckets),
        "size_bounds": list(statistics.batch_size_histogram.bounds),
        "closed": dict(statistics.close_reasons),
        "cache": [statistics.cache_hit.count, statistics.cache_miss.count] if config.cached else [],
        "restarts": statistics.instance_restarts,
        "stream": stream_counters(statistics, config.decoupled, of_engine),
    }

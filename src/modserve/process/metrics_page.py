"""The metrics page of one process: its sources and threads.

The state of the server is read on the event loop, in less than a millisecond for hundreds of models. Model counters are
read, and the page is rendered, on a thread: counters only grow, so the page is right whenever each of them is read.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from modserve.backends.inventory import inventory
from modserve.core.residency import residency
from modserve.core.servable import Servable, base, oldest, process_ids
from modserve.core.statistics.metrics import MetricStore
from modserve.form import form
from modserve.observability import prometheus
from modserve.observability.families import Collector, Family, collect_families, page
from modserve.observability.gpus import GpuCollector
from modserve.observability.server_metrics import MachineCollector, ModelProcesses, ServerFigures
from modserve.server.local import LocalServer
from modserve.settings import Settings


class MetricsPage:
    """Metrics page. `connections` and `responses`: figures of the ports by protocol, the latter also by code.
    `endings`: closed gRPC connections by reason."""

    def __init__(
        self,
        server: LocalServer,
        store: MetricStore,
        settings: Settings,
        connections: Callable[[], Mapping[str, int]],
        responses: Callable[[], Mapping[str, Mapping[str, int]]],
        others: Sequence[Collector] = (),
        endings: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._server = server
        self._connections = connections
        self._responses = responses
        self._endings = endings
        self._servables: list[Servable] = []
        self._figures: ServerFigures | None = None
        config = settings.metrics_config
        off = [name for name in ("counter_latencies", "histogram_latencies") if config.get(name) == "false"]
        left_out = prometheus.latencies("counter_latencies" in off, "histogram_latencies" in off)
        self._summaries = config.get("summary_latencies") == "true"
        quantiles = settings.summary_quantiles or prometheus.QUANTILES
        self.collectors = prometheus.collectors(lambda: self._servables, self._state, store, left_out, quantiles)
        self.collectors.append(ModelProcesses(lambda: self._state().processes).collect)
        if settings.allow_cpu_metrics:
            self.collectors.append(MachineCollector(settings.metrics_interval_ms).collect)
        if settings.allow_gpu_metrics:
            self.collectors.append(GpuCollector(settings.metrics_interval_ms).collect)
        self.collectors += others
        self._about: tuple[str, Sequence[tuple[str, str, str]]] | None = None
        self._one = asyncio.Lock()

    def counting(self) -> AbstractContextManager[None]:
        """Return a context in which newly loaded models count for summaries, if the page has any."""
        return self._server.changes.listening(self._keep_summaries)

    def _keep_summaries(self) -> None:
        if self._summaries:
            for servable in self._server.ready_models():
                servable.statistics.keep_summaries()

    def has_exemplars(self) -> bool:
        """True if the page has exemplars with traces, which only OpenMetrics supports."""
        if self._server.tracer.on:
            return True
        statistics = [each.statistics for each in self._server.ready_models()]
        return any(each.request_histogram.exemplars or each.first_response_histogram.exemplars for each in statistics)

    async def families(self, fine: bool = False) -> list[Family]:
        """Return the families. On the event loop's thread, one page at a time. `fine`: with sketches of durations."""
        async with self._one:
            if self._about is None:
                self._about = await asyncio.to_thread(_about)
            self._servables = self._server.ready_models()
            self._figures = self._read(*self._about)
            collectors = [*self.collectors, self._sketches] if fine else self.collectors
            return await asyncio.to_thread(lambda: list(collect_families(collectors)))

    async def text(self, openmetrics: bool = False, fine: bool = False) -> bytes:
        return await asyncio.to_thread(page, await self.families(fine), openmetrics)

    def _sketches(self) -> Iterator[Family]:
        return prometheus.sketch_families(self._servables)

    def _state(self) -> ServerFigures:
        assert self._figures is not None, "read before each page: this is a bug"
        return self._figures

    def _read(self, form: str, engines: Sequence[tuple[str, str, str]]) -> ServerFigures:
        server = self._server
        now_ns = time.monotonic_ns()
        failed = server.failed_loads()
        for servable in self._servables:
            if (report := residency(servable)) is not None and report.failed_loads:
                key = servable.id.name, servable.id.version
                failed[key] = failed.get(key, 0) + report.failed_loads
        return ServerFigures(
            server.version,
            server.ready,
            server.index(),
            server.in_flight(),
            self._connections(),
            server.memory,
            server.routing_figures(),
            server.model_memory(),
            form,
            engines,
            failed,
            self._responses(),
            server.tracer.figures,
            self._endings(),
            server.quotas.reports([base(each) for each in self._servables]),
            {name: each.durations for name, each in server.quotas.figures.items()},
            server.drain_phase,
            None if server.recorder is None else server.recorder.figures,
            {each.id: times for each in self._servables if (times := oldest(each, now_ns)) is not None},
            [
                (prometheus.labels_of(each).text, each.statistics.began_ns, process_ids(each))
                for each in self._servables
            ],
            server.repository_reads if server.control_mode == "poll" else {},
        )


def _about() -> tuple[str, Sequence[tuple[str, str, str]]]:
    """Return the running form, and the installed engines, without importing them. Reads many files."""
    return form(), [
        (each.backend, each.library, each.version) for each in inventory() if each.installed and each.library
    ]

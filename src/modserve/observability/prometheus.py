"""The metrics page: Triton's names and histograms of our own, read from the statistics at each scrape."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString as _untyped_go_string

from modserve.core.lifecycle import IndexEntry
from modserve.core.memory import MemoryBudget
from modserve.core.servable import Servable
from modserve.core.statistics import Histogram, ModelStatistics, TunerStatistics

CONTENT_TYPE = "text/plain; charset=utf-8"

_NS = 1e9
"""Nanoseconds in a second. A divisor, since 30_000_000_000 * 1e-9 is not 30."""

_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("nv_inference_request_success", "Requests answered", lambda s: s.success.count),
    ("nv_inference_count", "Inferences done: the batch sizes summed, cache hits left out", lambda s: s.inference_count),
    ("nv_inference_exec_count", "Batches executed", lambda s: s.execution_count),
    ("nv_inference_request_duration_us", "Microseconds of requests in all", lambda s: s.success.ns // 1000),
    ("nv_inference_queue_duration_us", "Microseconds requests waited in all", lambda s: s.queue.ns // 1000),
    (
        "nv_inference_compute_input_duration_us",
        "Microseconds spent on making the engine's inputs, in all",
        lambda s: s.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Microseconds spent in the engine, in all",
        lambda s: s.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Microseconds spent on taking the engine's outputs, in all",
        lambda s: s.compute_output.ns // 1000,
    ),
)

_GAUGES: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("nv_inference_pending_request_count", "Requests that wait to run", lambda s: s.pending),
    ("nv_model_load_duration_secs", "Seconds that loading the version took", lambda s: s.load_ns / _NS),
)

_INSTANCES: tuple[tuple[str, Callable[[ModelStatistics], int]], ...] = (
    ("running", lambda s: s.instances - s.instances_lost),
    ("lost", lambda s: s.instances_lost),
)
"""The states of instances, as `modserve_instances` counts them."""

_CACHE_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("nv_cache_num_hits_per_model", "Requests answered from the cache", lambda s: s.cache_hit.count),
    ("nv_cache_num_misses_per_model", "Requests run since the cache had no answer", lambda s: s.cache_miss.count),
    (
        "nv_cache_hit_duration_per_model",
        "Microseconds spent on finding answers in the cache, in all",
        lambda s: s.cache_hit.ns // 1000,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Microseconds spent on not finding answers in the cache and on keeping new ones, in all",
        lambda s: s.cache_miss.ns // 1000,
    ),
)

_HISTOGRAMS: tuple[tuple[str, str, float, Callable[[ModelStatistics], Histogram]], ...] = (
    (
        "modserve_request_duration_seconds",
        "Time from a request's arrival to its answer",
        _NS,
        lambda s: s.request_histogram,
    ),
    ("modserve_queue_duration_seconds", "Time a request waited to run", _NS, lambda s: s.queue_histogram),
    ("modserve_compute_duration_seconds", "Time of a request's execution", _NS, lambda s: s.compute_histogram),
    ("modserve_batch_size", "Sizes of the batches executed", 1, lambda s: s.batch_size_histogram),
)

_TUNER: tuple[tuple[str, str, Callable[[TunerStatistics], float]], ...] = (
    ("modserve_tuner_p99_goal_seconds", "What 99 of 100 requests shall stay below", lambda t: t.goal_ns / _NS),
    ("modserve_tuner_p99_seconds", "What 99 of 100 requests stayed below lately", lambda t: t.p99_ns / _NS),
    ("modserve_tuner_delay_seconds", "The queue delay that the tuner has set", lambda t: t.delay_ns / _NS),
    ("modserve_tuner_batch_size", "The batch size that the tuner has set", lambda t: t.batch_size),
)


class StatisticsCollector(Collector):
    """Metric families of the statistics of all models; `servables` returns the models at each scrape."""

    def __init__(self, servables: Callable[[], Iterable[Servable]]) -> None:
        self._servables = servables

    def collect(self) -> Iterator[Metric]:
        models = [(_labels(servable), servable) for servable in self._servables()]
        for name, text, read in _COUNTERS:
            family = Metric(name, text, "counter")
            for labels, servable in models:
                family.add_sample(name, labels, read(servable.statistics))
            yield family
        for name, text, read in _CACHE_COUNTERS:
            family = Metric(name, text, "counter")
            for labels, servable in models:
                if servable.config.cached:
                    family.add_sample(name, labels, read(servable.statistics))
            yield family
        instances = Metric("modserve_instances", "Instances by state; lost ones are about to be made anew", "gauge")
        restarts = Metric("modserve_instance_restarts", "Instances made anew after they were lost", "counter")
        for labels, servable in models:
            statistics = servable.statistics
            if statistics.instances:  # ensembles have none
                for state, counted in _INSTANCES:
                    instances.add_sample(instances.name, {**labels, "state": state}, counted(statistics))
                restarts.add_sample("modserve_instance_restarts_total", labels, statistics.instance_restarts)
        yield instances
        yield restarts
        failures = Metric("nv_inference_request_failure", "Requests that failed, by reason", "counter")
        for labels, servable in models:
            for reason, count in servable.statistics.failures.items():
                failures.add_sample(failures.name, {**labels, "reason": reason.value}, count)
        yield failures
        closed = Metric("modserve_batches_closed", "Batches executed, by why they did not grow any more", "counter")
        for labels, servable in models:
            for why, count in servable.statistics.close_reasons.items():
                closed.add_sample(closed.name, {**labels, "reason": why}, count)
        yield closed
        elements = Metric(
            "modserve_batch_elements", "Elements of the batches executed, and what filled them up", "counter"
        )
        for labels, servable in models:
            if servable.config.fills_up:
                elements.add_sample(elements.name, {**labels, "kind": "useful"}, servable.statistics.elements)
                elements.add_sample(elements.name, {**labels, "kind": "padding"}, servable.statistics.padding)
        yield elements
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(name, text)
            for labels, servable in models:
                gauge.add_sample(name, labels, read(servable.statistics))
            yield gauge
        for name, text, value in _TUNER:
            gauge = GaugeMetricFamily(name, text)
            for labels, servable in models:
                if servable.statistics.tuner is not None:
                    gauge.add_sample(name, labels, value(servable.statistics.tuner))
            yield gauge
        for name, text, unit, histogram in _HISTOGRAMS:
            yield histogram_family(name, text, unit, [(labels, histogram(s.statistics)) for labels, s in models])


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

UNLOADED_STATE = "UNLOADED"
"""The state on this page of a version that was unloaded on purpose. The index, like Triton's, says UNAVAILABLE."""


class ServerCollector(Collector):
    """Metric families of the server's figures; `read` returns them at each scrape."""

    def __init__(self, read: Callable[[], ServerFigures]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        figures = self._read()
        build = GaugeMetricFamily("modserve_build_info", "Always 1; the labels tell which server this is")
        build.add_sample(build.name, {"version": figures.version, "python": platform.python_version()}, 1)
        yield build
        yield _single("modserve_ready", "gauge", "1 when inference may be sent", figures.ready)
        states = GaugeMetricFamily("modserve_model_state", "Always 1; the label is a model version's state")
        for entry in figures.index:
            state = UNLOADED_STATE if entry.unloaded else entry.state.value
            version = "" if entry.version is None else str(entry.version)
            states.add_sample(states.name, {"model": entry.name, "version": version, "state": state}, 1)
        yield states
        in_flight = GaugeMetricFamily("modserve_requests_in_flight", "Requests accepted and not answered yet")
        for name in sorted({entry.name for entry in figures.index} | figures.in_flight.keys()):
            in_flight.add_sample(in_flight.name, {"model": name}, figures.in_flight.get(name, 0))
        yield in_flight
        connections = GaugeMetricFamily("modserve_connections", "Open connections, by protocol")
        for protocol, count in figures.connections.items():
            connections.add_sample(connections.name, {"protocol": protocol}, count)
        yield connections
        for name, kind, text, value in _MEMORY:
            yield _single(name, kind, text, value(figures.memory))


def registry(
    servables: Callable[[], Iterable[Servable]], figures: Callable[[], ServerFigures] | None = None
) -> CollectorRegistry:
    """A registry of the metrics of one server and of its process."""
    collectors = CollectorRegistry()
    if figures is not None:
        collectors.register(ServerCollector(figures))
    collectors.register(StatisticsCollector(servables))
    ProcessCollector(registry=collectors)
    return collectors


def render(collectors: CollectorRegistry) -> bytes:
    """The page in Prometheus' text format 0.0.4. Like Triton's page, it leaves out families without samples.

    prometheus_client's own writer would call every counter ``<name>_total``, unlike Triton.
    """
    lines: list[str] = []
    for family in collectors.collect():
        if not family.samples:
            continue
        name = family.name
        if family.type == "counter" and all(sample.name == f"{name}_total" for sample in family.samples):
            name = f"{name}_total"
        lines.append(f"# HELP {name} {_escape(family.documentation)}")
        lines.append(f"# TYPE {name} {family.type if family.type != 'unknown' else 'untyped'}")
        for sample in family.samples:
            labels = ",".join(
                f'{key}="{_escape_value(value)}"' for key, value in sorted(sample.labels.items(), key=_place)
            )
            lines.append(
                f"{sample.name}{{{labels}}} {_number(sample.value)}"
                if labels
                else f"{sample.name} {_number(sample.value)}"
            )
    lines.append("")
    return "\n".join(lines).encode()


def _place(label: tuple[str, str]) -> tuple[bool, str]:
    """Like Triton's page, sorts labels by name, with the limit of a bucket last."""
    return label[0] == "le", label[0]


def _single(name: str, kind: str, text: str, value: float) -> Metric:
    family = Metric(name, text, kind)
    family.add_sample(name, {}, value)
    return family


def _labels(servable: Servable) -> dict[str, str]:
    tags = {f"_{key}": value for key, value in servable.config.metric_tags.items()}
    return {"model": servable.id.name, "version": str(servable.id.version), **tags}


def histogram_family(
    name: str, text: str, unit: float, rows: list[tuple[dict[str, str], Histogram]]
) -> HistogramMetricFamily:
    """A family of histograms, a row for each set of labels. Bounds and sums are divided by `unit`."""
    family = HistogramMetricFamily(name, text)
    for labels, histogram in rows:
        running = 0
        for bound, count in zip((*histogram.bounds, None), histogram.buckets, strict=True):
            running += count
            limit = "+Inf" if bound is None else _number(bound / unit)
            family.add_sample(f"{name}_bucket", {**labels, "le": limit}, running)
        family.add_sample(f"{name}_count", labels, running)
        family.add_sample(f"{name}_sum", labels, histogram.total / unit)
    return family


def _number(value: float) -> str:
    return str(_untyped_go_string(value))  # type: ignore[no-untyped-call]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape_value(text: str) -> str:
    return _escape(text).replace('"', r"\"")

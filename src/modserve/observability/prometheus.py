"""The metrics page: Triton's names and histograms of our own, read from the statistics at each scrape."""

import platform
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString as _untyped_go_string

from modserve.core.lifecycle import IndexEntry
from modserve.core.memory import MemoryBudget
from modserve.core.metrics import MetricStore
from modserve.core.residency import NO_MEMORY, MemoryReport, residency
from modserve.core.routing_config import RouteFigures, ShadowFigures
from modserve.core.servable import Servable, engine_report
from modserve.core.statistics import Histogram, ModelStatistics, TunerStatistics

from . import model_memory
from .routing_families import routing_families

CONTENT_TYPE = "text/plain; charset=utf-8"

_NS = 1e9
"""Nanoseconds in a second. A divisor, since 30_000_000_000 * 1e-9 is not 30."""

_Single: TypeAlias = tuple[str, str, Callable[[ModelStatistics], float]]
"""A family's name and help, and what reads its value."""

_COUNTERS: tuple[_Single, ...] = (
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
_CACHE_COUNTERS: tuple[_Single, ...] = (
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
_RESTARTS: tuple[_Single, ...] = (
    ("modserve_instance_restarts_total", "Instances made anew after they were lost", lambda s: s.instance_restarts),
)
_GAUGES: tuple[_Single, ...] = (
    ("nv_inference_pending_request_count", "Requests that wait to run", lambda s: s.pending),
    ("nv_model_load_duration_secs", "Seconds that loading the version took", lambda s: s.load_ns / _NS),
)
_TUNER: tuple[tuple[str, str, Callable[[TunerStatistics], float]], ...] = (
    ("modserve_tuner_p99_goal_seconds", "What 99 of 100 requests shall stay below", lambda t: t.goal_ns / _NS),
    ("modserve_tuner_p99_seconds", "What 99 of 100 requests stayed below lately", lambda t: t.p99_ns / _NS),
    ("modserve_tuner_delay_seconds", "The queue delay that the tuner has set", lambda t: t.delay_ns / _NS),
    ("modserve_tuner_batch_size", "The batch size that the tuner has set", lambda t: t.batch_size),
)
_GROUPS: tuple[tuple[str, Callable[[Servable], Any], tuple[tuple[str, str, Callable[[Any], float]], ...]], ...] = (
    ("counter", lambda model: model.statistics, _COUNTERS),
    ("counter", lambda model: model.statistics if model.config.cached else None, _CACHE_COUNTERS),
    ("counter", lambda model: model.statistics if model.statistics.instances else None, _RESTARTS),
    ("gauge", lambda model: model.statistics, _GAUGES),
    ("gauge", lambda model: model.statistics.tuner, _TUNER),
    ("gauge", residency, model_memory.GAUGES),
    ("counter", residency, model_memory.COUNTERS),
)
"""Families of one sample a model: their kind, what they are read from (None where the model has none), and they."""


def _instances(model: Servable) -> dict[str, float]:
    """Ensembles have none."""
    count, lost = model.statistics.instances, model.statistics.instances_lost
    return {"running": count - lost, "lost": lost} if count else {}


def _choices(model: Servable) -> Mapping[str, float]:
    choice = model.statistics.choice
    return {} if choice is None else choice.batches


def _elements(model: Servable) -> dict[str, float]:
    statistics = model.statistics
    return {"useful": statistics.elements, "padding": statistics.padding} if model.config.fills_up else {}


_LABELLED: tuple[tuple[str, str, str, str, Callable[[Servable], Mapping[str, float]]], ...] = (
    (
        "modserve_batches_chosen",
        "counter",
        "Batches chosen by measured run times: of one request, of equal lengths, or padded",
        "kind",
        _choices,
    ),
    ("modserve_instances", "gauge", "Instances by state; lost ones are about to be made anew", "state", _instances),
    (
        "nv_inference_request_failure",
        "counter",
        "Requests that failed, by reason",
        "reason",
        lambda model: {reason.value: count for reason, count in model.statistics.failures.items()},
    ),
    (
        "modserve_batches_closed",
        "counter",
        "Batches executed, by why they did not grow any more",
        "reason",
        lambda model: model.statistics.close_reasons,
    ),
    (
        "modserve_batch_elements",
        "counter",
        "Elements of the batches executed, and what filled them up",
        "kind",
        _elements,
    ),
)
"""Families of several samples a model, which the values of one more label tell apart."""

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


def model_families(servables: Iterable[Servable]) -> Iterator[Metric]:
    """The metric families of the statistics of models."""
    models = [(_labels(servable), servable) for servable in servables]
    for kind, source, families in _GROUPS:
        sources = [(labels, source(model)) for labels, model in models]
        for name, text, read in families:
            yield _family(name, kind, text, [(labels, read(each)) for labels, each in sources if each is not None])
    for name, kind, text, label, values in _LABELLED:
        rows = [({**labels, label: key}, value) for labels, model in models for key, value in values(model).items()]
        yield _family(name, kind, text, rows)
    yield from _engines(models)
    for name, text, unit, histogram in _HISTOGRAMS:
        yield histogram_family(name, text, unit, [(labels, histogram(each.statistics)) for labels, each in models])


_ENGINE_LABELS = {
    "backend": "backend",
    "engine": "engine",
    "engine_version": "version",
    "precision": "precision",
    "variant": "variant",
    "device": "device",
}
"""Labels of an engine → the members of its report."""


def _engines(models: Sequence[tuple[dict[str, str], Servable]]) -> Iterator[Metric]:
    """What runs each model, and of those whose engine was chosen by measuring, what the candidates took."""
    reports = [(labels, report) for labels, model in models if (report := engine_report(model))]
    rows = [(labels | _named(report), 1.0) for labels, report in reports]
    yield _family("modserve_engine_info", "gauge", "Always 1; the labels tell what runs a model", rows)
    candidates = [
        (labels | _named(each), each) for labels, report in reports for each in _objects(report.get("candidates"))
    ]
    for key, unit in (("seconds", "Seconds that an execution took"), ("error", "Difference from the reference")):
        measured = [(labels, value) for labels, each in candidates if isinstance(value := each.get(key), int | float)]
        text = f"{unit}, when the engine of a model was chosen"
        yield _family(f"modserve_engine_candidate_{key}", "gauge", text, measured)


def _named(report: Mapping[str, object]) -> dict[str, str]:
    return {label: str(report[member]) for label, member in _ENGINE_LABELS.items() if report.get(member) is not None}


def _objects(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


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


def server_families(figures: ServerFigures) -> Iterator[Metric]:
    """The metric families of a server's figures."""
    build = {"version": figures.version, "python": platform.python_version()}
    text = "Always 1; the labels tell which server this is"
    yield _family("modserve_build_info", "gauge", text, [(build, 1)])
    yield _family("modserve_ready", "gauge", "1 when inference may be sent", [({}, figures.ready)])
    text = "Always 1; the label is a model version's state"
    yield _family("modserve_model_state", "gauge", text, [(_state(entry), 1) for entry in figures.index])
    names = sorted({entry.name for entry in figures.index} | figures.in_flight.keys())
    rows = [({"model": name}, figures.in_flight.get(name, 0)) for name in names]
    yield _family("modserve_requests_in_flight", "gauge", "Requests accepted and not answered yet", rows)
    rows = [({"protocol": protocol}, count) for protocol, count in figures.connections.items()]
    yield _family("modserve_connections", "gauge", "Open connections, by protocol", rows)
    for name, kind, text, value in _MEMORY:
        yield _family(name, kind, text, [({}, value(figures.memory))])
    if figures.model_memory.limit:
        for name, text, read in model_memory.OF_ALL:
            yield _family(name, "gauge", text, [({}, read(figures.model_memory))])
    for name, kind, text, routed in routing_families(figures.routings):
        yield _family(name, kind, text, routed)


def _state(entry: IndexEntry) -> dict[str, str]:
    version = "" if entry.version is None else str(entry.version)
    return {"model": entry.name, "version": version, "state": UNLOADED_STATE if entry.unloaded else entry.state.value}


RESERVED = (
    *("modserve_", "process_"),
    *("nv_inference_", "nv_model_", "nv_cache_", "nv_gpu_", "nv_cpu_", "nv_energy_", "nv_pinned_"),
)
"""The beginnings of the names of the server's own metrics, and of those that Triton has."""


def engine_families(store: MetricStore) -> Iterator[Metric]:
    """The metric families that engines have made."""
    for name, text, kind, rows in store.read():
        histograms = [(labels, value) for labels, value in rows if isinstance(value, Histogram)]
        if kind == "histogram":
            yield histogram_family(name, text, 1, histograms)
        else:
            yield _family(name, kind, text, [(labels, value) for labels, value in rows if isinstance(value, float)])


class _Collector(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def latencies(counters: bool, histograms: bool) -> frozenset[str]:
    """The families of models' times: the sums, the histograms, or both."""
    sums = [name for name, *_ in (*_COUNTERS, *_CACHE_COUNTERS) if counters]
    names = (*sums, *(name for name, *_ in _HISTOGRAMS if histograms))
    return frozenset(name for name in names if "_duration_" in name)


def registry(
    servables: Callable[[], Iterable[Servable]],
    figures: Callable[[], ServerFigures] | None = None,
    engines: MetricStore | None = None,
    left_out: Container[str] = (),
) -> CollectorRegistry:
    """A registry of the metrics of one server, its process and its engines; all of it is read at each scrape.

    The families `left_out` are those of models' statistics that the page does not have.
    """
    collectors = CollectorRegistry()
    if figures is not None:
        collectors.register(_Collector(lambda: server_families(figures())))
    collectors.register(
        _Collector(lambda: (family for family in model_families(servables()) if family.name not in left_out))
    )
    ProcessCollector(registry=collectors)
    if engines is not None:
        collectors.register(_Collector(lambda: engine_families(engines)))
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
            lines.append(f"{sample.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}")
    lines.append("")
    return "\n".join(lines).encode()


def _place(label: tuple[str, str]) -> tuple[bool, str]:
    """Like Triton's page, sorts labels by name, with the limit of a bucket last."""
    return label[0] == "le", label[0]


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[dict[str, str], float]]) -> Metric:
    family = Metric(name, text, kind)
    for labels, value in rows:
        family.add_sample(name, labels, value)
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

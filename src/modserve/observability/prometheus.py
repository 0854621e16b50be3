"""Metrics of models: Triton's names and additional histograms, read from the statistics at each scrape."""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from modserve.core.residency import residency
from modserve.core.servable import Servable, engine_report, resident_bytes
from modserve.core.statistics.histogram import Histogram
from modserve.core.statistics.metrics import MetricStore
from modserve.core.statistics.model_statistics import FIRST_RESPONSE, RESPONSE_INTERVAL, ModelStatistics
from modserve.core.statistics.summary import FINE_FAMILY, LONGEST_FAMILY, LatencySummaries, Summary, middle_of

from . import families, server_metrics
from .families import Collector, Family, Labels, family, format_labels, histogram_family, summary_family
from .server_metrics import ProcessCollector, ServerFigures, server_families

CONTENT_TYPE = "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_NS = 1e9
"""Nanoseconds in a second. Used as a divisor, since 30_000_000_000 * 1e-9 is not 30."""

_Single: TypeAlias = tuple[str, str, Callable[[ModelStatistics], float]]
"""Name and help of a family, and a function that reads its value."""

_COUNTERS: tuple[_Single, ...] = (
    ("nv_inference_request_success", "Requests answered", lambda s: s.success.count),
    ("nv_inference_count", "Inferences: the sum of batch sizes, without cache hits", lambda s: s.inference_count),
    ("nv_inference_exec_count", "Batches executed", lambda s: s.execution_count),
    ("nv_inference_request_duration_us", "Total microseconds of requests", lambda s: s.success.ns // 1000),
    (
        "nv_inference_queue_duration_us",
        "Total microseconds that requests waited in the queue",
        lambda s: s.queue.ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Total microseconds spent preparing the engine's inputs",
        lambda s: s.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Total microseconds spent in the engine",
        lambda s: s.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Total microseconds spent reading the engine's outputs",
        lambda s: s.compute_output.ns // 1000,
    ),
)
_CACHE_COUNTERS: tuple[_Single, ...] = (
    ("nv_cache_num_hits_per_model", "Requests answered from the cache", lambda s: s.cache_hit.count),
    (
        "nv_cache_num_misses_per_model",
        "Requests executed because the cache had no answer",
        lambda s: s.cache_miss.count,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Total microseconds spent on cache hits",
        lambda s: s.cache_hit.ns // 1000,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total microseconds spent on cache misses, including storing the answers",
        lambda s: s.cache_miss.ns // 1000,
    ),
)
_RESTARTS: tuple[_Single, ...] = (
    ("modserve_instance_restarts_total", "Lost instances that were replaced", lambda s: s.instance_restarts),
)
_GAUGES: tuple[_Single, ...] = (
    ("nv_inference_pending_request_count", "Requests that wait in the queue", lambda s: s.pending),
    ("nv_model_load_duration_secs", "Time of loading the version in seconds", lambda s: s.load_ns / _NS),
)


def _size(model: Servable) -> int | None:
    size = resident_bytes(model)
    return None if size < 0 else size


_GROUPS: tuple[tuple[str, Callable[[Servable], Any], tuple[tuple[str, str, Callable[[Any], float]], ...]], ...] = (
    ("counter", lambda model: model.statistics, _COUNTERS),
    ("counter", lambda model: model.statistics if model.config.cached else None, _CACHE_COUNTERS),
    ("counter", lambda model: model.statistics if model.statistics.instances else None, _RESTARTS),
    ("gauge", lambda model: model.statistics, _GAUGES),
    ("gauge", _size, server_metrics.SIZES),
    ("gauge", residency, server_metrics.GAUGES),
    ("counter", residency, server_metrics.COUNTERS),
)
"""Families with one sample per model: type, reader of their source (None if the model has none), families."""


def _instances(model: Servable) -> dict[str, float]:
    """Return the instance figures of a model; empty for ensembles."""
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
    ("modserve_instances", "gauge", "Instances by state; lost ones are being replaced", "state", _instances),
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
        "Batches executed, by the reason why they stopped growing",
        "reason",
        lambda model: model.statistics.close_reasons,
    ),
    (
        "modserve_batch_elements",
        "counter",
        "Elements of the batches executed: useful ones and padding",
        "kind",
        _elements,
    ),
)
"""Families with several samples per model, distinguished by one more label."""

_HISTOGRAMS: tuple[tuple[str, str, float, Callable[[ModelStatistics, bool], Histogram | None]], ...] = (
    (
        "modserve_request_duration_seconds",
        "Time from a request's arrival to its answer",
        _NS,
        lambda s, _: s.request_durations(),
    ),
    ("modserve_queue_duration_seconds", "Time that a request waited in the queue", _NS, lambda s, _: s.queue_histogram),
    ("modserve_compute_duration_seconds", "Time that a request was executed", _NS, lambda s, _: s.compute_histogram),
    ("modserve_batch_size", "Sizes of the batches executed", 1, lambda s, _: s.batch_size_histogram),
    (
        FIRST_RESPONSE,
        "Milliseconds from a request's arrival to its first response",
        1e6,
        lambda s, decoupled: s.first_responses(decoupled),
    ),
    (
        RESPONSE_INTERVAL,
        "Time from a response of a request to its next one",
        _NS,
        lambda s, decoupled: s.response_intervals if decoupled else None,
    ),
)
"""Histograms with functions that read them from the statistics; None if the model has none. The flag: decoupled."""

_SUMMARIES: tuple[tuple[str, str, Callable[[LatencySummaries], Summary], bool], ...] = (
    ("nv_inference_request_summary_us", "Microseconds of requests", lambda s: s.request, False),
    ("nv_inference_queue_summary_us", "Microseconds that requests waited in the queue", lambda s: s.queue, False),
    (
        "nv_inference_compute_input_summary_us",
        "Microseconds spent preparing the engine's inputs",
        lambda s: s.compute_input,
        False,
    ),
    ("nv_inference_compute_infer_summary_us", "Microseconds spent in the engine", lambda s: s.compute_infer, False),
    (
        "nv_inference_compute_output_summary_us",
        "Microseconds spent reading the engine's outputs",
        lambda s: s.compute_output,
        False,
    ),
    (
        "nv_cache_hit_summary_us_per_model",
        "Microseconds spent on cache hits",
        lambda s: s.cache_hit,
        True,
    ),
    (
        "nv_cache_miss_summary_us_per_model",
        "Microseconds spent on cache misses, including storing the answers",
        lambda s: s.cache_miss,
        True,
    ),
)
"""Summaries with functions that read them; True for summaries of models with a cache only."""
QUANTILES: Sequence[str] = ("0.5", "0.9", "0.95", "0.99", "0.999")
"""Default quantiles of summaries, as in Triton."""


def model_families(servables: Iterable[Servable], quantiles: Sequence[str] = QUANTILES) -> Iterator[Family]:
    """Yield the metric families of the statistics of models."""
    models = [(labels_of(servable), servable) for servable in servables]
    for kind, source, singles in _GROUPS:
        sources = [(labels.text, each) for labels, model in models if (each := source(model)) is not None]
        for name, text, read in singles:
            yield family(name, kind, text, [(labels, read(each)) for labels, each in sources])
    for name, kind, text, label, values in _LABELLED:
        rows = [
            (labels.having(label, key), value) for labels, model in models for key, value in [*values(model).items()]
        ]
        yield family(name, kind, text, rows)
    yield from _engines([(labels.of, model) for labels, model in models])
    for name, text, unit, read_of in _HISTOGRAMS:
        histograms = [(labels.text, read_of(each.statistics, each.config.decoupled)) for labels, each in models]
        yield histogram_family(name, text, unit, [(labels, each) for labels, each in histograms if each is not None])
    yield from _summaries(models, quantiles)


def _summaries(models: Sequence[tuple[Labels, Servable]], quantiles: Sequence[str]) -> Iterator[Family]:
    """Yield Triton's quantiles over the last minute, in microseconds."""
    ranks, now_ns = [float(quantile) for quantile in quantiles], time.monotonic_ns()
    for name, text, read, cached in _SUMMARIES:
        rows = []
        for place, (labels, model) in enumerate(models):
            if place % families.BREATH == 0:
                families.breathe()
            if (kept := model.statistics.summaries) is None or (cached and not model.config.cached):
                continue
            summary = read(kept)
            values = [value / 1e3 for value in summary.quantiles(ranks, now_ns)]
            rows.append((labels, summary.count, summary.total / 1e3, zip(quantiles, values, strict=True)))
        yield summary_family(name, text, rows)


def sketch_families(servables: Iterable[Servable]) -> Iterator[Family]:
    """Yield the distributions of request durations, for pages that request them."""
    fine = Family(FINE_FAMILY, "gauge", "Requests by their duration, to within 1 %")
    longest = Family(LONGEST_FAMILY, "gauge", "The longest request")
    for servable in servables:
        families.breathe()
        sketch, labels = servable.statistics.request_histogram.sketch, labels_of(servable)
        if sketch is not None and sketch.counts:
            rows = sorted(sketch.counts.copy().items())
            fine.add((labels.having("seconds", repr(middle_of(bucket) / _NS)), count) for bucket, count in rows)
            longest.add([(labels.text, sketch.longest / _NS)])
    yield from (fine, longest)


_ENGINE_LABELS = {
    "backend": "backend",
    "engine": "engine",
    "engine_version": "version",
    "precision": "precision",
    "variant": "variant",
    "device": "device",
}
"""Labels of an engine → keys of its report."""


def _engines(models: Sequence[tuple[Mapping[str, str], Servable]]) -> Iterator[Family]:
    """Yield the engine of each model, and if it was chosen by measurement, the times of the candidates."""
    reports = [(labels, report) for labels, model in models if (report := engine_report(model))]
    rows = [(format_labels({**labels, **_read_engine_labels(report)}), 1) for labels, report in reports]
    yield family("modserve_engine_info", "gauge", "Always 1; the labels name the engine of a model", rows)
    candidates = [
        (format_labels({**labels, **_read_engine_labels(each)}), each)
        for labels, report in reports
        for each in _objects(report.get("candidates"))
    ]
    for key, unit in (("seconds", "Seconds of an execution"), ("error", "Difference from the reference")):
        measured = [(labels, value) for labels, each in candidates if isinstance(value := each.get(key), int | float)]
        text = f"{unit}, when the engine of a model was chosen"
        yield family(f"modserve_engine_candidate_{key}", "gauge", text, measured)


def _read_engine_labels(report: Mapping[str, object]) -> dict[str, str]:
    return {label: str(report[member]) for label, member in _ENGINE_LABELS.items() if report.get(member) is not None}


def _objects(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


RESERVED = (
    *("modserve_", "process_"),
    *("nv_inference_", "nv_model_", "nv_cache_", "nv_gpu_", "nv_cpu_", "nv_energy_", "nv_pinned_"),
)
"""Prefixes of the server's own metrics, and of Triton's."""

GENERATION = frozenset(
    f"modserve_{name}"
    for name in (
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_success_total",
    )
)
"""Metrics of language models, set by engines. After our prefix, they are named as in vLLM."""


def engine_families(store: MetricStore) -> Iterator[Family]:
    """Yield the metric families created by engines."""
    for name, text, kind, rows in store.read():
        histograms = [(format_labels(labels), value) for labels, value in rows if isinstance(value, Histogram)]
        if kind == "histogram":
            yield histogram_family(name, text, 1, histograms)
        else:
            values = [(format_labels(labels), value) for labels, value in rows if isinstance(value, float)]
            yield family(name, kind, text, values)


def latencies(counters: bool, histograms: bool) -> frozenset[str]:
    """Return the families of models' times: the sums, the histograms, or both."""
    sums = [name for name, *_ in (*_COUNTERS, *_CACHE_COUNTERS) if counters]
    names = (*sums, *(name for name, *_ in _HISTOGRAMS if histograms))
    return frozenset(name for name in names if "_duration_" in name)


def collectors(
    servables: Callable[[], Iterable[Servable]],
    figures: Callable[[], ServerFigures] | None = None,
    engines: MetricStore | None = None,
    left_out: Container[str] = (),
    quantiles: Sequence[str] = QUANTILES,
) -> list[Collector]:
    """Return the collectors of one server, its process and its engines, which read at each scrape.

    `left_out`: model families omitted from the page. `quantiles`: label values of the summaries' quantiles.
    """

    def models() -> Iterator[Family]:
        return (each for each in model_families(servables(), quantiles) if each.name not in left_out)

    made: list[Collector] = [models, ProcessCollector().collect]
    if figures is not None:
        made.insert(0, lambda: server_families(figures()))
    if engines is not None:
        made.append(lambda: engine_families(engines))
    return made


def labels_of(servable: Servable) -> Labels:
    tags = {f"_{key}": value for key, value in servable.config.metric_tags.items()}
    return Labels({"model": servable.id.name, "version": str(servable.id.version), **tags})

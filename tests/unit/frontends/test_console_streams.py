"""Figures of language models and other decoupled ones: read, added up over workers, and shown."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from modserve.core.statistics.metrics import MetricStore, StoredMetrics
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.statistics.summary import bucket_of
from modserve.frontends.http.console.figures import Durations
from modserve.frontends.http.console.streams import (
    StreamCounters,
    engine_figures,
    is_quiet,
    stream_counters,
    stream_row,
)
from modserve.observability.prometheus import GENERATION, RESERVED
from modserve.workers.pages import WorkerPage, document, merge, tables

LABELS = {"model": "writer", "version": "1"}
SERIES: dict[str, tuple[Any, ...]] = {
    "modserve_time_to_first_token_seconds": ("histogram", {}, 0.03, 0.03),
    "modserve_inter_token_latency_seconds": ("histogram", {}, 0.012),
    "modserve_prompt_tokens_total": ("counter", {}, 7),
    "modserve_generation_tokens_total": ("counter", {}, 40),
    "modserve_num_requests_running": ("gauge", {"instance": "0"}, 2),
    "modserve_num_requests_waiting": ("gauge", {"instance": "0"}, 1),
    "modserve_kv_cache_usage_perc": ("gauge", {"instance": "0"}, 0.25),
}


def written(store: MetricStore) -> StoredMetrics:
    """What an engine writes."""
    metrics = store.of_model()
    for name, (kind, labels, *values) in SERIES.items():
        metrics.family(name, "text", kind)
        buckets = (0.01, 0.02, 0.04) if kind == "histogram" else None
        metric = metrics.metric(name, {**LABELS, **labels}, buckets)
        kinds: dict[str, Callable[[float], None]]
        kinds = {"histogram": metric.observe, "counter": metric.increment, "gauge": metric.set}
        for value in values:
            kinds[kind](value)
    return metrics


@pytest.fixture
def by_token() -> StreamCounters:
    store = MetricStore(RESERVED, GENERATION)
    metrics = written(store)
    stream = stream_counters(ModelStatistics(), True, engine_figures(store)["writer", "1"])
    metrics.close()
    assert stream is not None
    return stream


def test_a_language_model_is_read_from_its_engine(by_token: StreamCounters) -> None:
    assert by_token == {
        "by_token": True,
        "first": {"counts": {bucket_of(30_000_000): 2}, "longest": 30_000_000},
        "between": {"counts": {bucket_of(12_000_000): 1}, "longest": 12_000_000},
        "tokens": [7, 40],
        "sequences": [2, 1],
        "kv_cache": [0.25],
    }


def test_other_decoupled_models_are_read_from_their_statistics() -> None:
    statistics = ModelStatistics()
    assert stream_counters(statistics, False, None) is None
    for index in range(3):
        statistics.record_response(index, "success", 0, 0, 2_000_000)
    stream = stream_counters(statistics, True, None)
    assert stream is not None
    assert (stream["by_token"], [*stream["between"]["counts"].values()], stream["tokens"]) == (False, [2], [])
    assert stream["between"]["longest"] == 2_000_000


def test_what_engines_show_besides_is_left_alone() -> None:
    store = MetricStore()
    metrics = store.of_model()
    metrics.family("other_total", "text", "counter")
    metrics.metric("other_total", LABELS).increment()
    assert engine_figures(store) == {}


def test_a_row_is_of_the_last_second(by_token: StreamCounters) -> None:
    assert stream_row(None, None, 1.0) is None
    first = stream_row(by_token, None, 0.0)
    assert first is not None
    assert (first["first"], first["tokens"], first["total"]) == ([None, None], [0.0, 0.0], [7, 40])
    assert (first["sequences"], first["cache"]) == ([2, 1], 0.25)
    assert is_quiet(first)
    later = deepcopy(by_token)
    later["first"]["counts"][bucket_of(30_000_000)] += 4
    later["tokens"][1] += 30
    row = stream_row(later, by_token, 2.0)
    assert row is not None
    assert (row["first"], row["between"], row["tokens"]) == ([30, 30], [None, None], [0, 15])
    assert not is_quiet(row)


def test_a_model_that_was_loaded_anew_begins_again(by_token: StreamCounters) -> None:
    later = deepcopy(by_token)
    later["first"]["counts"], later["tokens"] = {bucket_of(30_000_000): 1}, [0, 1]
    later["between"]["counts"] = {7: 1}
    row = stream_row(later, by_token, 1.0)
    assert row is not None
    assert (row["first"], row["between"], row["tokens"]) == ([None, None], [None, None], [0, 0])
    other = {**later, "by_token": False, "tokens": []}
    assert stream_row(other, by_token, 1.0)["first"] == [None, None]  # type: ignore[arg-type, index]


def test_workers_add_up(by_token: StreamCounters) -> None:
    none: Durations = {"counts": {}, "longest": 0}
    unused: StreamCounters = {
        "by_token": False,
        "first": none,
        "between": none,
        "tokens": [],
        "sequences": [],
        "kv_cache": [],
    }
    workers = [None, unused, by_token, {**by_token, "kv_cache": [0.75]}]
    total = document(merge([WorkerPage(tables({"stream": each})) for each in workers])[0])["stream"]
    assert total["by_token"] is True
    assert [*total["first"]["counts"].values()] == [4]
    assert (total["tokens"], total["sequences"], total["kv_cache"]) == ([14, 80], [4, 2], [0.25, 0.75])

"""Figures of models with several responses per request: by token for language models, by response for others."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict

from modserve.core.statistics.histogram import Histogram
from modserve.core.statistics.metrics import MetricStore
from modserve.core.statistics.model_statistics import ModelStatistics

from .figures import Durations, durations, quantiles, rate, recent

_FIRST, _BETWEEN = "modserve_time_to_first_token_seconds", "modserve_inter_token_latency_seconds"
_TOKENS: Final = ("modserve_prompt_tokens_total", "modserve_generation_tokens_total")
_SEQUENCES: Final = ("modserve_num_requests_running", "modserve_num_requests_waiting")
_CACHE: Final = "modserve_kv_cache_usage_perc"
_FAMILIES: Final = frozenset({_FIRST, _BETWEEN, *_TOKENS, *_SEQUENCES, _CACHE})
"""Metric families of language models, of any engine."""

EngineFigures: TypeAlias = Mapping[str, Sequence[float | Histogram]]
"""The series of a model version by family."""


class StreamCounters(TypedDict):
    """Counters of a language model or another decoupled model. Lists for language models are empty for the latter."""

    by_token: bool
    first: Durations
    """Time from the request to its first token or response."""
    between: Durations
    """Time from one token or response to the next."""
    tokens: list[int]
    """Tokens read and generated."""
    sequences: list[int]
    """Sequences running and queued in the engine."""
    kv_cache: list[float]
    """KV-cache use of each instance; 1 is full."""


def engine_figures(store: MetricStore) -> dict[tuple[str, str], dict[str, list[float | Histogram]]]:
    """Return the engines' figures of language models, by model name and version."""
    figures: dict[tuple[str, str], dict[str, list[float | Histogram]]] = {}
    for family in store.read(_FAMILIES):
        for labels, value in family.rows:
            key = labels.get("model", ""), labels.get("version", "")
            figures.setdefault(key, {}).setdefault(family.name, []).append(value)
    return figures


def stream_counters(
    statistics: ModelStatistics, decoupled: bool, engine: EngineFigures | None
) -> StreamCounters | None:
    """Return the counters; None for a model without token figures and with one response per request."""
    if engine is not None and _FIRST in engine:
        return {
            "by_token": True,
            "first": _durations(engine, _FIRST),
            "between": _durations(engine, _BETWEEN),
            "tokens": [_sum(engine, name) for name in _TOKENS],
            "sequences": [_sum(engine, name) for name in _SEQUENCES],
            "kv_cache": [value for value in engine.get(_CACHE, ()) if isinstance(value, float)],
        }
    if not decoupled:
        return None
    return {
        "by_token": False,
        "first": durations([statistics.first_response_histogram.sketch]),
        "between": durations([statistics.response_intervals.sketch]),
        "tokens": [],
        "sequences": [],
        "kv_cache": [],
    }


def stream_row(stream: StreamCounters | None, before: StreamCounters | None, seconds: float) -> dict[str, Any] | None:
    """Return the displayed figures: p50 and p99 of recent times in ms, tokens per second, engine utilisation."""
    if stream is None:
        return None
    row: dict[str, Any] = {
        "by_token": stream["by_token"],
        "first": [None, None],
        "between": [None, None],
        "tokens": [0.0, 0.0],
        "total": stream["tokens"],
        "sequences": stream["sequences"],
        "cache": max(stream["kv_cache"], default=None),
    }
    if before is None or not seconds or before["by_token"] != stream["by_token"]:
        return row
    row["first"] = quantiles(recent(stream["first"], before["first"]))
    row["between"] = quantiles(recent(stream["between"], before["between"]))
    if stream["tokens"]:
        row["tokens"] = [
            rate(now - then, seconds) for now, then in zip(stream["tokens"], before["tokens"], strict=True)
        ]
    return row


def is_quiet(row: Mapping[str, Any] | None) -> bool:
    """True if no value of `stream_row` changes without new requests."""
    return row is None or not (any(row["tokens"]) or row["first"][0] or row["between"][0])


def _durations(engine: EngineFigures, name: str) -> Durations:
    return durations(value.sketch for value in engine.get(name, ()) if isinstance(value, Histogram))


def _sum(engine: EngineFigures, name: str) -> int:
    return int(sum(value for value in engine.get(name, ()) if isinstance(value, float)))

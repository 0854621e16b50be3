"""Metrics from vLLM's statistics: running and waiting requests, and metrics of Triton's vLLM backend.

A model's configuration requests the latter, which have the names of Triton's ``src/utils/metrics.py``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..figures import Figures

_FIRST_TOKEN_BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_TOKEN_BUCKETS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_REQUEST_BUCKETS = [1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
_COUNTERS = {
    "vllm:prompt_tokens_total": ("Number of prefill tokens processed.", "num_prompt_tokens"),
    "vllm:generation_tokens_total": ("Number of generation tokens processed.", "num_generation_tokens"),
}
"""Help text and field of vLLM's IterationStats, by the name of the counter."""
_HISTOGRAMS: Mapping[str, tuple[str, list[float] | None, Callable[[Any], Iterable[float]]]] = {
    "vllm:time_to_first_token_seconds": (
        "Histogram of time to first token in seconds.",
        _FIRST_TOKEN_BUCKETS,
        lambda stats: stats.time_to_first_tokens_iter,
    ),
    "vllm:time_per_output_token_seconds": (
        "Histogram of time per output token in seconds.",
        _TOKEN_BUCKETS,
        lambda stats: stats.inter_token_latencies_iter,
    ),
    "vllm:e2e_request_latency_seconds": (
        "Histogram of end to end request latency in seconds.",
        _REQUEST_BUCKETS,
        lambda stats: [each.e2e_latency for each in stats.finished_requests],
    ),
    "vllm:request_prompt_tokens": (
        "Number of prefill tokens processed.",
        None,
        lambda stats: [each.num_prompt_tokens for each in stats.finished_requests],
    ),
    "vllm:request_generation_tokens": (
        "Number of generation tokens processed.",
        None,
        lambda stats: [each.num_generation_tokens for each in stats.finished_requests],
    ),
    "vllm:request_params_n": (
        "Histogram of the n request parameter.",
        [1, 2, 5, 10, 20],
        lambda stats: stats.n_params_iter,
    ),
}
"""Help text, buckets and the values of a step, by the name of the histogram. None: `token_buckets` of the context."""


class EngineStatistics:
    """Gauges of the latest step, over all of vLLM's engines. A data-parallel model has several engines."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._steps: dict[int, Any] = {}

    def record(self, engine: int, scheduler: Any) -> None:
        if scheduler is None:
            return
        self._steps[engine] = scheduler
        steps = self._steps.values()
        self._figures.set("num_requests_running", sum(each.num_running_reqs for each in steps))
        self._figures.set("num_requests_waiting", sum(each.num_waiting_reqs for each in steps))
        self._figures.set("kv_cache_usage_perc", max(each.kv_cache_usage for each in steps))


class TritonsMetrics:
    """Metric families of Triton's vLLM backend. `context`: the model's context length in tokens."""

    def __init__(self, api: Any, labels: Mapping[str, str], context: int) -> None:
        kinds = api.MetricFamily
        self._counters = [
            (api.MetricFamily(name, text, kinds.COUNTER).Metric(dict(labels)), field)
            for name, (text, field) in _COUNTERS.items()
        ]
        self._histograms = [
            (
                api.MetricFamily(name, text, kinds.HISTOGRAM).Metric(dict(labels), buckets or token_buckets(context)),
                values,
            )
            for name, (text, buckets, values) in _HISTOGRAMS.items()
        ]

    def record(self, stats: Any) -> None:
        for counter, field in self._counters:
            if count := getattr(stats, field):
                counter.increment(count)
        for histogram, values in self._histograms:
            for value in values(stats):
                histogram.observe(value)


def token_buckets(most: int) -> list[float]:
    """Return the histogram buckets 1, 2, 5, 10, 20, 50, … up to `most`."""
    limits: list[float] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > most:
                return limits
            limits.append(float(factor * power))
        power *= 10


def logger_kind(base: Any, statistics: EngineStatistics, triton: Callable[[int], TritonsMetrics] | None) -> Any:
    """Return a class for vLLM's statistics loggers, derived from `base`. vLLM's engines create the objects."""

    class StatLogger(base):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._engine = engine_index
            self._triton = None if triton is None else triton(vllm_config.model_config.max_model_len)

        def record(self, scheduler_stats: Any, iteration_stats: Any, *others: Any, **more: Any) -> None:
            statistics.record(self._engine, scheduler_stats)
            if self._triton is not None and iteration_stats is not None:
                self._triton.record(iteration_stats)

        def log_engine_initialized(self) -> None:
            """Do nothing. vLLM requires this method."""

    return StatLogger

"""The metrics of a language model, under the names that vLLM's have after its prefix."""

import time
from bisect import bisect_left
from collections import Counter
from typing import Any

_PREFIX = "modserve_"
_SECONDS = [
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
]
_BETWEEN = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0]
_COUNTERS = {
    "prompt_tokens_total": "Tokens of prompts",
    "generation_tokens_total": "Tokens generated",
}
_GAUGES = {
    "num_requests_running": "Outputs that the engine generates",
    "num_requests_waiting": "Outputs that the engine has taken and that wait for room in its batch or its KV cache",
    "kv_cache_usage_perc": "Use of the KV cache; 1 is full",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From the engine's receipt of a request to its first token", _SECONDS),
    "inter_token_latency_seconds": ("From one token of an output to the next", _BETWEEN),
    "e2e_request_latency_seconds": ("From the engine's receipt of a request to its last token", _SECONDS),
}
_FINISHED = "request_success_total"

_REPORT_SECONDS = 0.25

clock = time.perf_counter


class Figures:
    """Metrics of an instance, called `instance`. `api` is triton_python_backend_utils; `labels` are the model's.

    All but gauges is kept until `report`: a token's figures on their own would cost the server as much as its text.
    """

    def __init__(self, api: Any, labels: dict[str, str], instance: str) -> None:
        self.labels = labels
        kinds = api.MetricFamily
        self._counters = {
            name: api.MetricFamily(_PREFIX + name, text, kinds.COUNTER).Metric(labels)
            for name, text in _COUNTERS.items()
        }
        of_instance = {**labels, "instance": instance}
        self._gauges = {
            name: api.MetricFamily(_PREFIX + name, text, kinds.GAUGE).Metric(of_instance)
            for name, text in _GAUGES.items()
        }
        self._histograms = {
            name: api.MetricFamily(_PREFIX + name, text, kinds.HISTOGRAM).Metric(labels, buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._finished = api.MetricFamily(
            _PREFIX + _FINISHED, "Outputs that were generated to their end, by the reason of it", kinds.COUNTER
        )
        self._reasons: dict[str, Any] = {}
        self._values: dict[str, float] = {}
        self._reported_at = 0.0
        self._counts: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._seconds: dict[tuple[str, int], tuple[int, float]] = {}
        """Observations and their sum, by the name of a histogram and the index of a bucket."""

    def count(self, name: str, number: int) -> None:
        self._counts[name] += number

    def observe(self, name: str, seconds: float) -> None:
        bucket = name, bisect_left(_HISTOGRAMS[name][1], seconds)
        times, total = self._seconds.get(bucket, (0, 0.0))
        self._seconds[bucket] = times + 1, total + seconds

    def first_token(self, seconds: float) -> None:
        self.observe("time_to_first_token_seconds", seconds)

    def next_tokens(self, seconds: float) -> None:
        """Count new tokens of an output, `seconds` after the ones before."""
        self.observe("inter_token_latency_seconds", seconds)

    def count_end(self, reason: str) -> None:
        self._ends[reason] += 1

    def set(self, name: str, value: float) -> None:
        if self._values.get(name) != value:
            self._values[name] = value
            self._gauges[name].set(value)

    def is_due(self, at: float) -> bool:
        """Return True if the last report is old."""
        return at - self._reported_at >= _REPORT_SECONDS

    def report(self, at: float) -> None:
        """Report the figures to the server. For a bucket it gets number and mean, which leave the histogram as it
        would be."""
        self._reported_at = at
        for name, number in self._counts.items():
            if number:
                self._counters[name].increment(number)
        for (name, _), (times, total) in self._seconds.items():
            self._histograms[name].observe(total / times, times)
        for reason, number in self._ends.items():
            metric = self._reasons.get(reason)
            if metric is None:
                metric = self._reasons[reason] = self._finished.Metric({**self.labels, "finished_reason": reason})
            metric.increment(number)
        self._counts.clear()
        self._seconds.clear()
        self._ends.clear()

"""The metrics of a language model, under the names that vLLM's have after its prefix."""

import bisect
import time
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
    """`api` is the module triton_python_backend_utils; `labels` are of the model, `instance` is its instance's name.

    What each token changes is kept until `report`: on its own it would cost the server as much as the token's text.
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
        self._tokens = 0
        self._between: dict[int, tuple[int, float]] = {}
        """By the place of a bucket: how many tokens, and the sum of the seconds before them."""

    def count(self, name: str, number: int) -> None:
        if number:
            self._counters[name].increment(number)

    def observe(self, name: str, seconds: float) -> None:
        self._histograms[name].observe(seconds)

    def first_token(self, seconds: float) -> None:
        self.observe("time_to_first_token_seconds", seconds)

    def next_tokens(self, seconds: float) -> None:
        """Kept until `report`: tokens of an output have come, so long after the ones before."""
        place = bisect.bisect_left(_BETWEEN, seconds)
        times, total = self._between.get(place, (0, 0.0))
        self._between[place] = times + 1, total + seconds

    def tokens(self, number: int) -> None:
        """Kept until `report`: so many tokens have come."""
        self._tokens += number

    def is_due(self, at: float) -> bool:
        """Whether the last report is old."""
        return at - self._reported_at >= _REPORT_SECONDS

    def report(self, at: float) -> None:
        """Tell the server what was kept: of the tokens in a bucket their number and their mean, which leaves the
        histogram's sum as it is."""
        self._reported_at = at
        self.count("generation_tokens_total", self._tokens)
        histogram = self._histograms["inter_token_latency_seconds"]
        for times, total in self._between.values():
            histogram.observe(total / times, times)
        self._tokens = 0
        self._between.clear()

    def finished(self, reason: str) -> None:
        metric = self._reasons.get(reason)
        if metric is None:
            metric = self._reasons[reason] = self._finished.Metric({**self.labels, "finished_reason": reason})
        metric.increment(1)

    def set(self, name: str, value: float) -> None:
        if self._values.get(name) != value:
            self._values[name] = value
            self._gauges[name].set(value)

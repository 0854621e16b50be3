"""Cumulative counts of one model version, the only source of the statistics calls and the metrics page.

Used on the event loop's thread only. Triton's statistics extension defines when each counter changes.
"""

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from ..errors import Code, ModserveError
from ..requests.inflight import Inflight
from ..requests.timing import ExecutionTiming
from .adaptive_statistics import ChoiceStatistics
from .histogram import Histogram
from .summary import LatencySummaries

_MILLISECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
LATENCY_BUCKETS_NS = tuple(int(bound * 1e6) for bound in _MILLISECONDS)
RECENT_BATCHES = 256
MOST_INDEXES = 1024
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FIRST_RESPONSE_BUCKETS_NS = (100_000_000, 500_000_000, 2_000_000_000, 5_000_000_000)
"""Triton's bounds."""
RESPONSE_INTERVAL_BUCKETS_NS = tuple(
    int(bound * 1e6) for bound in (0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 5_000)
)
"""Bounds for responses that are tokens: vLLM's bounds within this range."""
RESPONSE_INTERVAL: Final = "modserve_inter_response_latency_seconds"
FIRST_RESPONSE: Final = "nv_inference_first_response_histogram_ms"
HISTOGRAM_FAMILIES: Final = (
    "modserve_request_duration_seconds",
    "modserve_queue_duration_seconds",
    "modserve_compute_duration_seconds",
    "modserve_batch_size",
    FIRST_RESPONSE,
    RESPONSE_INTERVAL,
)
"""Names of a model's histograms on the metrics page."""


class FailureReason(Enum):
    """Label of ``nv_inference_request_failure``."""

    REJECTED = "REJECTED"
    """The scheduler refused the request, or the request waited too long."""
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True, eq=False)
class Duration:
    """Number of events and their total duration."""

    count: int = 0
    ns: int = 0


@dataclass(slots=True, eq=False)
class BatchStatistics:
    """Durations of the parts of executions, counted per batch size or per request."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, timing: ExecutionTiming, times: int = 1) -> None:
        """Count an execution `times` times."""
        input_end_ns, output_start_ns = timing.compute_input_end_ns, timing.compute_output_start_ns
        self.count += times
        self.input_ns += times * (input_end_ns - timing.compute_start_ns)
        self.infer_ns += times * (output_start_ns - input_end_ns)
        self.output_ns += times * (timing.compute_end_ns - output_start_ns)

    @property
    def compute_input(self) -> Duration:
        return Duration(self.count, self.input_ns)

    @property
    def compute_infer(self) -> Duration:
        return Duration(self.count, self.infer_ns)

    @property
    def compute_output(self) -> Duration:
        return Duration(self.count, self.output_ns)


@dataclass(slots=True, eq=False)
class ResponseStatistics:
    """Durations of the responses with one index, over all requests of a decoupled model.

    A response's time begins with the previous response (or with the execution) and ends with its delivery.
    `empty_response` counts requests that ended with an empty response, `cancel` responses of cancelled requests.
    """

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


class BatchRecord(NamedTuple):
    """A successful execution, for display."""

    end_ms: int
    """Unix time."""
    batch_size: int
    requests: int
    close_reason: str
    waited_ns: int
    """Waiting time of the first request."""
    compute_ns: int
    elements: int = 0
    """Elements of the requests (rows times lengths), for models with padded batches."""
    padding: int = 0
    """Padding elements of the batch."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ModelStatistics:
    """Counters of one model version since its load."""

    def __init__(self) -> None:
        self.began_ns = time.monotonic_ns()
        """Start time. It distinguishes the counts of different loads."""
        self.load_ns = 0
        """Load time of the version."""
        self.memory = -1
        """Memory of the version in bytes, as measured at its load; -1 if not measured."""
        self.last_inference_ms = 0
        """Unix time of the last execution's end; 0 before the first."""
        self.inference_count = 0
        self.execution_count = 0
        self.pending = 0
        """Number of requests waiting in the scheduler."""
        self.instances = 0
        """Number of instances, including lost ones; 0 for models without their own engine."""
        self.instances_lost = 0
        """Number of lost instances not replaced yet."""
        self.instance_restarts = 0
        self.calls = 0
        """Number of unfinished calls of its engine to other models, including loads."""
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self._computed = BatchStatistics()
        """Compute times, counted once per successful request."""
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.failures = dict.fromkeys(FailureReason, 0)
        self.batches: dict[int, BatchStatistics] = defaultdict(BatchStatistics)
        self.close_reasons: dict[str, int] = {}
        """Number of batches that stopped growing, by reason."""
        self.elements = 0
        """Elements of requests in all batches, for models with padded batches."""
        self.padding = 0
        """Padding elements in all batches."""
        self._recent: deque[tuple[int, int, int, ExecutionTiming]] = deque(maxlen=RECENT_BATCHES)
        """Latest executions: end in Unix milliseconds, requests, waiting time of the first one, and timing."""
        self.choice: ChoiceStatistics | None = None
        """Choice statistics, for models that choose batches by measured run times."""
        self.responses: dict[int, ResponseStatistics] = defaultdict(ResponseStatistics)
        """Statistics by the response's index in its request, for decoupled models."""
        self.request_bounds: tuple[float, ...] = LATENCY_BUCKETS_NS
        self.request_histogram = Histogram(sorted({*LATENCY_BUCKETS_NS, *FIRST_RESPONSE_BUCKETS_NS}), 1.0)
        """Histogram with the bounds of two families, `request_durations` and `first_responses`, like the next one."""
        self.queue_histogram = Histogram(LATENCY_BUCKETS_NS)
        self.compute_histogram = Histogram(LATENCY_BUCKETS_NS)
        self.batch_size_histogram = Histogram(BATCH_SIZE_BUCKETS)
        self.first_response_bounds: tuple[float, ...] = FIRST_RESPONSE_BUCKETS_NS
        self.first_response_histogram = Histogram(self.request_histogram.bounds, 1.0)
        """Times from a request's arrival to its first response, for decoupled models."""
        self.response_intervals = Histogram(RESPONSE_INTERVAL_BUCKETS_NS, 1.0)
        """Times between consecutive responses of a request, for decoupled models."""
        self.summaries: LatencySummaries | None = None
        """None unless the metrics page has summaries."""

    def keep_summaries(self) -> None:
        """Begin to count for summaries. May be called again."""
        if self.summaries is None:
            self.summaries = LatencySummaries()

    def set_memory(self, size: int) -> None:
        self.memory = size

    def set_buckets(self, bounds: Mapping[str, Sequence[float]]) -> None:
        """Replace the default buckets of some histograms, by the names in `HISTOGRAM_FAMILIES`.

        Must be called before anything is counted. A histogram that already has these buckets keeps its counts.
        """
        for family, upper in bounds.items():
            if family == "modserve_batch_size":
                self.batch_size_histogram = _fit_bounds(self.batch_size_histogram, upper)
                continue
            if family == FIRST_RESPONSE:
                self.first_response_bounds = tuple([bound * 1e6 for bound in upper])
                continue
            upper_ns = [bound * 1e9 for bound in upper]
            if family == "modserve_request_duration_seconds":
                self.request_bounds = tuple(upper_ns)
            elif family == "modserve_queue_duration_seconds":
                self.queue_histogram = _fit_bounds(self.queue_histogram, upper_ns)
            elif family == "modserve_compute_duration_seconds":
                self.compute_histogram = _fit_bounds(self.compute_histogram, upper_ns)
            elif family == RESPONSE_INTERVAL:
                self.response_intervals = _fit_bounds(self.response_intervals, upper_ns)
        both = sorted({*self.request_bounds, *self.first_response_bounds})
        self.request_histogram = _fit_bounds(self.request_histogram, both)
        self.first_response_histogram = _fit_bounds(self.first_response_histogram, both)

    def request_durations(self) -> Histogram:
        """Return the times from a request's arrival to its last response, in nanoseconds."""
        return self.request_histogram.at(self.request_bounds)

    def first_responses(self, decoupled: bool) -> Histogram:
        """Return the times from a request's arrival to its first response (its only one if not `decoupled`), in ns."""
        histogram = self.first_response_histogram if decoupled else self.request_histogram
        return histogram.at(self.first_response_bounds)

    @property
    def compute_input(self) -> Duration:
        return self._computed.compute_input

    @property
    def compute_infer(self) -> Duration:
        return self._computed.compute_infer

    @property
    def compute_output(self) -> Duration:
        return self._computed.compute_output

    @property
    def recent(self) -> list[BatchRecord]:
        """Latest executions in order."""
        return [
            BatchRecord(
                end_ms,
                timing.batch_size,
                requests,
                timing.close_reason,
                waited_ns,
                timing.compute_end_ns - timing.compute_start_ns,
                timing.elements,
                timing.padding,
            )
            for end_ms, requests, waited_ns, timing in self._recent
        ]

    def record_failure(self, inflight: Inflight, reason: FailureReason, now_ns: int) -> None:
        """Count an accepted request that failed."""
        self.fail.count += 1
        self.fail.ns += now_ns - inflight.request_start_ns
        self.failures[reason] += 1

    def record_execution(self, timing: ExecutionTiming, members: Sequence[Inflight], now_unix_ms: int) -> None:
        """Count a successful execution."""
        self.execution_count += 1
        reason = timing.close_reason
        self.close_reasons[reason] = self.close_reasons.get(reason, 0) + 1
        self.elements += timing.elements
        self.padding += timing.padding
        queued_ns = members[0].queue_start_ns
        for inflight in members:
            if inflight.queue_start_ns < queued_ns:
                queued_ns = inflight.queue_start_ns
        self._recent.append((now_unix_ms, len(members), timing.compute_start_ns - queued_ns, timing))
        self.last_inference_ms = now_unix_ms
        batch_size = timing.batch_size
        self.batches[batch_size].add(timing)
        self.batch_size_histogram.observe(batch_size)

    def record_response(self, index: int, kind: str, start_ns: int, output_start_ns: int, end_ns: int) -> None:
        """Count one response of a decoupled model; `kind` is a field of `ResponseStatistics`, such as success.

        Responses from the `MOST_INDEXES`-th of a request on share one index, to limit the size of the statistics.
        """
        response = self.responses[index if index < MOST_INDEXES else MOST_INDEXES - 1]
        ns = end_ns - start_ns
        if kind == "success":  # one for each token of a text
            outcome = response.success
            if index:
                self.response_intervals.observe(ns)
        else:
            outcome = getattr(response, kind)
        outcome.count += 1
        outcome.ns += ns
        if kind == "empty_response":
            _add(response.compute_infer, ns)
        elif kind != "cancel":
            infer, output = response.compute_infer, response.compute_output
            infer.count += 1
            infer.ns += output_start_ns - start_ns
            output.count += 1
            output.ns += end_ns - output_start_ns

    def record_cache_hit(self, inflight: Inflight, looked_ns: int, now_ns: int) -> None:
        """Count a request with a cached response; the lookup took `looked_ns`."""
        request_ns = now_ns - inflight.request_start_ns
        _add(self.success, request_ns)
        _add(self.queue, 0)
        _add(self.cache_hit, looked_ns)
        self.request_histogram.observe(request_ns)
        if inflight.trace is not None and (id := inflight.trace.trace_id):
            self.request_histogram.exemplify(request_ns, id, time.time())
        if self.summaries is not None:
            self.summaries.request.observe(request_ns, now_ns)
            self.summaries.queue.observe(0, now_ns)
            self.summaries.cache_hit.observe(looked_ns, now_ns)

    def record_cache_miss(self, ns: int) -> None:
        """Count a request that missed the cache; the lookup and the storage of its response took `ns`."""
        _add(self.cache_miss, ns)
        if self.summaries is not None:
            self.summaries.cache_miss.observe(ns, time.monotonic_ns())

    def record_first_response(self, inflight: Inflight, now_ns: int, trace_id: str = "") -> None:
        """Count the first response to a request of a decoupled model; `trace_id` is empty for untraced requests."""
        first_ns = now_ns - inflight.request_start_ns
        self.first_response_histogram.observe(first_ns)
        if trace_id:
            self.first_response_histogram.exemplify(first_ns, trace_id, time.time())

    def record_successes(
        self, members: Sequence[Inflight], timing: ExecutionTiming, now_ns: int, trace_id: str = ""
    ) -> None:
        """Count the requests of one execution, each with the whole batch's compute time, as in Triton.

        `trace_id` belongs to a request with an already released trace.
        """
        count = len(members)
        if not count:
            return
        start_ns = timing.compute_start_ns
        total_ns = queue_ns = inferences = 0
        request_histogram, queue_histogram = self.request_histogram, self.queue_histogram
        for inflight in members:
            request_ns = now_ns - inflight.request_start_ns
            waited_ns = start_ns - inflight.queue_start_ns
            total_ns += request_ns
            queue_ns += waited_ns
            inferences += inflight.batch_size or 1
            request_histogram.observe(request_ns)
            queue_histogram.observe(waited_ns)
            trace = inflight.trace
            # A request that is traced only for the log has an empty trace id.
            if (trace is not None or trace_id) and (id := trace_id if trace is None else trace.trace_id):
                request_histogram.exemplify(request_ns, id, time.time())
        self.inference_count += inferences
        success, queue = self.success, self.queue
        success.count += count
        success.ns += total_ns
        queue.count += count
        queue.ns += queue_ns
        self._computed.add(timing, count)
        self.compute_histogram.observe(timing.compute_end_ns - start_ns, count)
        if self.summaries is not None:
            self._summarise(self.summaries, members, timing, now_ns)

    def _summarise(
        self, summaries: LatencySummaries, members: Sequence[Inflight], timing: ExecutionTiming, now_ns: int
    ) -> None:
        start_ns, input_end_ns, output_start_ns = (
            timing.compute_start_ns,
            timing.compute_input_end_ns,
            timing.compute_output_start_ns,
        )
        count = len(members)
        for inflight in members:
            summaries.request.observe(now_ns - inflight.request_start_ns, now_ns)
            summaries.queue.observe(start_ns - inflight.queue_start_ns, now_ns)
        summaries.compute_input.observe(input_end_ns - start_ns, now_ns, count)
        summaries.compute_infer.observe(output_start_ns - input_end_ns, now_ns, count)
        summaries.compute_output.observe(timing.compute_end_ns - output_start_ns, now_ns, count)


def _fit_bounds(histogram: Histogram, bounds: Sequence[float]) -> Histogram:
    return histogram if histogram.bounds == tuple(bounds) else Histogram(bounds, histogram.unit_ns)


def _add(duration: Duration, ns: int) -> None:
    duration.count += 1
    duration.ns += ns


def failure_reason(error: ModserveError, by_backend: bool) -> FailureReason:
    """Return the label of a failure; `by_backend`: it occurred during or after the execution."""
    if error.code is Code.CANCELLED:
        return FailureReason.CANCELED
    if by_backend:
        return FailureReason.BACKEND
    return FailureReason.REJECTED if error.code is Code.UNAVAILABLE else FailureReason.OTHER

"""When each counter of a model version moves, and by how much (Triton's statistics extension)."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight, RequestTrace
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.histogram import Histogram
from modserve.core.statistics.model_statistics import (
    BATCH_SIZE_BUCKETS,
    FIRST_RESPONSE_BUCKETS_NS,
    LATENCY_BUCKETS_NS,
    MOST_INDEXES,
    RESPONSE_INTERVAL_BUCKETS_NS,
    Duration,
    FailureReason,
    ModelStatistics,
    failure_reason,
)
from modserve.testing import inflight

MS = 1_000_000
DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def timing(
    start: int, input_end: int, output_start: int, end: int, batch_size: int = 1, reason: str = ""
) -> ExecutionTiming:
    stamps = ExecutionTiming(batch_size, reason)
    stamps.compute_start_ns = start
    stamps.compute_input_end_ns = input_end
    stamps.compute_output_start_ns = output_start
    stamps.compute_end_ns = end
    return stamps


def member(batch_size: int, started: int, queued: int) -> Inflight:
    entry = inflight(batch_size)
    entry.request_start_ns = started
    entry.queue_start_ns = queued
    return entry


def counted(duration: Duration) -> tuple[int, int]:
    return duration.count, duration.ns


def moved(statistics: ModelStatistics) -> dict[str, tuple[int, int]]:
    """The durations that are not 0."""
    found = {name: counted(getattr(statistics, name)) for name in DURATIONS}
    return {name: value for name, value in found.items() if value != (0, 0)}


def test_all_begin_at_zero() -> None:
    statistics = ModelStatistics()
    assert moved(statistics) == {}
    assert statistics.failures == dict.fromkeys(FailureReason, 0)
    assert (statistics.inference_count, statistics.execution_count, statistics.last_inference_ms) == (0, 0, 0)
    assert (statistics.pending, statistics.batches) == (0, {})


def test_successes() -> None:
    statistics = ModelStatistics()
    # Two requests of 1 and 3 items in one execution that takes 2 + 20 + 3 ns.
    batch = [member(1, started=100, queued=110), member(3, started=105, queued=107)]
    statistics.record_successes(batch, timing(200, 202, 222, 225), now_ns=230)
    assert statistics.inference_count == 4
    assert moved(statistics) == {
        "success": (2, 130 + 125),
        "queue": (2, 90 + 93),
        "compute_input": (2, 2 * 2),  # each counts the whole batch's time
        "compute_infer": (2, 2 * 20),
        "compute_output": (2, 2 * 3),
    }
    assert statistics.execution_count == 0


def test_a_request_without_a_batch_dimension_is_one_inference() -> None:
    statistics = ModelStatistics()
    statistics.record_successes([member(0, 0, 0)], timing(1, 2, 3, 4), now_ns=5)
    assert statistics.inference_count == 1


def test_no_successes_move_nothing() -> None:
    statistics = ModelStatistics()
    statistics.record_successes([], timing(1, 2, 3, 4), now_ns=5)
    assert moved(statistics) == {}
    assert sum(statistics.compute_histogram.buckets) == 0


def trace(trace_id: str) -> RequestTrace:
    """Of a request with this trace id; empty for one that only the log follows."""
    return cast(RequestTrace, SimpleNamespace(trace_id=trace_id))


def exemplars(histogram: Histogram) -> list[tuple[str, float]]:
    return [(each.trace_id, each.value) for each in (histogram.exemplars or {}).values()]


def test_exemplars() -> None:
    statistics = ModelStatistics()
    plain, logged, traced = (member(1, started=started, queued=1) for started in (1, 2, 3))
    logged.trace, traced.trace = trace(""), trace("4bf9")
    statistics.record_successes([plain, logged], timing(4, 5, 6, 7), now_ns=8)
    assert statistics.request_histogram.exemplars is None
    statistics.record_successes([traced], timing(4, 5, 6, 7), now_ns=9)
    assert exemplars(statistics.request_histogram) == [("4bf9", 6)]
    statistics.record_successes([plain], timing(4, 5, 6, 7), now_ns=11, trace_id="0af7")
    assert exemplars(statistics.request_histogram) == [("0af7", 10)]
    statistics.record_cache_hit(traced, 1, now_ns=5)
    assert exemplars(statistics.request_histogram) == [("4bf9", 2)]
    statistics.record_first_response(plain, now_ns=2)
    assert statistics.first_response_histogram.exemplars is None
    statistics.record_first_response(plain, now_ns=3, trace_id="0af7")
    assert exemplars(statistics.first_response_histogram) == [("0af7", 2)]


def test_exemplars_of_a_coarser_histogram() -> None:
    histogram = Histogram((1, 2, 3, 4))
    for value, name, when in ((2, "a", 1.0), (3, "b", 3.0), (4, "c", 2.0), (9, "d", 4.0)):
        histogram.observe(value)
        histogram.exemplify(value, name, when)
    coarse = histogram.at((1, 4))
    assert (coarse.buckets, coarse.total) == ([0, 3, 1], 18)
    assert exemplars(coarse) == [("b", 3), ("d", 9)]


def test_executions() -> None:
    statistics = ModelStatistics()
    pair, single = [member(3, 0, 0), member(1, 0, 0)], [member(1, 0, 30)]
    statistics.record_execution(timing(0, 1, 11, 13, 4, "full"), pair, now_unix_ms=1000)
    statistics.record_execution(timing(0, 2, 22, 25, 4, "full"), pair, now_unix_ms=2000)
    statistics.record_execution(timing(70, 71, 72, 73, 1, "delay"), single, now_unix_ms=3000)
    assert statistics.close_reasons == {"full": 2, "delay": 1}
    assert list(statistics.recent)[1:] == [(2000, 4, 2, "full", 0, 25, 0, 0), (3000, 1, 1, "delay", 40, 3, 0, 0)]
    assert (statistics.execution_count, statistics.last_inference_ms) == (3, 3000)
    assert moved(statistics) == {}
    assert list(statistics.batches) == [4, 1]
    four = statistics.batches[4]
    assert [counted(part) for part in (four.compute_input, four.compute_infer, four.compute_output)] == [
        (2, 3),
        (2, 30),
        (2, 5),
    ]


@pytest.mark.parametrize("reason", FailureReason, ids=lambda reason: reason.name)
def test_failures(reason: FailureReason) -> None:
    statistics = ModelStatistics()
    statistics.record_failure(member(2, started=100, queued=0), reason, now_ns=150)
    statistics.record_failure(member(1, started=140, queued=0), reason, now_ns=150)
    assert moved(statistics) == {"fail": (2, 60)}
    assert statistics.failures == {**dict.fromkeys(FailureReason, 0), reason: 2}
    assert (statistics.inference_count, statistics.execution_count) == (0, 0)


def test_the_labels_of_failures_are_tritons() -> None:
    assert [reason.value for reason in FailureReason] == ["REJECTED", "CANCELED", "BACKEND", "OTHER"]


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
@pytest.mark.parametrize("by_backend", [False, True], ids=["in queue", "by backend"])
def test_failure_reason(code: Code, by_backend: bool) -> None:
    if code is Code.CANCELLED:
        expected = FailureReason.CANCELED
    elif by_backend:
        expected = FailureReason.BACKEND
    else:
        expected = FailureReason.REJECTED if code is Code.UNAVAILABLE else FailureReason.OTHER
    assert failure_reason(ModserveError(code, ""), by_backend) is expected


def test_histogram() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21, 1000):
        histogram.observe(value)
    histogram.observe(15, times=3)
    assert histogram.buckets == [2, 5, 2]
    assert histogram.total == 0 + 10 + 11 + 20 + 21 + 1000 + 3 * 15


@pytest.mark.parametrize("bounds", [LATENCY_BUCKETS_NS, BATCH_SIZE_BUCKETS], ids=["latency", "batch size"])
def test_bounds_ascend(bounds: Sequence[int]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert Histogram(bounds).buckets == [0] * (len(bounds) + 1)


def filled(histogram: Histogram) -> dict[float, int]:
    """The buckets that hold something, by upper bound."""
    bounds = [*histogram.bounds, float("inf")]
    return {bound: count for bound, count in zip(bounds, histogram.buckets, strict=True) if count}


def test_histograms_see_every_request_and_every_execution() -> None:
    statistics = ModelStatistics()
    stamps = timing(2 * MS, 2 * MS, 6 * MS, 6 * MS, 3)
    batch = [member(1, started=0, queued=0), member(2, started=0, queued=2 * MS)]
    statistics.record_execution(stamps, batch, 1)
    statistics.record_successes(batch, stamps, now_ns=7 * MS)
    assert filled(statistics.request_histogram) == {10 * MS: 2}
    assert filled(statistics.queue_histogram) == {0.1 * MS: 1, 2.5 * MS: 1}
    assert filled(statistics.compute_histogram) == {5 * MS: 2}
    assert filled(statistics.batch_size_histogram) == {4: 1}
    assert statistics.request_histogram.total == 14 * MS
    assert statistics.compute_histogram.total == 8 * MS


def test_responses_without_end_take_no_room_without_end() -> None:
    statistics = ModelStatistics()
    for index in range(2 * MOST_INDEXES):
        statistics.record_response(index, "success", 0, MS, 2 * MS)
    assert len(statistics.responses) == MOST_INDEXES
    assert counted(statistics.responses[MOST_INDEXES - 2].success) == (1, 2 * MS)
    assert counted(statistics.responses[MOST_INDEXES - 1].success) == (MOST_INDEXES + 1, 2 * MS * (MOST_INDEXES + 1))


def test_intervals_between_the_responses_of_a_request() -> None:
    statistics = ModelStatistics()
    for index, kind, start_ns, end_ns in (
        (0, "success", 10, 1_000_010),
        (1, "success", 1_000_010, 3_000_010),
        (2, "fail", 3_000_010, 9_000_010),
        (3, "empty_response", 9_000_010, 9_000_020),
    ):
        statistics.record_response(index, kind, start_ns, end_ns, end_ns)
    assert (sum(statistics.response_intervals.buckets), statistics.response_intervals.total) == (1, 2_000_000)


def test_times_of_a_response_are_those_of_its_computation_and_of_its_output() -> None:
    statistics = ModelStatistics()
    statistics.record_response(0, "success", 0, 3 * MS, 5 * MS)
    response = statistics.responses[0]
    assert [counted(each) for each in (response.success, response.compute_infer, response.compute_output)] == [
        (1, 5 * MS),
        (1, 3 * MS),
        (1, 2 * MS),
    ]


@pytest.mark.parametrize(
    "bounds", [LATENCY_BUCKETS_NS, BATCH_SIZE_BUCKETS, FIRST_RESPONSE_BUCKETS_NS, RESPONSE_INTERVAL_BUCKETS_NS]
)
def test_bounds_of_histograms_ascend(bounds: Sequence[int]) -> None:
    assert list(bounds) == sorted(set(bounds))

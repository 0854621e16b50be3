"""What an answer says of its cost."""

from modserve.core.timing import ExecutionTiming
from modserve.protocol import server_timing
from modserve.testing import inflight


def test_the_times_of_a_request() -> None:
    entry = inflight()
    entry.queue_start_ns = 1_000_000
    entry.timing = timing = ExecutionTiming(batch_size=8)
    timing.compute_start_ns = 3_500_000
    timing.compute_input_end_ns = 3_512_000
    timing.compute_output_start_ns = 20_000_000
    timing.compute_end_ns = 20_000_400
    assert server_timing.value(entry) == (
        'queue;dur=2.500, compute_input;dur=0.012, compute_infer;dur=16.488, compute_output;dur=0.000, batch;desc="8"'
    )


def test_a_request_that_has_not_run() -> None:
    entry = inflight()
    assert server_timing.value(entry) == ""
    entry.timing = ExecutionTiming(batch_size=1)
    assert server_timing.value(entry) == ""

"""What an answer says of its cost."""

import re

import pytest

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.timing import ExecutionTiming
from modserve.protocol.http import server_timing
from modserve.testing import inflight

COST = 'queue;dur=2.500, compute_input;dur=0.012, compute_infer;dur=16.488, compute_output;dur=0.000, batch;desc="8"'


def has_run() -> Inflight:
    entry = inflight()
    entry.queue_start_ns = 1_000_000
    entry.timing = timing = ExecutionTiming(batch_size=8)
    timing.compute_start_ns = 3_500_000
    timing.compute_input_end_ns = 3_512_000
    timing.compute_output_start_ns = 20_000_000
    timing.compute_end_ns = 20_000_400
    return entry


def test_the_times_of_a_request() -> None:
    assert server_timing.value(has_run()) == COST


@pytest.mark.parametrize("stamps", [0, 1, 2], ids=["just begun", "inputs made", "outputs begun"])
def test_a_request_whose_engine_has_not_done_with_the_others(stamps: int) -> None:
    entry = has_run()
    timing = entry.timing
    assert timing is not None
    for name in ("compute_end_ns", "compute_output_start_ns", "compute_input_end_ns")[: 3 - stamps]:
        setattr(timing, name, 0)
    parts = re.fullmatch(
        r"queue;dur=2\.500, \w+;dur=(.+), \w+;dur=(.+), \w+;dur=(.+), batch.*", server_timing.value(entry)
    )
    assert parts is not None
    durations = [float(part) for part in parts.groups()]
    assert min(durations) >= 0
    assert [duration > 1e3 for duration in durations] == [(stamps == 0), (stamps == 1), (stamps == 2)]


def test_a_response_that_tells_them() -> None:
    response = InferenceResponse("m", 1, {}, "q", {"other": 1})
    assert server_timing.with_cost(response, has_run()).parameters == {"other": 1, "server_timing": COST}
    assert server_timing.with_cost(response, inflight()) is response


def test_a_request_that_has_not_run() -> None:
    entry = inflight()
    assert server_timing.value(entry) == ""
    entry.timing = ExecutionTiming(batch_size=1)
    assert server_timing.value(entry) == ""

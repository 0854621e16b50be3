"""Cost of a response in the ``Server-Timing`` header (W3C Server Timing); in gRPC, metadata.

A stream has one header for all its responses, sent before the first; there, the cost is a parameter of the last
message.
"""

import time
from dataclasses import replace

from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse

HEADER = "server-timing"
PARAMETER = "server_timing"


def value(inflight: Inflight) -> str:
    """Return queue, compute input, infer and output times in milliseconds, and the batch size.

    Compute times cover the whole batch, up to now if an engine that answers requests one by one has not finished the
    others. Empty for a request that has not run.
    """
    timing = inflight.timing
    if timing is None or not timing.compute_start_ns:
        return ""
    # In this order: the engine's thread may be writing them, the last one last.
    end_ns = timing.compute_end_ns or time.monotonic_ns()
    output_start_ns = min(timing.compute_output_start_ns or end_ns, end_ns)
    input_end_ns = min(timing.compute_input_end_ns or output_start_ns, output_start_ns)
    spans = (
        ("queue", inflight.queue_start_ns, timing.compute_start_ns),
        ("compute_input", timing.compute_start_ns, input_end_ns),
        ("compute_infer", input_end_ns, output_start_ns),
        ("compute_output", output_start_ns, end_ns),
    )
    durations = [f"{name};dur={(end - start) / 1e6:.3f}" for name, start, end in spans]
    return ", ".join([*durations, f'batch;desc="{timing.batch_size}"'])


def with_cost(response: InferenceResponse, inflight: Inflight) -> InferenceResponse:
    """Return the last response of a request with its cost, if it has run."""
    cost = value(inflight)
    return replace(response, parameters={**response.parameters, PARAMETER: cost}) if cost else response

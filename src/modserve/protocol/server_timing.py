"""What an answer has cost, as the ``Server-Timing`` header says it (W3C Server Timing); in gRPC, metadata."""

from modserve.core.inflight import Inflight

HEADER = "server-timing"


def value(inflight: Inflight) -> str:
    """Queue, compute input, infer and output times in milliseconds, and the size of the batch it ran in.

    The compute times are those of the whole batch. Empty for a request that has not run.
    """
    timing = inflight.timing
    if timing is None or not timing.compute_end_ns:
        return ""
    spans = (
        ("queue", inflight.queue_start_ns, timing.compute_start_ns),
        ("compute_input", timing.compute_start_ns, timing.compute_input_end_ns),
        ("compute_infer", timing.compute_input_end_ns, timing.compute_output_start_ns),
        ("compute_output", timing.compute_output_start_ns, timing.compute_end_ns),
    )
    durations = [f"{name};dur={(end - start) / 1e6:.3f}" for name, start, end in spans]
    return ", ".join([*durations, f'batch;desc="{timing.batch_size}"'])

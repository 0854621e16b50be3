"""When things happened. Statistics, metrics, trace and access log read these stamps.

All stamps are nanoseconds of the monotonic clock.
"""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class ExecutionTiming:
    """The four stamps of one execution, shared by all requests of its batch (Triton's COMPUTE_* trace points)."""

    batch_size: int = 0
    """What ran: the sum of the requests' batch sizes, each counting 1 for models without a batch dimension, and of the
    rows that were added to keep those of sequences in their places."""
    close_reason: str = ""
    """Why the batch did not grow any more: a value of `scheduling.batching.Reason`."""
    compute_start_ns: int = 0
    compute_input_end_ns: int = 0
    compute_output_start_ns: int = 0
    compute_end_ns: int = 0
    elements: int = 0
    """The sum of the requests' rows times their lengths, in models whose batches are filled up."""
    padding: int = 0
    """The elements that filled the batch up."""

"""Time stamps of requests and executions, for statistics, metrics, trace and access log.

All stamps are nanoseconds of the monotonic clock.
"""

from typing import final


@final
class ExecutionTiming:
    """The four stamps of one execution, shared by all requests of its batch (Triton's COMPUTE_* trace points).

    `batch_size` is the executed size: the sum of the requests' batch sizes, with 1 per request for models without a
    batch dimension, plus filler rows that keep sequences in their slots. `close_reason`, a value of
    `scheduling.batching.Reason`, is the reason why the batch stopped growing. For models with padded batches,
    `elements` is the sum of the requests' rows times lengths, and `padding` the number of padding elements.
    """

    __slots__ = (
        "batch_size",
        "close_reason",
        "compute_end_ns",
        "compute_input_end_ns",
        "compute_output_start_ns",
        "compute_start_ns",
        "elements",
        "padding",
    )

    def __init__(
        self,
        batch_size: int = 0,
        close_reason: str = "",
        compute_start_ns: int = 0,
        compute_input_end_ns: int = 0,
        compute_output_start_ns: int = 0,
        compute_end_ns: int = 0,
        elements: int = 0,
        padding: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self.close_reason = close_reason
        self.compute_start_ns = compute_start_ns
        self.compute_input_end_ns = compute_input_end_ns
        self.compute_output_start_ns = compute_output_start_ns
        self.compute_end_ns = compute_end_ns
        self.elements = elements
        self.padding = padding

"""When things happened. Statistics, metrics, trace and access log are readers of these stamps.

All stamps are nanoseconds of the monotonic clock.
"""


class ExecutionTiming:
    """The four stamps of one execution, shared by all requests of its batch (Triton's COMPUTE_* trace points).

    `batch_size` is what ran: the sum of the requests' batch sizes, each counting 1 for models without a batch
    dimension, and of the rows that were filled to keep those of sequences in their places.
    `elements` counts the requests' rows times their lengths, and `padding` what was added to them, in models whose
    batches are filled up.
    `close_reason` tells why the batch did not grow any more: a value of `scheduling.batching.Reason`.
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

    def __init__(self, batch_size: int = 0, close_reason: str = "") -> None:
        self.batch_size = batch_size
        self.close_reason = close_reason
        self.compute_start_ns = 0
        self.compute_input_end_ns = 0
        self.compute_output_start_ns = 0
        self.compute_end_ns = 0
        self.elements = 0
        self.padding = 0

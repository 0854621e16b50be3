"""Configuration of batches of requests with different shapes, as frozen values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..tensors.dtypes import Datatype


class BatchInputKind(enum.Enum):
    """Content of a batch input (``BatchInput.Kind`` of the model configuration)."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Inputs that the server makes for each batch, all with the same content, from the requests' `source`."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    datatype: Datatype
    source: str


class PaddingPolicy(enum.Enum):
    """Policy for requests of different lengths to share a batch."""

    MEASURED = "measured"
    """Requests that finish sooner together than apart, by measured run times."""
    ALWAYS = "always"
    """Requests with lengths in the same range."""
    NEVER = "never"
    """Requests that need no padding to share a batch, except for that of `multiple_of`."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding of requests of different lengths to one batch.

    `axes` maps each input with a dimension of that length to its index in `dims`; the mask is among them. `values` are
    the fill values, as text in their datatypes. `unpad` has the outputs to cut to the request's length.
    """

    axes: Mapping[str, int]
    values: Mapping[str, str] = field(default_factory=dict)
    mask: str = ""
    """Input that marks real elements. If the client does not send it, the server makes it. It is padded with zeros."""
    multiple_of: int = 1
    """The length of a batch is a multiple of this."""
    unpad: Mapping[str, int] = field(default_factory=dict)
    policy: PaddingPolicy = PaddingPolicy.MEASURED
    buckets: int = 4
    """Maximum number of length ranges for ALWAYS, each with batches of its own; 1: all share batches."""
    relearn_every: int = 1024
    """Number of requests after which ALWAYS computes the ranges again."""

    def pad_length(self, length: int) -> int:
        """Return the length of a batch with a longest request of `length`."""
        return -(-length // self.multiple_of) * self.multiple_of


def rows_of(size: int, batch_sizes: tuple[int, ...]) -> int:
    """Return the rows to run for `size` rows of requests: the least sufficient one of the ascending `batch_sizes`."""
    for allowed in batch_sizes:
        if allowed >= size:
            return allowed
    return size

"""The configuration of merging requests whose shapes differ, as frozen values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..tensors.dtypes import Datatype


class BatchInputKind(enum.Enum):
    """What a batch input tells the model about the requests (``BatchInput.Kind`` of the model configuration)."""

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
    """Who shares a batch, among requests of different lengths."""

    MEASURED = "measured"
    """Those who are done sooner together than apart, by the run times that were measured."""
    ALWAYS = "always"
    """All whose lengths are in the same range."""
    NEVER = "never"
    """Only requests that need no padding for it, but what `multiple_of` adds."""


@dataclass(frozen=True, slots=True)
class Padding:
    """How requests of different lengths become one batch.

    `axes` has the inputs with a dimension of that length, and which of `dims` it is; the mask is among them. `values`
    fill them up, as text in their datatypes. `unpad` has the outputs that are cut to the request's length.
    """

    axes: Mapping[str, int]
    values: Mapping[str, str] = field(default_factory=dict)
    mask: str = ""
    """The input that marks what is no padding. The server makes it if the client does not, and fills it with zeros."""
    multiple_of: int = 1
    """The length of a batch is a multiple of this."""
    unpad: Mapping[str, int] = field(default_factory=dict)
    policy: PaddingPolicy = PaddingPolicy.MEASURED
    buckets: int = 4
    """Of ALWAYS: the largest number of ranges of length, each with batches of its own; 1: all share batches."""
    relearn_every: int = 1024
    """Of ALWAYS: the ranges are worked out anew after so many requests."""

    def padded(self, length: int) -> int:
        """The length of a batch, by that of its longest request."""
        return -(-length // self.multiple_of) * self.multiple_of


def rows_of(size: int, batch_sizes: tuple[int, ...]) -> int:
    """The rows that run for `size` rows of requests: the least of `batch_sizes`, in ascending order, that suffices."""
    for allowed in batch_sizes:
        if allowed >= size:
            return allowed
    return size

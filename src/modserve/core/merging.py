"""What a configuration says of merging requests whose shapes differ, as frozen values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from .dtypes import Datatype


class BatchInputKind(enum.Enum):
    """What the model is told of the requests in a batch (``BatchInput.Kind`` of the model configuration)."""

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


@dataclass(frozen=True, slots=True)
class Padding:
    """How requests of different lengths are made one batch.

    `axes` name the inputs with a dimension of that length, counted in `dims`, the mask among them. `values` fill them
    up, as text that the datatype can be made from. `unpad` names the outputs that are cut to the request's length.
    """

    axes: Mapping[str, int]
    values: Mapping[str, str] = field(default_factory=dict)
    mask: str = ""
    """An input that tells what is not padding: made where the client gives none, and filled up with zeros."""
    multiple_of: int = 1
    """What the length of a batch is a multiple of."""
    unpad: Mapping[str, int] = field(default_factory=dict)
    buckets: int = 4
    """Into how many ranges of length requests are parted at most; 1: all lengths share batches."""
    relearn_every: int = 1024
    """After so many requests the ranges are worked out anew."""

    def padded(self, length: int) -> int:
        """The length of a batch whose longest request has this one."""
        return -(-length // self.multiple_of) * self.multiple_of


def rows_of(size: int, batch_sizes: tuple[int, ...]) -> int:
    """The rows that are run for `size` rows of requests: the least of `batch_sizes`, which ascend, that suffices."""
    for allowed in batch_sizes:
        if allowed >= size:
            return allowed
    return size

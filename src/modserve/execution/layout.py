"""How the requests of a batch lie in the arrays of one execution, where they do not just lie one below the other."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.response import InferenceResponse
from modserve.core.tensor import Array
from modserve.core.timing import ExecutionTiming

from .padding import PaddedLayout
from .ragged import RaggedLayout


class Layout(Protocol):
    """In place of `batch.merge` and `batch.split`. Without state of its own: any thread may use it."""

    def merge(self, members: Sequence[Inflight], timing: ExecutionTiming) -> dict[str, Array]:
        """The inputs of one execution; counts elements in `timing`."""
        ...

    def split(self, outputs: Mapping[str, Array], members: Sequence[Inflight], version: int) -> list[InferenceResponse]:
        """One response a request, in the requests' order. Raises INTERNAL as `batch.split` does."""
        ...


def layout_of(config: ModelConfig) -> Layout | None:
    """None for models whose batches are merged and split by rows alone."""
    if config.fills_up:
        return PaddedLayout(config)
    if config.batch_inputs or config.batch_outputs or any(spec.ragged for spec in config.inputs):
        return RaggedLayout(config)
    return None

"""What sequences keep of an execution for their next requests."""

from collections.abc import Mapping, Sequence

from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.tensor import Array


def keep_states(outputs: Mapping[str, Array], rows: Sequence[Inflight], config: ModelConfig) -> None:
    """Give each request's sequence its row of the states, or without a batch dimension all of them.

    Raises INTERNAL when the model does not give what its configuration says.
    """
    for row, inflight in enumerate(rows):
        if inflight.states is not None:
            inflight.states.keep(config.name, outputs, row if config.batching else None, len(rows))

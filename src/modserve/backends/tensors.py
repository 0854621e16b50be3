"""Tensors of a model as seen by its engine, and conversion of texts in tensors."""

from collections.abc import Sequence

import numpy as np

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape


def input_datatypes(config: ModelConfig) -> dict[str, Datatype]:
    """Return all inputs of a model: from clients, from the batcher and from the sequence batcher, in this order."""
    datatypes = {spec.name: spec.datatype for spec in config.inputs}
    datatypes |= {name: each.datatype for each in config.batch_inputs for name in each.targets}
    return datatypes | dict(config.sequence_batching.inputs if config.sequence_batching else ())


def output_datatypes(config: ModelConfig) -> dict[str, Datatype]:
    """Return all outputs of a model: outputs for clients, and states."""
    datatypes = {spec.name: spec.datatype for spec in config.outputs}
    states = dict(config.sequence_batching.state_outputs if config.sequence_batching else ())
    return {**datatypes, **states, **datatypes}


def texts_of(name: str, array: Array) -> list[str]:
    """Decode the elements of an input of BYTES. Raises INVALID_ARG if they are not UTF-8."""
    try:
        return [element.decode() for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise invalid(f"input '{name}' holds bytes that are not UTF-8: {error}") from None


def object_array(values: Sequence[object], shape: Shape) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)

"""Inputs for measuring engines: the configuration's ``model_warmup``, or generated data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.warm_up_config import WARM_UP_FOLDER, DataKind, WarmUp, WarmUpInput
from modserve.core.tensors.sample_data import Sizes, file_tensor, generator, likely, zeros
from modserve.core.tensors.tensor import Array, Shape

from ..runner import Inputs, UnmeasurableError


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs. Each of `checked` runs once, to compare outputs. One race execution runs all of `timed` in order."""

    checked: tuple[Inputs, ...]
    timed: tuple[Inputs, ...]
    batch_size: int
    """Total rows of the timed inputs; 1 for a model without a batch dimension."""
    source: str


def samples(config: ModelConfig, directory: Path, sample_shape: str, *, large: bool) -> Samples:
    """Return the samples for a model with this completed configuration.

    `directory` is the model's directory; `large` times the largest batch. Raises UnmeasurableError, and INVALID_ARG for
    invalid files.
    """
    if config.batch_inputs or any(spec.ragged for spec in config.inputs):
        raise UnmeasurableError("the server computes some inputs from its batches, and samples do not have these")
    sizes = Sizes(sample_shape, config.name)
    if config.warm_ups:
        made = tuple(_warm_up_inputs(each, config, sizes, directory) for each in config.warm_ups)
        rows = sum(_rows(inputs, config) for inputs in made)
        return Samples(made, made, rows, "model_warmup")
    if not config.inputs:
        raise UnmeasurableError("its inputs are unknown")
    counts = sorted({1, config.max_batch_size}) if config.batching else [1]
    batches = [_generate_batch(config, sizes, rows) for rows in counts]
    timed = len(batches) - 1 if large else 0
    return Samples(tuple(batches), (batches[timed],), counts[timed], "generated data")


def _rows(inputs: Inputs, config: ModelConfig) -> int:
    return max((array.shape[0] for array in inputs.values() if config.batching and array.ndim), default=1)


def _generate_batch(config: ModelConfig, sizes: Sizes, rows: int) -> dict[str, Array]:
    """Generate a batch as the model receives it, including the sequence controls and states that the server adds."""
    random = generator()
    batch: Shape = (rows,) if config.batching else ()
    shapes = {
        spec.name: (spec.datatype, sizes.resolve(spec.name, spec.dims if spec.reshape is None else spec.reshape))
        for spec in config.inputs
    }
    lengths = [size for _, dims in shapes.values() for size in dims[-1:]]
    inputs = {
        name: likely(name, datatype, (*batch, *dims), random, min(lengths, default=1))
        for name, (datatype, dims) in shapes.items()
    }
    sequences = config.sequence_batching
    if sequences is not None:
        for control in sequences.controls:
            inputs[control.name] = np.ones((*batch, 1), control.datatype.numpy)
        for state in sequences.states:
            inputs[state.input_name] = zeros(state.datatype, (*batch, *state.initial_dims))
    return inputs


# model_warmup


def _warm_up_inputs(warm_up: WarmUp, config: ModelConfig, sizes: Sizes, directory: Path) -> dict[str, Array]:
    """Return the inputs of one sample. Missing inputs are generated."""
    rows = warm_up.batch_size if config.batching else 1
    inputs = _generate_batch(config, sizes, rows)
    for name, value in warm_up.inputs.items():
        inputs[name] = _warm_up_data(name, value, rows, config, directory / WARM_UP_FOLDER)
    return inputs


def _warm_up_data(name: str, value: WarmUpInput, rows: int, config: ModelConfig, folder: Path) -> Array:
    batch: Shape = (rows,) if config.batching else ()
    shape = _model_shape(name, config, batch, value.dims)
    if value.kind is DataKind.FILE:
        row = file_tensor(folder / value.file, value.datatype, value.dims).array
        return np.tile(row.reshape(-1), rows).reshape(shape)
    random = value.kind is DataKind.RANDOM
    return likely(name, value.datatype, shape, generator(), 1) if random else zeros(value.datatype, shape)


def _model_shape(name: str, config: ModelConfig, batch: Shape, dims: Shape) -> Shape:
    """Return the shape that the model receives: `reshape` may differ from the clients' dims."""
    spec = config.inputs_by_name.get(name)
    if spec is None or spec.reshape is None:
        return (*batch, *dims)
    count = math.prod(dims) // max(1, math.prod(size for size in spec.reshape if size > 0))
    return (*batch, *(count if size < 0 else size for size in spec.reshape))


def shapes_of(inputs: Iterable[Inputs]) -> list[dict[str, list[int]]]:
    """Return the shapes of samples, for reports."""
    return [{name: list(array.shape) for name, array in each.items()} for each in inputs]

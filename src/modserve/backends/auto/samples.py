"""The inputs that engines are measured with: ``model_warmup`` of the configuration, or data that is made up."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.warm_up_config import WARM_UP_FOLDER
from modserve.core.errors import ModserveError, invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.sample_data import Sizes, generator, likely, zeros
from modserve.core.tensors.tensor import Array, Shape, Tensor

Inputs: TypeAlias = Mapping[str, Array]

_LARGEST_FILE = 1 << 30


class UnmeasurableError(Exception):
    """The engines of a model cannot be compared, and why."""


@dataclass(frozen=True, slots=True)
class Samples:
    """`checked` are run once, to compare the outputs; `timed`, one after the other, are one execution of the race."""

    checked: tuple[Inputs, ...]
    timed: tuple[Inputs, ...]
    batch_size: int
    """Rows of all that is timed; 1 of a model without a batch dimension."""
    source: str


def samples(config: ModelConfig, warmup: object, directory: Path, sample_shape: str, *, large: bool) -> Samples:
    """The samples for a model with this complete configuration.

    `warmup` is its ``model_warmup`` as JSON, `directory` that of the model, `large`: timed with the largest batch.
    Raises UnmeasurableError, and INVALID_ARG for samples that are described wrongly.
    """
    if config.batch_inputs or any(spec.ragged for spec in config.inputs):
        raise UnmeasurableError("the server makes inputs of its batches, which samples do not have")
    sizes = Sizes(sample_shape, config.name)
    if isinstance(warmup, list) and warmup:
        made = tuple(_warmup_inputs(each, config, sizes, directory) for each in warmup)
        rows = sum(_rows(inputs, config) for inputs in made)
        return Samples(made, made, rows, "model_warmup")
    if not config.inputs:
        raise UnmeasurableError("nothing tells its inputs")
    counts = sorted({1, config.max_batch_size}) if config.batching else [1]
    batches = [_generated(config, sizes, rows) for rows in counts]
    timed = len(batches) - 1 if large else 0
    return Samples(tuple(batches), (batches[timed],), counts[timed], "made-up data")


def _rows(inputs: Inputs, config: ModelConfig) -> int:
    return max((array.shape[0] for array in inputs.values() if config.batching and array.ndim), default=1)


def _generated(config: ModelConfig, sizes: Sizes, rows: int) -> dict[str, Array]:
    """What the model itself sees of a batch: its inputs, and those that the server makes for sequences."""
    random = generator()
    batch: Shape = (rows,) if config.batching else ()
    shapes = {spec.name: (spec.datatype, _dims(spec.name, spec.dims, spec.reshape, sizes)) for spec in config.inputs}
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


def _dims(name: str, dims: Shape, reshape: Shape | None, sizes: Sizes) -> Shape:
    return sizes.resolve(name, dims if reshape is None else reshape)


# model_warmup


def _warmup_inputs(sample: object, config: ModelConfig, sizes: Sizes, directory: Path) -> dict[str, Array]:
    """The inputs of one block of ``model_warmup``; what it leaves out is made up."""
    if not isinstance(sample, Mapping):
        raise invalid(f"model '{config.name}': model_warmup has a {type(sample).__name__} for a sample")
    rows = max(1, int(sample.get("batch_size", 1) or 1)) if config.batching else 1
    inputs = _generated(config, sizes, rows)
    described = sample.get("inputs", {})
    for name, block in described.items() if isinstance(described, Mapping) else ():
        if name not in inputs:
            raise invalid(
                f"model '{config.name}': sample '{sample.get('name', '')}' of model_warmup has input '{name}', but the "
                f"model has {', '.join(inputs)}"
            )
        batch: Shape = (rows,) if config.batching else ()
        inputs[name] = _warmup_data(name, block, batch, config, directory)
    return inputs


def _warmup_data(name: str, block: Any, batch: Shape, config: ModelConfig, directory: Path) -> Array:
    who = f"model '{config.name}': input '{name}' of model_warmup"
    datatype = dtypes.BY_CONFIG_NAME.get(block.get("data_type", ""))
    if datatype is None:
        raise invalid(f"{who} has no data_type")
    dims = tuple(int(size) for size in block.get("dims", ()))
    if any(size < 1 for size in dims):
        raise invalid(f"{who} has dims {list(dims)}, expected sizes of 1 or more")
    shape = _model_shape(name, config, batch, dims)
    if block.get("random_data"):
        return likely(name, datatype, shape, generator(), 1)
    if file := block.get("input_data_file", ""):
        if os.path.isabs(file) or os.path.normpath(file).split(os.sep)[0] == os.pardir:
            raise invalid(f"{who}: input_data_file '{file}' is outside the model's folder '{WARM_UP_FOLDER}'")
        return _file_data(directory / WARM_UP_FOLDER / file, datatype, dims, math.prod(batch), who).reshape(shape)
    return zeros(datatype, shape)


def _model_shape(name: str, config: ModelConfig, batch: Shape, dims: Shape) -> Shape:
    """What the model sees, whose `reshape` may be another than the clients' dims."""
    spec = config.inputs_by_name.get(name)
    if spec is None or spec.reshape is None:
        return (*batch, *dims)
    count = math.prod(dims) // max(1, math.prod(size for size in spec.reshape if size > 0))
    return (*batch, *(count if size < 0 else size for size in spec.reshape))


def _file_data(path: Path, datatype: Datatype, dims: Shape, rows: int, who: str) -> Array:
    """The elements of a file, as they are in a request: of one row, which all rows have then, or of all rows."""
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise invalid(f"{who}: '{path}' is no file")
        if path.stat().st_size > _LARGEST_FILE:
            raise invalid(f"{who}: '{path}' has {path.stat().st_size} bytes, at most {_LARGEST_FILE} are read")
        content = path.read_bytes()
    except OSError as error:
        raise invalid(f"{who}: cannot read '{path}': {error.strerror}") from None
    size = math.prod(dims)
    for repeats, shape in ((rows, (size,)), (1, (rows * size,))):
        try:
            array = Tensor.from_raw(datatype, shape, content).array
        except (ModserveError, ValueError):
            continue
        return np.tile(array, repeats)
    raise invalid(f"{who}: '{path}' has {len(content)} bytes, which are not those of a {datatype.name} {list(dims)}")


def warmup_of(config_json: str) -> object:
    """``model_warmup`` of a configuration as JSON; None if there is none."""
    try:
        config = json.loads(config_json) if config_json else {}
    except ValueError:
        return None
    return config.get("model_warmup") if isinstance(config, Mapping) else None


def shapes_of(inputs: Iterable[Inputs]) -> list[dict[str, list[int]]]:
    """For people: the shapes of samples."""
    return [{name: list(array.shape) for name, array in each.items()} for each in inputs]

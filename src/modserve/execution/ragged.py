"""Ragged batches: the elements of all requests in one dimension, and inputs that describe their division.

The engine receives the same arrays as from Triton (backend, BackendInputCollector and BackendOutputResponder).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from modserve.backends.api import Values
from modserve.core.configuration.merging import BatchInput, BatchInputKind
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.tensor import Array, Shape, Tensor, format_shape

from .batch import check_output, join, merge_output_names, respond_with, take_rows

Numbers = Sequence[int] | Sequence[Sequence[int]] | Array


def _counts(shapes: Sequence[Shape]) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _item_shapes(shapes: Sequence[Shape]) -> Array:
    """Return a row for each item of each request. Without a batch dimension, the first dimension counts as one."""
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    return np.array(rows, np.int64).reshape(len(rows), len(shapes[0]) - 1)


_CONTENTS: Mapping[BatchInputKind, Callable[[Sequence[Shape]], Numbers]] = {
    BatchInputKind.ELEMENT_COUNT: _counts,
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT: lambda shapes: list(itertools.accumulate(_counts(shapes))),
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: lambda shapes: list(
        itertools.accumulate(_counts(shapes), initial=0)
    ),
    # Only the shape matters; Triton leaves the content undefined.
    BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: [0] * max(_counts(shapes)),
    BatchInputKind.ITEM_SHAPE: _item_shapes,
    BatchInputKind.ITEM_SHAPE_FLATTEN: lambda shapes: _item_shapes(shapes).reshape(-1),
}


def batch_input(spec: BatchInput, shapes: Sequence[Shape]) -> Array:
    """Return the input that describes a batch; `shapes` are the complete shapes of the requests' source input."""
    return np.asarray(_CONTENTS[spec.kind](shapes), dtype=spec.datatype.numpy)


class RaggedLayout:
    """Merges and splits ragged batches."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._ragged = frozenset(spec.name for spec in config.inputs if spec.ragged)

    def merge(self, members: Sequence[Inflight], timing: ExecutionTiming) -> dict[str, Array]:
        merged: dict[str, Array] = {}
        for name in members[0].inputs:
            tensors = [inflight.inputs[name] for inflight in members]
            if name in self._ragged:
                tensors = [tensor.reshaped((math.prod(tensor.shape),)) for tensor in tensors]
            merged[name] = join(tensors)
        for spec in self._config.batch_inputs:
            source = [inflight.inputs.get(spec.source) for inflight in members]
            shapes = [tensor.shape for tensor in source if tensor is not None]
            if shapes:
                array = batch_input(spec, shapes)
                merged.update(dict.fromkeys(spec.targets, array))
        return merged

    def split(self, outputs: Values, members: Sequence[Inflight], version: int) -> list[InferenceResponse]:
        parts = {name: self._parts(name, outputs, members) for name in merge_output_names(members)}
        return respond_with(parts, members, self._config, version)

    def _parts(self, name: str, outputs: Values, members: Sequence[Inflight]) -> list[Tensor]:
        source = self._config.batch_outputs.get(name)
        if source is None:
            return take_rows(name, outputs, [inflight.batch_size for inflight in members], self._config)
        return self._scatter(name, outputs, [inflight.inputs[source] for inflight in members], source)

    def _scatter(self, name: str, outputs: Values, sources: Sequence[Tensor], source: str) -> list[Tensor]:
        """Divide the elements among the requests in order, according to their shapes."""
        config = self._config
        spec = config.outputs_by_name[name]
        flat = check_output(spec, outputs.get(name), config).reshape(-1)
        shapes = [_fill_in(spec, tensor.shape, config.batching) for tensor in sources]
        expected = sum(_counts(shapes))
        if expected != flat.size:
            raise internal(
                f"output '{name}' of model '{config.name}' has {flat.size} elements, but by the shapes of input "
                f"'{source}' the requests need {expected}: "
                + ", ".join(format_shape(shape) for shape in shapes[:8])
                + (", …" if len(shapes) > 8 else "")
            )
        parts: list[Tensor] = []
        start = 0
        for shape in shapes:
            end = start + math.prod(shape)
            parts.append(Tensor.from_array(flat[start:end].reshape(shape), spec.datatype))
            start = end
        return parts


def _fill_in(spec: TensorSpec, source: Shape, batching: bool) -> Shape:
    """Return the shape of an output for the client, with variable dimensions filled in from the source input.

    The source's dimensions correspond to the model's shape, which `reshape` maps to the configured dims.
    """
    model = spec.dims if spec.reshape is None else spec.reshape
    full = (-1, *model) if batching else model
    filled = tuple(source[place] if size == -1 else size for place, size in enumerate(full))
    if spec.reshape is None:
        return filled
    variable = iter([size for dim, size in zip(full[batching:], filled[batching:], strict=True) if dim == -1])
    return (*filled[:batching], *(next(variable) if size == -1 else size for size in spec.dims))

"""Padded batches: requests of different lengths in one array, with rows added up to a size that suits the engine."""

from collections.abc import Sequence

import numpy as np

from modserve.backends.api import Values
from modserve.core.configuration.merging import Padding, rows_of
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, Tensor, format_shape

from .batch import join, merge_output_names, respond_with, take_rows

_NONE = Padding({})


class PaddedLayout:
    """Merges and splits padded batches. Added rows repeat the last one: no engine meets values it does not know.

    Without state of its own, as `RaggedLayout`: any thread may use it.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._padding = padding = config.padding or _NONE
        self._sizes = config.batch_sizes
        self._fill = {
            name: fill_value(padding.values.get(name, ""), config.inputs_by_name[name].datatype)
            for name in padding.axes
            if name != padding.mask
        }

    def merge(self, members: Sequence[Inflight], timing: ExecutionTiming) -> dict[str, Array]:
        padding = self._padding
        rows = sum([inflight.batch_size for inflight in members])
        total = rows_of(rows, self._sizes)
        length = self._length(members)
        merged: dict[str, Array] = {}
        for name in members[0].inputs:
            if name == padding.mask:
                continue
            tensors = [inflight.inputs[name] for inflight in members]
            axis = padding.axes.get(name)
            if axis is None or all(tensor.shape[1 + axis] == length for tensor in tensors):
                merged[name] = _with_rows(join(tensors), total)
            else:
                merged[name] = pad(tensors, 1 + axis, length, total, self._fill[name])
        if padding.mask:
            merged[padding.mask] = self._mask(members, length, total)
        timing.elements = rows
        if padding.axes:
            timing.elements = sum([inflight.batch_size * inflight.length for inflight in members])
            total *= length
        timing.padding = total - timing.elements
        return merged

    def split(self, outputs: Values, members: Sequence[Inflight], version: int) -> list[InferenceResponse]:
        config, unpad = self._config, self._padding.unpad
        sizes = [inflight.batch_size for inflight in members]
        added = rows_of(sum(sizes), self._sizes) - sum(sizes)
        columns: dict[str, list[Tensor]] = {}
        for name in merge_output_names(members):
            column = take_rows(name, outputs, [*sizes, added] if added else sizes, config)
            columns[name] = self._cut(name, column, members) if name in unpad else column
        return respond_with(columns, members, config, version)

    def _length(self, members: Sequence[Inflight]) -> int:
        return self._padding.pad_length(max([inflight.length for inflight in members]))

    def _mask(self, members: Sequence[Inflight], length: int, rows: int) -> Array:
        """Return ones for elements of requests without a mask, the masks of the others, and zeros for the padding."""
        padding = self._padding
        spec = self._config.inputs_by_name[padding.mask]
        axis = 1 + padding.axes[padding.mask]
        masks = [inflight.inputs.get(padding.mask) for inflight in members]
        tensors = [tensor for tensor in masks if tensor is not None]
        if len(tensors) == len(members) and all(tensor.shape[axis] == length for tensor in tensors):
            return _with_rows(join(tensors), rows)
        item = tuple(length if size == -1 else size for size in spec.dims)
        out = np.zeros((rows, *item), spec.datatype.numpy)
        start = 0
        for inflight, tensor in zip(members, masks, strict=True):
            end = start + inflight.batch_size
            out[(slice(start, end), *_up_to(axis, inflight.length))] = 1 if tensor is None else tensor.array
            start = end
        out[start:] = out[start - 1 : start]
        return out

    def _cut(self, name: str, column: Sequence[Tensor], members: Sequence[Inflight]) -> list[Tensor]:
        """Cut the padding off the parts of an output, which are as long as the batch was."""
        axis = 1 + self._padding.unpad[name]
        length = self._length(members)
        cut: list[Tensor] = []
        for tensor, inflight in zip(column[: len(members)], members, strict=True):
            if tensor.shape[axis] != length:
                expected = f"expected {length} in dimension {axis}, the length that its batch was padded to"
                who = f"output '{name}' of model '{self._config.name}'"
                raise internal(f"{who} has shape {format_shape(tensor.shape)}, {expected}")
            if inflight.length != length:
                shorter = tensor.array[(slice(None), *_up_to(axis, inflight.length))]
                tensor = Tensor.from_array(np.ascontiguousarray(shorter), tensor.datatype)
            cut.append(tensor)
        return cut


def fill_value(text: str, datatype: Datatype) -> object:
    """Return the value that a datatype's padding has; an empty text stands for zero."""
    if not datatype.size:
        return text.encode()
    kind = datatype.json_kind
    if kind == "bool":
        return text == "true"
    return int(text or "0") if kind == "int" else float(text or "0")


def pad(tensors: Sequence[Tensor], axis: int, length: int, rows: int, value: object) -> Array:
    """Pad the rows of `tensors` to `length` in dimension `axis` (1 or more), and repeat the last up to `rows`."""
    first = tensors[0]
    shape: Shape = (rows, *first.shape[1:axis], length, *first.shape[axis + 1 :])
    if first.datatype.size:
        out = np.full(shape, value, first.datatype.numpy)
    else:
        out = np.empty(shape, object)
        out.fill(value)
    start = 0
    for tensor in tensors:
        end = start + tensor.shape[0]
        out[(slice(start, end), *_up_to(axis, tensor.shape[axis]))] = tensor.array
        start = end
    out[start:] = out[start - 1 : start]
    return out


def _up_to(axis: int, length: int) -> tuple[slice, ...]:
    """Return the index of dimensions 1 to `axis` that limits `axis` to `length`."""
    return (*([slice(None)] * (axis - 1)), slice(length))


def _with_rows(array: Array, rows: int) -> Array:
    if array.shape[0] == rows:
        return array
    return np.concatenate((array, np.repeat(array[-1:], rows - array.shape[0], axis=0)))

"""Merging requests into the arrays of one execution, and its outputs back into responses."""

from collections.abc import Mapping, Sequence

import numpy as np

from modserve.core import dtypes
from modserve.core.errors import internal
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig, TensorSpec
from modserve.core.response import InferenceResponse
from modserve.core.tensor import Array, Shape, Tensor, format_shape


def merge(members: Sequence[Inflight]) -> dict[str, Array]:
    """The inputs of one execution: one request's arrays as they are, those of several joined on the first dimension."""
    first = members[0]
    if len(members) == 1:
        return {name: tensor.array for name, tensor in first.inputs.items()}
    merged: dict[str, Array] = {}
    for name, tensor in first.inputs.items():
        tensors = [inflight.inputs[name] for inflight in members]
        if tensor.datatype.size:
            # Row-major tensors that differ in the first dimension only join as bytes: one copy, one array object.
            data = bytearray().join([each.raw for each in tensors])
            rows = sum([each.shape[0] for each in tensors])
            merged[name] = np.frombuffer(data, dtype=tensor.datatype.numpy).reshape((rows, *tensor.shape[1:]))
        else:
            merged[name] = np.concatenate([each.array for each in tensors])
    return merged


def wanted_outputs(members: Sequence[Inflight]) -> tuple[str, ...]:
    """The outputs that at least one of the requests asks for."""
    names = members[0].output_names
    for inflight in members:
        if inflight.output_names != names:
            return tuple(dict.fromkeys(name for each in members for name in each.output_names))
    return names


def split(
    outputs: Mapping[str, Array], members: Sequence[Inflight], config: ModelConfig, version: int
) -> list[InferenceResponse]:
    """One response a request, each with its own rows of `outputs`, in the requests' order.

    Outputs that the model did not give are left out if it was not asked for them; raises INTERNAL if it was, and when
    an output's type or number of rows is not what the configuration promises.
    """
    specs = config.outputs_by_name
    rows = sum([inflight.batch_size for inflight in members]) if config.batching else 0
    columns = {name: _Column(outputs, specs[name], rows, config) for name in wanted_outputs(members)}
    responses: list[InferenceResponse] = []
    start = 0
    for inflight in members:
        end = start + inflight.batch_size
        tensors = {name: columns[name].rows(start, end) for name in inflight.output_names}
        responses.append(InferenceResponse(config.name, version, tensors, inflight.request.id))
        start = end
    return responses


class _Column:
    """One output of an execution, from which requests take their rows."""

    def __init__(self, outputs: Mapping[str, Array], spec: TensorSpec, rows: int, config: ModelConfig) -> None:
        array = outputs.get(spec.name)
        if array is None:
            raise internal(f"model '{config.name}' gave no output '{spec.name}'")
        batch: Shape = ()
        item = array.shape
        if config.batching:
            if not item or item[0] != rows:
                raise internal(
                    f"output '{spec.name}' of model '{config.name}' has shape {format_shape(item)}, "
                    f"expected {rows} in the first dimension, as in the inputs"
                )
            batch, item = item[:1], item[1:]
        if spec.reshape is not None:
            item = _as_configured(spec, item, array, config)
            array = array.reshape((*batch, *item))
        self._datatype = spec.datatype
        self._item = item
        self._batching = config.batching
        self._raw: bytes | memoryview = b""
        self._array = array
        if spec.datatype is dtypes.BYTES:
            self._whole = Tensor.from_array(array, dtypes.BYTES)
            return
        if array.dtype != spec.datatype.numpy:
            raise internal(
                f"output '{spec.name}' of model '{config.name}' is of type {array.dtype}, "
                f"but the model configuration says {spec.datatype.config_name}"
            )
        self._whole = Tensor.from_array(array, spec.datatype)
        self._raw = memoryview(self._whole.raw)
        self._row_bytes = len(self._raw) // rows if rows else 0

    def rows(self, start: int, end: int) -> Tensor:
        if not self._batching:
            return self._whole
        shape = (end - start, *self._item)
        if self._datatype.size:
            size = self._row_bytes
            return Tensor(self._datatype, shape, self._raw[start * size : end * size], None)
        return Tensor.from_array(self._whole.array[start:end], self._datatype)


def _as_configured(spec: TensorSpec, item: Shape, array: Array, config: ModelConfig) -> Shape:
    """The shape clients see of an output that the configuration reshapes: variable dimensions keep their order."""
    assert spec.reshape is not None, "only called for reshaped outputs: this is a bug"
    fits = len(item) == len(spec.reshape) and all(w in (-1, g) for w, g in zip(spec.reshape, item, strict=True))
    if not fits:
        raise internal(
            f"output '{spec.name}' of model '{config.name}' has shape {format_shape(array.shape)}, "
            f"but the model configuration reshapes it from {format_shape(spec.reshape)}"
        )
    variable = iter([got for want, got in zip(spec.reshape, item, strict=True) if want == -1])
    return tuple(next(variable) if size == -1 else size for size in spec.dims)

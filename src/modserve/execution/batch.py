"""Merging requests into the arrays of one execution, and its outputs back into responses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.errors import ModserveError, internal
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig, TensorSpec
from modserve.core.request import ParameterValue
from modserve.core.response import InferenceResponse
from modserve.core.tensor import Array, Buffer, Shape, Tensor, format_shape

_SMALL = 16 * 1024


def merge(members: Sequence[Inflight]) -> dict[str, Array]:
    """The inputs of one execution: one request's arrays as they are, those of several joined on the first dimension."""
    first = members[0]
    if len(members) == 1:
        return {name: tensor.array for name, tensor in first.inputs.items()}
    return {name: join([inflight.inputs[name] for inflight in members]) for name in first.inputs}


def join(tensors: Sequence[Tensor]) -> Array:
    """Tensors that differ in the first dimension only, as one array; that of a single one as it is."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.array
    if not first.datatype.size:
        return np.concatenate([each.array for each in tensors])
    # Such tensors in row-major order join as bytes: one copy, one array object.
    data = bytearray().join([each.raw for each in tensors])
    rows = sum([each.shape[0] for each in tensors])
    return np.frombuffer(data, dtype=first.datatype.numpy).reshape((rows, *first.shape[1:]))


def checked(outputs: object, config: ModelConfig) -> Mapping[str, Array]:
    """What an engine returned, if it is a mapping. Raises INTERNAL."""
    if not isinstance(outputs, Mapping):
        raise internal(
            f"model '{config.name}' gave an object of type {type(outputs).__name__}, expected a dict of arrays by name"
        )
    return outputs


def copied(outputs: object, config: ModelConfig) -> dict[str, Array]:
    """The outputs of an engine that uses their memory again. Raises as `checked`."""
    return {name: as_array(name, array, config).copy() for name, array in checked(outputs, config).items()}


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

    Raises INTERNAL if an output that somebody wants is not there, and when an output's type or number of rows is not
    what the configuration promises.
    """
    batching = config.batching
    rows = sum([inflight.batch_size for inflight in members]) if batching else 0
    given = members[0].inputs if len(members) == 1 else _NOTHING
    columns = {name: _column(name, outputs, rows, config, given) for name in wanted_outputs(members)}
    responses: list[InferenceResponse] = []
    start = 0
    for inflight in members:
        size = inflight.batch_size
        end = start + size
        tensors: dict[str, Tensor] = {}
        for name in inflight.output_names:
            datatype, item, raw, row_bytes, whole = columns[name]
            if not batching or size == rows:
                tensors[name] = whole
            elif row_bytes:
                tensors[name] = Tensor(datatype, (size, *item), raw[start * row_bytes : end * row_bytes], None)
            else:
                tensors[name] = Tensor.from_array(whole.array[start:end], datatype)
        responses.append(InferenceResponse(config.name, version, tensors, inflight.request.id))
        start = end
    return responses


def take_rows(name: str, outputs: Mapping[str, Array], sizes: Sequence[int], config: ModelConfig) -> list[Tensor]:
    """One output, cut into parts of so many rows; without a batch dimension all of it, for each. Raises as `split`."""
    rows = sum(sizes)
    datatype, item, raw, row_bytes, whole = _column(name, outputs, rows, config)
    if not config.batching:
        return [whole] * len(sizes)
    parts: list[Tensor] = []
    start = 0
    for size in sizes:
        end = start + size
        if row_bytes:
            parts.append(Tensor(datatype, (size, *item), raw[start * row_bytes : end * row_bytes], None))
        else:
            parts.append(Tensor.from_array(whole.array[start:end], datatype))
        start = end
    return parts


def as_array(name: str, given: object, config: ModelConfig) -> Array:
    """An output as a plain array. Raises INTERNAL where there is none."""
    if type(given) is np.ndarray:
        return given
    if given is None:
        raise internal(f"model '{config.name}' gave no output '{name}'")
    if not isinstance(given, np.ndarray):
        raise internal(
            f"output '{name}' of model '{config.name}' is an object of type {type(given).__name__}, expected an array"
        )
    return given.view(np.ndarray)  # a subclass may say anything of itself


def check_output(spec: TensorSpec, array: Array | None, config: ModelConfig) -> Array:
    """What an engine gave, if it is there and of the configured type; raises INTERNAL otherwise."""
    array = as_array(spec.name, array, config)
    if spec.datatype.size and array.dtype != spec.datatype.numpy:
        raise internal(
            f"output '{spec.name}' of model '{config.name}' is of type {array.dtype}, "
            f"but the model configuration says {spec.datatype.config_name}"
        )
    return array


def single(
    outputs: Mapping[str, Array],
    member: Inflight,
    config: ModelConfig,
    version: int,
    parameters: Mapping[str, ParameterValue],
) -> InferenceResponse:
    """One of the responses to one request. Raises INTERNAL as `split` does.

    Decoupled models may give any of the wanted outputs in a response, with any number of rows.
    """
    names = member.output_names
    rows: int | None = member.batch_size
    if config.decoupled:
        names = tuple(name for name in names if name in outputs)
        rows = None
    tensors = {name: _column(name, outputs, rows, config, member.inputs).whole for name in names}
    return InferenceResponse(config.name, version, tensors, member.request.id, parameters)


class _Column(NamedTuple):
    """One output of an execution, checked, from which requests take their rows.

    `row_bytes` is 0 where rows can not be cut out of `raw`: BYTES, and empty items.
    """

    datatype: Datatype
    item: Shape
    raw: Buffer
    row_bytes: int
    whole: Tensor


_NOTHING: Mapping[str, Tensor] = {}


def _column(
    name: str,
    outputs: Mapping[str, Array],
    rows: int | None,
    config: ModelConfig,
    given: Mapping[str, Tensor] = _NOTHING,
) -> _Column:
    """`rows` None: any number of them. `given` are the inputs of a request that runs alone."""
    spec = config.outputs_by_name[name]
    array = as_array(name, outputs.get(name), config)
    batch: Shape = ()
    item = array.shape
    if config.batching:
        if not item or (rows is not None and item[0] != rows):
            raise internal(
                f"output '{name}' of model '{config.name}' has shape {format_shape(item)}, "
                f"expected {'a row or more' if rows is None else rows} in the first dimension, as in the inputs"
            )
        batch, item = item[:1], item[1:]
    if spec.reshape is not None:
        item = _as_configured(spec, item, array, config)
        array = array.reshape((*batch, *item))
    datatype = spec.datatype
    if datatype is dtypes.BYTES:
        for tensor in given.values():
            # Given back as it was, with its raw form.
            if tensor.datatype is dtypes.BYTES and tensor.array is outputs[name] and not outputs[name].flags.writeable:
                return _Column(datatype, item, b"", 0, tensor.reshaped(array.shape))
        try:
            return _Column(datatype, item, b"", 0, Tensor.from_array(array, datatype))
        except ModserveError as error:
            raise internal(f"output '{name}' of model '{config.name}': {error.message}") from None
    if array.dtype != datatype.numpy:
        raise internal(
            f"output '{name}' of model '{config.name}' is of type {array.dtype}, "
            f"but the model configuration says {datatype.config_name}"
        )
    # Small outputs are copied once, which costs less than a view does.
    raw = array.tobytes() if array.nbytes <= _SMALL else Tensor(datatype, array.shape, None, array).raw
    whole = Tensor(datatype, array.shape, raw, None)
    return _Column(datatype, item, raw, len(raw) // rows if rows else 0, whole)


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

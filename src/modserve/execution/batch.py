"""Merging requests into the arrays of one execution, and its outputs back into responses."""

import logging
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from modserve.backends.api import Values
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError, internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Buffer, DeviceTensor, Shape, Tensor, format_shape
from modserve.core.texts import is_unicode

_log = logging.getLogger(__name__)

_SHOWN = 100
_SMALL = 16 * 1024


def merge(members: Sequence[Inflight]) -> dict[str, Array]:
    """Return an execution's inputs: one request's arrays as they are, several joined on the first dimension."""
    first = members[0]
    if len(members) == 1:
        arrays: dict[str, Array] = {}
        for name, tensor in first.inputs.items():
            arrays[name] = tensor.array
        return arrays
    return {name: join([inflight.inputs[name] for inflight in members]) for name in first.inputs}


def on_devices(inflight: Inflight, devices: Container[tuple[int, int]]) -> dict[str, Any] | None:
    """Return the inputs of an execution for one request, inputs on one of `devices` as they are; None if none is."""
    tensors = inflight.inputs
    there = {name: one.source for name, one in tensors.items() if type(one) is DeviceTensor and one.device in devices}
    if not there:
        return None
    return {**there, **{name: tensor.array for name, tensor in tensors.items() if name not in there}}


def join(tensors: Sequence[Tensor]) -> Array:
    """Join tensors that differ in the first dimension only to one array; a single one's is not copied."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.array
    if not first.datatype.size:
        return np.concatenate([each.array for each in tensors])
    # Such tensors in row-major order join as bytes: one copy, one array object.
    data = bytearray().join([each.raw for each in tensors])
    rows = sum([each.shape[0] for each in tensors])
    return np.frombuffer(data, dtype=first.datatype.numpy).reshape((rows, *first.shape[1:]))


def respond_with(
    columns: Mapping[str, Sequence[Tensor]], members: Sequence[Inflight], config: ModelConfig, version: int
) -> list[InferenceResponse]:
    """Return one response per request, in the requests' order, from outputs that have a part for each."""
    return [
        InferenceResponse(
            config.name, version, {name: columns[name][index] for name in inflight.output_names}, inflight.request.id
        )
        for index, inflight in enumerate(members)
    ]


def check_outputs(outputs: object, config: ModelConfig) -> Values:
    """Return an engine's result if it is a mapping. Raises INTERNAL for anything else."""
    if not isinstance(outputs, Mapping):
        raise internal(
            f"model '{config.name}' returned an object of type {type(outputs).__name__}, expected a dict of arrays by "
            "name"
        )
    return outputs


def on_host(outputs: Values) -> Mapping[str, Array]:
    """Return the outputs of an engine as arrays, even if some are tensors."""
    return {name: value.array if isinstance(value, Tensor) else value for name, value in outputs.items()}


def copy_outputs(outputs: object, config: ModelConfig) -> dict[str, Array]:
    """Copy the outputs of an engine that uses their memory again. Raises as `check_outputs`."""
    return {name: as_array(name, value, config).copy() for name, value in check_outputs(outputs, config).items()}


def merge_output_names(members: Sequence[Inflight]) -> tuple[str, ...]:
    """Return the outputs that at least one of the requests must have."""
    names = members[0].output_names
    for inflight in members:
        if inflight.output_names != names:
            return tuple(dict.fromkeys(name for each in members for name in each.output_names))
    return names


def split(outputs: Values, members: Sequence[Inflight], config: ModelConfig, version: int) -> list[InferenceResponse]:
    """Return one response per request, in the requests' order, each with its own rows of `outputs`.

    Raises INTERNAL if a requested output is missing, and when an output's type or number of rows is not what the
    configuration promises.
    """
    tensors: dict[str, Tensor] = {}
    if len(members) == 1:
        alone = members[0]
        for name in alone.output_names:
            tensors[name] = _whole(name, outputs, alone.batch_size, config, alone)
        return [InferenceResponse(config.name, version, tensors, alone.request.id)]
    batching = config.batching
    rows = sum([inflight.batch_size for inflight in members]) if batching else 0
    columns = {name: _column(name, outputs, rows, config) for name in merge_output_names(members)}
    responses: list[InferenceResponse] = []
    start = 0
    for inflight in members:
        size = inflight.batch_size
        end = start + size
        tensors = {}
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


def take_rows(name: str, outputs: Values, sizes: Sequence[int], config: ModelConfig) -> list[Tensor]:
    """Cut one output into parts of `sizes` rows; without a batch dimension each gets all of it. Raises as `split`."""
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


def as_array(name: str, output: object, config: ModelConfig) -> Array:
    """Return an output as a plain array. Raises INTERNAL where there is none."""
    if type(output) is np.ndarray:
        return output
    if isinstance(output, Tensor):
        return output.array
    if output is None:
        raise internal(f"model '{config.name}' did not return output '{name}'")
    if not isinstance(output, np.ndarray):
        raise internal(
            f"output '{name}' of model '{config.name}' is an object of type {type(output).__name__}, expected an array"
        )
    if np.ma.is_masked(output):
        raise internal(
            f"output '{name}' of model '{config.name}' has masked elements; array.filled(value) gives them a value"
        )
    return output.view(np.ndarray)  # a subclass may say anything of itself


def check_output(spec: TensorSpec, output: Array | Tensor | None, config: ModelConfig) -> Array:
    """Return the engine's output, if it is there and of the configured type; raises INTERNAL otherwise."""
    array = as_array(spec.name, output, config)
    if spec.datatype.size and array.dtype != spec.datatype.numpy:
        raise _of_type(array.dtype, spec, config)
    return array


def single(
    outputs: Values,
    member: Inflight,
    config: ModelConfig,
    version: int,
    parameters: Mapping[str, ParameterValue],
) -> InferenceResponse:
    """Return one of the responses to one request. Raises INTERNAL as `split` does, but not for missing outputs.

    Models that respond to each request may leave outputs out, as Triton's may; decoupled ones may give any number of
    rows. A tensor is passed on with the type and the rows that it has.
    """
    rows = None if config.decoupled else member.batch_size
    tensors: dict[str, Tensor] = {}
    for name in member.output_names:
        output = outputs.get(name)
        if type(output) is Tensor:
            tensors[name] = _hand_on(name, output, rows, config)
        elif isinstance(output, Tensor):
            tensors[name] = _hand_on(name, _place(name, output, member), rows, config)
        elif name in outputs:
            tensors[name] = _whole(name, outputs, rows, config, member)
    for key, value in parameters.items():
        if not (is_unicode(key) and (not isinstance(value, str) or is_unicode(value))):
            raise internal(
                f"model '{config.name}' responded with the parameter {key[:_SHOWN]!a}, which has a lone surrogate in "
                "its name or value: that is no character and cannot be sent"
            )
    return InferenceResponse(config.name, version, tensors, member.request.id, parameters)


def _place(name: str, output: Tensor, member: Inflight) -> Tensor:
    """Return an output on the host, unless its receiver takes it on a device."""
    if name in member.device_outputs:
        return output
    return Tensor.from_array(output.array, output.datatype)


def _as_it_is(name: str, output: Tensor, rows: int | None, config: ModelConfig) -> Tensor:
    """Return an output that comes as a tensor, in its raw form perhaps. Raises INTERNAL as `split` does."""
    spec = config.outputs_by_name[name]
    if output.datatype is not spec.datatype:
        raise _of_type(output.datatype.name, spec, config)
    _check_rows(name, output.shape, rows, config)
    return _as_clients_see(name, output, spec, config)


def _hand_on(name: str, output: Tensor, rows: int | None, config: ModelConfig) -> Tensor:
    """Return `_as_it_is`, but pass on and log what the configuration does not promise, as Triton does."""
    spec = config.outputs_by_name[name]
    shape = output.shape
    fits = _has_dims(shape, rows, spec, config)
    if (not fits or output.datatype is not spec.datatype) and name not in config.deviations:
        config.deviations.add(name)
        try:
            _as_it_is(name, output, rows, config)
            deviation = (
                f"output '{name}' of model '{config.name}' has shape {format_shape(shape)}, "
                f"but the model configuration says {format_shape(config.full_dims(spec))}"
            )
        except ModserveError as error:
            deviation = error.message
        _log.warning("%s; it is passed on unchanged, and this output is not reported again", deviation)
    return _as_clients_see(name, output, spec, config)


def _has_dims(shape: Shape, rows: int | None, spec: TensorSpec, config: ModelConfig) -> bool:
    """True if an output has the configured dimensions and `rows`. With a reshape, only the rows are checked."""
    at = 0
    if config.max_batch_size:
        if not shape or (rows is not None and shape[0] != rows):
            return False
        at = 1
    if spec.reshape is not None:
        return True
    if len(shape) != at + len(spec.dims):
        return False
    for size in spec.dims:
        if size != shape[at] and size != -1:
            return False
        at += 1
    return True


def _as_clients_see(name: str, output: Tensor, spec: TensorSpec, config: ModelConfig) -> Tensor:
    """Return a tensor in the configured shape. Raises INTERNAL where its bytes do not fit its shape."""
    shape = output.shape
    received = output.received
    if received is not None:
        count, size = math.prod(shape), output.datatype.size
        if (len(received) != count * size) if size else (output.count_elements() != count):
            raise internal(
                f"output '{name}' of model '{config.name}' has {len(received)} bytes, but shape {format_shape(shape)} "
                f"needs {count} elements of type {output.datatype.name}"
            )
    if spec.reshape is None:
        return output
    batch = shape[:1] if config.batching else ()
    return output.reshaped((*batch, *_as_configured(spec, shape[len(batch) :], shape, config)))


class _Column(NamedTuple):
    """Checked output of an execution, from which requests take their rows.

    `row_bytes` is 0 where rows cannot be cut out of `raw`: BYTES, and empty items.
    """

    datatype: Datatype
    item: Shape
    raw: Buffer
    row_bytes: int
    whole: Tensor


def _column(name: str, outputs: Values, rows: int, config: ModelConfig) -> _Column:
    whole = _whole(name, outputs, rows, config)
    datatype = whole.datatype
    item = whole.shape[1:] if config.batching else whole.shape
    if datatype is dtypes.BYTES:
        return _Column(datatype, item, b"", 0, whole)
    raw = whole.raw
    return _Column(datatype, item, raw, len(raw) // rows if rows else 0, whole)


def _whole(
    name: str,
    outputs: Values,
    rows: int | None,
    config: ModelConfig,
    alone: Inflight | None = None,
) -> Tensor:
    """Return one output of an execution, checked. Raises INTERNAL as `split` does.

    `rows` None: any number of them. `alone` is a request that runs alone: its outputs on a device may stay there.
    """
    spec = config.outputs_by_name[name]
    datatype = spec.datatype
    array: Array | Tensor | None = outputs.get(name)
    if type(array) is not np.ndarray:
        if type(array) is DeviceTensor and alone is not None and name in alone.device_outputs:
            return _as_it_is(name, array, rows, config)
        array = as_array(name, array, config)
    shape: Shape = array.shape
    if config.max_batch_size and (not shape or shape[0] != rows):
        _check_rows(name, shape, rows, config)
    if spec.reshape is not None:
        batch = shape[:1] if config.batching else ()
        array = array.reshape((*batch, *_as_configured(spec, shape[len(batch) :], shape, config)))
        shape = array.shape
    if datatype is dtypes.BYTES:
        for tensor in () if alone is None else alone.inputs.values():
            # An input that comes back as it was keeps its raw form.
            if tensor.datatype is dtypes.BYTES and tensor.array is outputs[name] and not array.flags.writeable:
                return tensor.reshaped(shape)
        try:
            return Tensor.from_array(array, datatype)
        except ModserveError as error:
            raise internal(f"output '{name}' of model '{config.name}': {error.message}") from None
    if array.dtype is not datatype.numpy and array.dtype != datatype.numpy:
        raise _of_type(array.dtype, spec, config)
    # Small outputs are copied once, which costs less than a view does.
    raw = array.tobytes() if array.nbytes <= _SMALL else Tensor(datatype, shape, None, array).raw
    return Tensor(datatype, shape, raw, None)


def _of_type(actual: object, spec: TensorSpec, config: ModelConfig) -> ModserveError:
    return internal(
        f"output '{spec.name}' of model '{config.name}' is of type {actual}, "
        f"but the model configuration says {spec.datatype.config_name}"
    )


def _check_rows(name: str, shape: Shape, rows: int | None, config: ModelConfig) -> None:
    if config.batching and (not shape or (rows is not None and shape[0] != rows)):
        raise internal(
            f"output '{name}' of model '{config.name}' has shape {format_shape(shape)}, "
            f"expected {'a row or more' if rows is None else rows} in the first dimension, as in the inputs"
        )


def _as_configured(spec: TensorSpec, item: Shape, full: Shape, config: ModelConfig) -> Shape:
    """Return the shape that clients see of a reshaped output: variable dimensions keep their order."""
    assert spec.reshape is not None, "only called for reshaped outputs: this is a bug"
    if len(item) != len(spec.reshape) or any(w not in (-1, g) for w, g in zip(spec.reshape, item, strict=True)):
        raise internal(
            f"output '{spec.name}' of model '{config.name}' has shape {format_shape(full)}, "
            f"but the model configuration reshapes it from {format_shape(spec.reshape)}"
        )
    variable = iter([got for want, got in zip(spec.reshape, item, strict=True) if want == -1])
    return tuple(next(variable) if size == -1 else size for size in spec.dims)

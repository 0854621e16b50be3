"""``model_warmup``: samples that each instance runs before it takes requests.

Triton checks most of this only when it creates the instances: its core or the backend refuses a sample's requests. Here
everything is checked with the configuration, with positions in the file.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from modserve.core.configuration.warm_up_config import WARM_UP_FOLDER, DataKind, WarmUp, WarmUpInput
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.sample_data import file_size_fault, file_tensor
from modserve.core.tensors.tensor import Shape
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems
from . import sequences
from .common import DATATYPES

_HERE = "model_warmup"
_KINDS = {kind.value: kind for kind in DataKind}
_MOST_BYTES = 1 << 31
"""Size limit of one input row in bytes: a typing error in `dims` must not exhaust the memory."""
_FILLS_IN = frozenset({"auto"})
"""Backends that generate data for inputs missing in a sample."""
_MOST_ROWS = 1 << 16
"""Largest `batch_size` of a sample, which is also the number of its requests."""


def warm_ups(message: pb.ModelConfig) -> tuple[WarmUp, ...]:
    """Return the samples to run, with valid inputs only. As in Triton, samples without a batch size are skipped."""
    return tuple(
        WarmUp(
            _label(message, index),
            sample.batch_size,
            max(1, sample.count),
            {name: value for name, value in _inputs(sample).items() if value is not None},
        )
        for index, sample in enumerate(message.model_warmup)
        if sample.batch_size
    )


def _inputs(sample: pb.ModelWarmup) -> dict[str, WarmUpInput | None]:
    return {name: _input(sample.inputs[name]) for name in sorted(sample.inputs)}


def _input(value: pb.ModelWarmup.Input) -> WarmUpInput | None:
    kind = _KINDS.get(value.WhichOneof("input_data_type") or "")
    datatype = DATATYPES.get(value.data_type)
    if kind is None or datatype is None:
        return None
    return WarmUpInput(datatype, tuple(value.dims), kind, value.input_data_file if kind is DataKind.FILE else "")


def _label(message: pb.ModelConfig, index: int) -> str:
    return message.model_warmup[index].name or f"number {index + 1}"


def warn(message: pb.ModelConfig, problems: Problems) -> None:
    for index, sample in enumerate(message.model_warmup):
        if not sample.batch_size:
            problems.warn(
                (_HERE, index),
                f"warm-up sample '{_label(message, index)}' has no batch_size and is not run, as in Triton; "
                "expected batch_size: 1 or more",
            )


# Rules


def validate(message: pb.ModelConfig, partial: bool, directory: Path | None) -> Faults:
    """Yield faults of the samples. `directory` is the model's directory; None if its files are not available."""
    if message.HasField("ensemble_scheduling"):
        return  # refused by the ensemble's rules
    for index, sample in enumerate(message.model_warmup):
        label = f"warm-up sample '{_label(message, index)}'"
        for path, text in _sample_faults(sample, message, partial, directory):
            yield (_HERE, index, *path), f"{label}{text}"


def _sample_faults(sample: pb.ModelWarmup, message: pb.ModelConfig, partial: bool, directory: Path | None) -> Faults:
    if text := _batch_size_fault(sample.batch_size, message.max_batch_size, partial):
        yield ("batch_size",), f" {text}"
    dims: dict[str, tuple[int, Shape | None]]
    dims = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in message.input}
    special = _special_inputs(message)
    for name in sorted(sample.inputs):
        value, path = sample.inputs[name], ("inputs", name)
        if name in dims:
            expected = dims[name]
        elif name in special:
            expected = special[name]
        elif partial:
            expected = pb.TYPE_INVALID, None
        else:
            takes = ", ".join(f"'{each}'" for each in (*dims, *special)) or "none"
            yield path, f" has an input '{name}', but the inputs of the model are {takes}"
            continue
        for inner, text in _input_faults(value, *expected, bool(name in dims and message.max_batch_size > 0), partial):
            yield (*path, *inner), f", input '{name}': {text}"
        if directory is not None and (text := _file_fault(value, directory)):
            yield (*path, "input_data_file"), f", input '{name}': {text}"
    if not partial and message.backend not in _FILLS_IN:
        missing = [tensor.name for tensor in message.input if not tensor.optional and tensor.name not in sample.inputs]
        if missing:
            names = ", ".join(f"'{name}'" for name in missing)
            yield (), f" lacks {'input' if len(missing) == 1 else 'inputs'} {names}; only optional inputs may be absent"


def _batch_size_fault(size: int, most: int, partial: bool) -> str:
    if most <= 0 and size > 1 and not partial:
        return f"has batch_size {size}, but the model does not batch (max_batch_size: 0); expected batch_size: 1"
    if 0 < most < size:
        return f"has batch_size {size}, beyond the model's max_batch_size; expected 1 to {most}"
    return f"has batch_size {size}, expected at most {_MOST_ROWS}" if size > _MOST_ROWS else ""


def _special_inputs(message: pb.ModelConfig) -> Mapping[str, tuple[int, Shape | None]]:
    """Return the sequence controls and states, which the server adds; a sample may set their values."""
    batching = sequences.sequence_batching(message)
    if batching is None:
        return {}
    controls = {each.name: (pb.DataType.Value(each.datatype.config_name), (1,)) for each in batching.controls}
    states = {each.input_name: (pb.DataType.Value(each.datatype.config_name), each.dims) for each in batching.states}
    return {**controls, **states}


def _input_faults(
    value: pb.ModelWarmup.Input, data_type: int, dims: Shape | None, batching: bool, partial: bool
) -> Faults:
    datatype = DATATYPES.get(value.data_type)
    shown = pb.DataType.Name(data_type) if data_type in pb.DataType.values() else str(data_type)
    if datatype is None and value.data_type in pb.DataType.values():
        of_model = "" if data_type == pb.TYPE_INVALID else f" {shown}"
        yield ("data_type",), f"it needs the data_type{of_model} of the model's input"
    elif datatype is not None and data_type not in (value.data_type, pb.TYPE_INVALID):
        yield ("data_type",), f"its data_type is {datatype.config_name}, but the model's input has {shown}"
    if value.WhichOneof("input_data_type") is None:
        yield (), f"it has no data; expected one of {', '.join(_KINDS)}"
    yield from _dims_faults(value, datatype, dims, batching, partial)


def _dims_faults(
    value: pb.ModelWarmup.Input, datatype: Datatype | None, dims: Shape | None, batching: bool, partial: bool
) -> Iterator[tuple[FieldPath, str]]:
    got = tuple(value.dims)
    variable = [index for index, size in enumerate(got) if size < 0]
    if variable:
        yield ("dims", variable[0]), f"its dims are {list(got)}; expected a size of 0 or more in place of {min(got)}"
        return
    if dims is not None and (dims or not partial) and not _fit(dims, got):
        hint = "; the batch dimension is left out" if batching and _fit(dims, got[1:]) else ""
        yield ("dims",), f"its dims are {list(got)}, but those of the model's input are {list(dims)}{hint}"
        return
    size = (datatype or dtypes.BYTES).size or 8
    for length in got:
        size *= length
    if size > _MOST_BYTES:
        yield ("dims",), f"its dims {list(got)} are {size} bytes; expected at most {_MOST_BYTES}"


def _fit(dims: Shape, got: Shape) -> bool:
    return len(dims) == len(got) and all(size in (-1, one) for size, one in zip(dims, got, strict=True))


def _file_fault(value: pb.ModelWarmup.Input, directory: Path) -> str:
    """Return the fault of an input's file; empty if there is no fault or no file."""
    made = _input(value)
    if made is None or made.kind is not DataKind.FILE or any(size < 0 for size in made.dims):
        return ""
    name = made.file
    if not name or "\0" in name or os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
        return f"input_data_file is '{name}'; expected a file below the folder '{WARM_UP_FOLDER}' of the model"
    path = directory / WARM_UP_FOLDER / name
    try:
        if made.datatype.size:
            return file_size_fault(path, made.datatype, made.dims)
        file_tensor(path, made.datatype, made.dims)
    except ModserveError as error:
        return error.message
    except OSError as error:
        return f"cannot read '{path}': {error.strerror}"
    return ""

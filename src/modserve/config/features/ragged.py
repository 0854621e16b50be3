"""Ragged inputs, and ``batch_input`` and ``batch_output``, the inputs and outputs of whole batches.

Rules and texts follow Triton: its core (``ValidateBatchIO``) for the configuration, and its ONNX Runtime backend for
the comparison with the model.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from modserve.core.configuration.merging import BatchInput, BatchInputKind
from modserve.core.configuration.model_config import DescribedTensor, ModelDescription
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import format_shape
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from .common import AnyTensor

_DATATYPES = {pb.TYPE_INT32: dtypes.INT32, pb.TYPE_FP32: dtypes.FP32}
"""Allowed datatypes of batch inputs."""


def is_ragged(tensor: AnyTensor) -> bool:
    return isinstance(tensor, pb.ModelInput) and tensor.allow_ragged_batch


def targets(message: pb.ModelConfig) -> Set[str]:
    """Return the names of the model's batch inputs."""
    return {name for batch_input in message.batch_input for name in batch_input.target_name}


def batch_outputs(message: pb.ModelConfig) -> dict[str, str]:
    """Return the source input of each batch output, which has the same shapes."""
    return {
        name: batch_output.source_input[0]
        for batch_output in message.batch_output
        if batch_output.source_input
        for name in batch_output.target_name
    }


def batch_inputs(message: pb.ModelConfig) -> tuple[BatchInput, ...]:
    return tuple(
        BatchInput(
            BatchInputKind(pb.BatchInput.Kind.Name(batch_input.kind)),
            tuple(batch_input.target_name),
            _DATATYPES[batch_input.data_type],
            batch_input.source_input[0],
        )
        for batch_input in message.batch_input
        if _has_kind(batch_input) and batch_input.data_type in _DATATYPES and batch_input.source_input
    )


def _has_kind(batch_input: pb.BatchInput) -> bool:
    return batch_input.kind in pb.BatchInput.Kind.values()


# Rules for the configuration


def validate(message: pb.ModelConfig, partial: bool) -> Faults:
    inputs = {tensor.name: tensor for tensor in message.input}
    outputs = {tensor.name: tensor for tensor in message.output}
    sources = None if partial and not inputs else inputs
    for index, batch_input in enumerate(message.batch_input):
        kind = pb.BatchInput.Kind.Name(batch_input.kind) if _has_kind(batch_input) else str(batch_input.kind)
        yield from _source_faults("input", index, kind, batch_input.source_input, sources)
        if batch_input.data_type not in _DATATYPES:
            yield ("batch_input", index, "data_type"), "batch input data type must be TYPE_INT32 or TYPE_FP32"
        yield from _target_faults(index, message)
    seen: set[str] = set()
    for index, batch_output in enumerate(message.batch_output):
        here: FieldPath = ("batch_output", index)
        yield from _source_faults("output", index, "BATCH_SCATTER_WITH_INPUT_SHAPE", batch_output.source_input, sources)
        if not batch_output.target_name:
            yield (*here, "target_name"), "batch output must name the outputs it is for in 'target_name'"
        for place, name in enumerate(batch_output.target_name):
            if name not in outputs and not (partial and not outputs):
                yield (*here, "target_name", place), f"unknown target output name '{name}'"
            if name in seen:
                yield (*here, "target_name", place), f"target output name '{name}' can only be specified once"
            seen.add(name)
        if not partial:
            for text in _scatter_faults(batch_output, inputs, outputs, message.max_batch_size > 0):
                yield (*here, "source_input"), text


def _source_faults(side: str, index: int, kind: str, sources: Sequence[str], inputs: Collection[str] | None) -> Faults:
    """Yield faults of source inputs. `inputs` is None while unknown."""
    path: FieldPath = (f"batch_{side}", index, "source_input")
    if len(sources) != 1:
        yield path, f"batch {side} kind '{kind}' expects 1 source input, got {len(sources)}"
    for place, name in enumerate(sources):
        if inputs is not None and name not in inputs:
            yield (*path, place), f"unknown source input name '{name}'"


def _target_faults(index: int, message: pb.ModelConfig) -> Faults:
    """Yield faults of target names. Stricter than Triton, where an input with two sources loses one's content."""
    here: FieldPath = ("batch_input", index, "target_name")
    others = {tensor.name for tensor in message.input}
    for earlier in message.batch_input[:index]:
        others.update(earlier.target_name)
    names = message.batch_input[index].target_name
    if not names:
        yield here[:-1], "batch input must name the inputs it is for in 'target_name'"
    for place, name in enumerate(names):
        if name in others or name in names[:place]:
            text = f"batch input target name '{name}' is also an input or another batch input's target"
            yield (*here, place), text


def _scatter_faults(
    scattered: pb.BatchOutput, inputs: Mapping[str, AnyTensor], outputs: Mapping[str, AnyTensor], batching: bool
) -> Iterator[str]:
    """Yield faults for response dimensions that the source input does not determine."""
    source = inputs.get(next(iter(scattered.source_input), ""))
    if source is None:
        return
    label = f"source input '{source.name}'"
    if isinstance(source, pb.ModelInput) and source.optional:
        yield f"{label} of a batch output must not be optional: its shape is that of the output"
    rank = len(_model_dims(source)) + batching
    for name in scattered.target_name:
        if name not in outputs:
            continue
        full = [-1] * batching + _model_dims(outputs[name])
        beyond = [place for place, size in enumerate(full) if size == -1 and place >= rank]
        if beyond:
            takes = f"has a variable dimension {beyond[0]}, which it takes from {label}"
            yield f"output '{name}' {takes}, and that has only {rank} dimensions"


def _model_dims(tensor: AnyTensor) -> list[int]:
    return list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


# Comparison with the model


def compare(message: pb.ModelConfig, description: ModelDescription) -> Faults:
    described = {tensor.name: tensor for tensor in description.inputs}
    for index, tensor in enumerate(message.input):
        if tensor.allow_ragged_batch and tensor.name in described:
            shape = described[tensor.name].shape
            head = f"unable to load model '{message.name}', configuration expects model provides input with shape [-1]"
            path: FieldPath = ("input", index, "allow_ragged_batch")
            if tensor.optional:
                yield path, f"{head} for ragged input '{tensor.name}', which is not supported for optional input"
            if shape != (-1,):
                yield path, f"{head}  for ragged input '{tensor.name}', model provides {format_shape(shape)}"
    for index, batch_input in enumerate(message.batch_input):
        for place, name in enumerate(batch_input.target_name):
            path = ("batch_input", index, "target_name", place)
            if name not in described:
                yield path, f"unexpected inference input '{name}', allowed inputs are: {', '.join(sorted(described))}"
            elif _has_kind(batch_input) and batch_input.data_type in _DATATYPES:
                for text in _batch_input_faults(batch_input, described[name]):
                    yield path, f"unable to load model '{message.name}', {text}"


def _batch_input_faults(batch_input: pb.BatchInput, tensor: DescribedTensor) -> Iterator[str]:
    """Yield faults of a batch input. Stricter than Triton, where every request would fail."""
    datatype, provided = pb.DataType.Name(batch_input.data_type), tensor.datatype.config_name
    if datatype != provided:
        yield f"configuration expects datatype {datatype} for batch input '{tensor.name}', model provides {provided}"
    rank = 2 if batch_input.kind == pb.BatchInput.BATCH_ITEM_SHAPE else 1
    if len(tensor.shape) != rank:
        label = f"batch input '{tensor.name}' of kind {pb.BatchInput.Kind.Name(batch_input.kind)}"
        yield f"{label} has {rank} dimensions, model provides {format_shape(tensor.shape)}"

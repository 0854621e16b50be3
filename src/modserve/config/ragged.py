"""Ragged inputs, and the inputs and outputs of whole batches. The rules and texts are Triton's.

Those for a configuration by itself are the core's (``ValidateBatchIO``), those against the model the ONNX Runtime
backend's.
"""

from collections.abc import Iterator, Mapping

from modserve.core import dtypes
from modserve.core.merging import BatchInput, BatchInputKind
from modserve.core.model_config import DescribedTensor, ModelDescription
from modserve.pb import inference as pb

from .problems import FieldPath, Problems

_DATATYPES = {pb.TYPE_INT32: dtypes.INT32, pb.TYPE_FP32: dtypes.FP32}
_RANKS = {pb.BatchInput.BATCH_ITEM_SHAPE: 2}
"""The dimensions of batch inputs; those not named have one."""


def validate(message: pb.ModelConfig, problems: Problems, *, partial: bool) -> None:
    """`partial`: inputs and outputs that are not there at all may still be filled in, and are looked at then."""
    inputs = {each.name: each for each in message.input}
    outputs = {each.name: each for each in message.output}
    sources = None if partial and not inputs else inputs
    for index, wanted in enumerate(message.batch_input):
        here: FieldPath = ("batch_input", index)
        kind = pb.BatchInput.Kind.Name(wanted.kind) if _known(wanted) else str(wanted.kind)
        _sources("input", kind, wanted, here, sources, problems)
        if wanted.data_type not in _DATATYPES:
            problems.add((*here, "data_type"), "batch input data type must be TYPE_INT32 or TYPE_FP32")
        _targets(index, message, problems)
    seen: set[str] = set()
    for index, scattered in enumerate(message.batch_output):
        here = ("batch_output", index)
        _sources("output", "BATCH_SCATTER_WITH_INPUT_SHAPE", scattered, here, sources, problems)
        if not scattered.target_name:
            problems.add((*here, "target_name"), "batch output must name the outputs it is for in 'target_name'")
        for place, name in enumerate(scattered.target_name):
            path = (*here, "target_name", place)
            if name not in outputs and not (partial and not outputs):
                problems.add(path, f"unknown target output name '{name}'")
            if name in seen:
                problems.add(path, f"target output name '{name}' can only be specified once")
            seen.add(name)
        if not partial:
            for text in _scatter_faults(scattered, inputs, outputs, message.max_batch_size > 0):
                problems.add((*here, "source_input"), text)


def _known(wanted: pb.BatchInput) -> bool:
    return wanted.kind in pb.BatchInput.Kind.values()


def _sources(
    side: str,
    kind: str,
    wanted: pb.BatchInput | pb.BatchOutput,
    here: FieldPath,
    inputs: Mapping[str, pb.ModelInput] | None,
    problems: Problems,
) -> None:
    if len(wanted.source_input) != 1:
        problems.add(
            (*here, "source_input"),
            f"batch {side} kind '{kind}' expects 1 source input, got {len(wanted.source_input)}",
        )
    for place, name in enumerate(wanted.source_input):
        if inputs is not None and name not in inputs:
            problems.add((*here, "source_input", place), f"unknown source input name '{name}'")


def _targets(index: int, message: pb.ModelConfig, problems: Problems) -> None:
    """Stricter than Triton, where such an input has two contents, of which one is lost."""
    here: FieldPath = ("batch_input", index, "target_name")
    taken = {each.name for each in message.input}
    for earlier in message.batch_input[:index]:
        taken.update(earlier.target_name)
    names = message.batch_input[index].target_name
    if not names:
        problems.add(here[:-1], "batch input must name the inputs it is for in 'target_name'")
    for place, name in enumerate(names):
        if name in taken or name in names[:place]:
            problems.add(
                (*here, place), f"batch input target name '{name}' is also an input or another batch input's target"
            )


def _scatter_faults(
    scattered: pb.BatchOutput,
    inputs: Mapping[str, pb.ModelInput],
    outputs: Mapping[str, pb.ModelOutput],
    batching: bool,
) -> Iterator[str]:
    """What can not be filled in when a response is made."""
    source = inputs.get(next(iter(scattered.source_input), ""))
    if source is None:
        return
    if source.optional:
        yield f"source input '{source.name}' of a batch output must not be optional: its shape is that of the output"
    rank = len(source.reshape.shape if source.HasField("reshape") else source.dims) + batching
    for name in scattered.target_name:
        output = outputs.get(name)
        if output is None:
            continue
        dims = list(output.reshape.shape if output.HasField("reshape") else output.dims)
        full = [-1, *dims] if batching else dims
        beyond = [place for place, size in enumerate(full) if size == -1 and place >= rank]
        if beyond:
            yield (
                f"output '{name}' has a variable dimension {beyond[0]}, which it takes from source input "
                f"'{source.name}', and that has only {rank} dimensions"
            )


def compare(message: pb.ModelConfig, description: ModelDescription, problems: Problems) -> None:
    """Adds where ragged and batch inputs are not what the model has."""
    known = {each.name: each for each in description.inputs}
    for index, tensor in enumerate(message.input):
        if tensor.allow_ragged_batch and tensor.name in known:
            for text in _ragged_faults(tensor, known[tensor.name], message.name):
                problems.add(("input", index, "allow_ragged_batch"), text)
    for index, wanted in enumerate(message.batch_input):
        for place, name in enumerate(wanted.target_name):
            path: FieldPath = ("batch_input", index, "target_name", place)
            if name not in known:
                allowed = ", ".join(sorted(known))
                problems.add(path, f"unexpected inference input '{name}', allowed inputs are: {allowed}")
            elif _known(wanted) and wanted.data_type in _DATATYPES:
                for text in _batch_input_faults(wanted, known[name], message.name):
                    problems.add(path, text)


def _ragged_faults(tensor: pb.ModelInput, known: DescribedTensor, model: str) -> Iterator[str]:
    head = f"unable to load model '{model}', configuration expects model provides input with shape [-1]"
    if tensor.optional:
        yield f"{head} for ragged input '{tensor.name}', which is not supported for optional input"
    if known.shape != (-1,):
        yield f"{head}  for ragged input '{tensor.name}', model provides {_show(known.shape)}"


def _batch_input_faults(wanted: pb.BatchInput, known: DescribedTensor, model: str) -> Iterator[str]:
    """Stricter than Triton, where every request would fail."""
    written, provided = pb.DataType.Name(wanted.data_type), known.datatype.config_name
    if written != provided:
        yield (
            f"unable to load model '{model}', configuration expects datatype {written} for batch input "
            f"'{known.name}', model provides {provided}"
        )
    rank = _RANKS.get(wanted.kind, 1)
    if len(known.shape) != rank:
        kind = pb.BatchInput.Kind.Name(wanted.kind)
        yield (
            f"unable to load model '{model}', batch input '{known.name}' of kind {kind} has {rank} dimensions, model "
            f"provides {_show(known.shape)}"
        )


def _show(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def is_ragged(tensor: pb.ModelInput | pb.ModelOutput) -> bool:
    return isinstance(tensor, pb.ModelInput) and tensor.allow_ragged_batch


def targets(message: pb.ModelConfig) -> set[str]:
    """The model's inputs that no client gives."""
    return {name for wanted in message.batch_input for name in wanted.target_name}


def batch_inputs(message: pb.ModelConfig) -> tuple[BatchInput, ...]:
    """The values of a message; those that are no good are left out."""
    return tuple(
        BatchInput(
            BatchInputKind(pb.BatchInput.Kind.Name(wanted.kind)),
            tuple(wanted.target_name),
            _DATATYPES[wanted.data_type],
            wanted.source_input[0],
        )
        for wanted in message.batch_input
        if _known(wanted) and wanted.data_type in _DATATYPES and wanted.source_input
    )


def batch_outputs(message: pb.ModelConfig) -> dict[str, str]:
    """Outputs and the inputs whose shapes they take."""
    return {
        name: scattered.source_input[0]
        for scattered in message.batch_output
        if scattered.source_input
        for name in scattered.target_name
    }

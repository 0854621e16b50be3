"""Completion of a configuration from the engine's description of the model.

Follows ``AutoCompleteConfig`` of Triton's ONNX Runtime backend, with two differences. Tensors without a data type or
dims are completed, too. A variable first dimension is not a batch dimension if the names of dimensions or a trial
(`ModelDescription.batching_obstacle`) show otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from google.protobuf import json_format
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from modserve.core.configuration.model_config import DescribedTensor, ModelDescription
from modserve.pb import inference as pb

from .features import ragged, sequences, tensors
from .text.problems import Problems

_NO_NAME = re.compile(r"\W*|none|unknown|dynamic", re.IGNORECASE)
"""Meaningless names that exporters give to dimensions."""
_NUMBERED = re.compile(r".*\d", re.DOTALL)
"""Generated names, which may differ between tensors for the same dimension."""


def complete(message: pb.ModelConfig, description: ModelDescription, problems: Problems) -> bool:
    """Complete the message in place. Returns False and adds a problem if max_batch_size does not fit the model."""
    # As in Triton, max_batch_size stays unchanged if inputs and outputs are configured.
    fits = bool(message.input and message.output) or _batching(message, description, problems)
    if not message.input or description.adds_tensors:
        listed = {*tensors.server_inputs(message), *(tensor.name for tensor in message.input)}
        for tensor in description.inputs:
            if tensor.name not in listed:
                message.input.add(name=tensor.name, optional=tensor.optional)
    if not message.output or description.adds_tensors:
        listed = {*sequences.state_outputs(message), *(tensor.name for tensor in message.output)}
        for tensor in description.outputs:
            if tensor.name not in listed:
                message.output.add(name=tensor.name)
    batching = message.max_batch_size > 0
    _tensors(message.input, description.inputs, batching)
    _tensors(message.output, description.outputs, batching)
    return fits


def apply_traits(message: pb.ModelConfig, description: ModelDescription, problems: Problems) -> None:
    """Fill in the description's properties of the whole model, unless the configuration has them.

    Adds a problem where the two contradict each other; ``ModelConfig`` of Triton's Python backend raises ValueError.
    """
    most = description.max_batch_size
    if most is not None:
        if message.max_batch_size > most:
            problems.add(
                ("max_batch_size",),
                f"max_batch_size of model '{message.name}' is {message.max_batch_size}, but the model takes {most}",
            )
        else:
            message.max_batch_size = message.max_batch_size or most
    decoupled = description.decoupled
    if decoupled is not None:
        if not message.HasField("model_transaction_policy"):
            message.model_transaction_policy.decoupled = decoupled
        elif message.model_transaction_policy.decoupled != decoupled:
            problems.add(
                ("model_transaction_policy",),
                f"the model is {'' if decoupled else 'not '}decoupled, but the configuration of model '{message.name}' "
                "says the opposite",
            )
    for key, value in description.parameters.items():
        if key not in message.parameters:
            message.parameters[key].string_value = value
    if message.WhichOneof("scheduling_choice") is None:
        if description.sequence_batching is not None:
            try:
                json_format.ParseDict(dict(description.sequence_batching), message.sequence_batching)
            except json_format.ParseError as error:
                problems.add(
                    (), f"the engine of model '{message.name}' describes an invalid sequence_batching: {error}"
                )
            message.sequence_batching.SetInParent()
        elif description.dynamic_batching:
            message.dynamic_batching.SetInParent()


def with_batch_dimension(message: pb.ModelConfig, description: ModelDescription) -> ModelDescription:
    """Return the description with complete shapes, adding a batch dimension that the engine omits."""
    if description.batch_dimension or not message.max_batch_size:
        return description

    def full(tensors: Sequence[DescribedTensor]) -> tuple[DescribedTensor, ...]:
        return tuple(replace(tensor, shape=(-1, *tensor.shape)) for tensor in tensors)

    return replace(description, inputs=full(description.inputs), outputs=full(description.outputs))


def _batching(message: pb.ModelConfig, description: ModelDescription, problems: Problems) -> bool:
    """Set max_batch_size and the dynamic batcher for a model that can batch. Returns False like `complete`.

    A model can batch if every tensor has a variable first dimension, which is the batch dimension.
    """
    tensors = (*description.inputs, *description.outputs)
    if not all(tensor.shape[:1] == (-1,) for tensor in tensors if tensor.rank_known):
        if message.max_batch_size > 0:
            problems.add(
                ("max_batch_size",),
                f"autofill failed for model '{message.name}': model does not support batching while non-zero "
                "max_batch_size is specified; the first dimension of every tensor would have to be variable, but the "
                "model has " + ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in tensors),
            )
        return message.max_batch_size <= 0
    if message.max_batch_size == 0 and description.default_max_batch_size > 0:
        if not all(tensor.rank_known for tensor in tensors):
            return True
        if obstacle := _symbols_obstacle(tensors) or description.batching_obstacle:
            problems.fill_in(
                ("max_batch_size",),
                f"model '{message.name}' runs each request on its own, because the first dimension of its tensors is "
                f"not shown to be a batch: {obstacle}. If it is one, write max_batch_size: N into config.pbtxt",
            )
            return True
        message.max_batch_size = description.default_max_batch_size
        problems.fill_in(
            ("max_batch_size",),
            f"max_batch_size of model '{message.name}' is set to {message.max_batch_size}: the model can batch, and "
            "its configuration does not set it",
        )
    may_merge = description.dynamic_batching is not False
    if message.max_batch_size > 1 and may_merge and message.WhichOneof("scheduling_choice") is None:
        message.dynamic_batching.SetInParent()
    return True


def _symbols_obstacle(tensors: Sequence[DescribedTensor]) -> str:
    """Return the reason why the names of dimensions rule out a batch dimension; empty if they do not."""
    first = {tensor.name: tensor.symbols[0] for tensor in tensors if tensor.symbols}
    first = {name: symbol for name, symbol in first.items() if not _NO_NAME.fullmatch(symbol)}
    for tensor in tensors:
        for axis, symbol in enumerate(tensor.symbols):
            if axis and symbol in first.values():
                return f"dimension {axis} of '{tensor.name}' is '{symbol}', too"
    names = {symbol: name for name, symbol in first.items() if not _NUMBERED.fullmatch(symbol)}
    if len(names) > 1:
        return "it is " + ", ".join(f"'{symbol}' in '{name}'" for symbol, name in names.items())
    return ""


def _tensors(
    tensors: RepeatedCompositeFieldContainer[pb.ModelInput] | RepeatedCompositeFieldContainer[pb.ModelOutput],
    described: Sequence[DescribedTensor],
    batching: bool,
) -> None:
    by_name = {tensor.name: tensor for tensor in described}
    for tensor in tensors:
        model_tensor = by_name.get(tensor.name)
        if model_tensor is None:
            continue
        if tensor.data_type == pb.TYPE_INVALID:
            tensor.data_type = pb.DataType.Value(model_tensor.datatype.config_name)
        if ragged.is_ragged(tensor) and not tensor.dims:
            tensor.dims.append(-1)  # the model receives one dimension, whatever the requests' shapes
        if not tensor.dims and not tensor.HasField("reshape"):
            tensor.dims.extend(model_tensor.shape[1:] if batching else model_tensor.shape)
            if not tensor.dims:
                # Dims cannot be empty. A scalar is [1], which the reshape removes for a batching model. Without
                # batching, Triton forbids the reshape and accepts [1] for a scalar.
                tensor.dims.append(1)
                if batching:
                    tensor.reshape.SetInParent()

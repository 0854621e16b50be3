"""``sequence_batching``: strategies, control inputs and states. The texts are Triton's."""

from collections.abc import Iterator, Mapping
from typing import Final

from modserve.core.configuration.model_config import DescribedTensor, ModelDescription
from modserve.core.configuration.sequence_config import (
    CORRELATION_DATATYPES,
    DEFAULT_IDLE_NS,
    MICROSECOND_NS,
    Control,
    ControlKind,
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    SequenceState,
    Strategy,
)
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, format_shape
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from .common import DATATYPES, VALID_SIZE
from .directory import filename_fault

_HERE: Final = "sequence_batching"
_KINDS: Mapping[int, ControlKind] = {
    pb.ModelSequenceBatching.Control.Kind.Value(kind.value): kind for kind in ControlKind
}
_VALUES: Mapping[str, Datatype] = {
    "int32_false_true": dtypes.INT32,
    "fp32_false_true": dtypes.FP32,
    "bool_false_true": dtypes.BOOL,
}
"""The fields that may hold a control's values, and the datatype of its input then."""
_ANY_VALUES = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"

_Control = pb.ModelSequenceBatching.Control
_State = pb.ModelSequenceBatching.State


def normalise(message: pb.ModelConfig) -> None:
    if not message.HasField(_HERE):
        return
    batching = message.sequence_batching
    if not batching.max_sequence_idle_microseconds:
        batching.max_sequence_idle_microseconds = DEFAULT_IDLE_NS // MICROSECOND_NS
    if batching.HasField("oldest") and not batching.oldest.preferred_batch_size and message.max_batch_size > 0:
        batching.oldest.preferred_batch_size.append(message.max_batch_size)


# The value


def sequence_batching(message: pb.ModelConfig) -> SequenceBatching | None:
    if not message.HasField(_HERE):
        return None
    batching = message.sequence_batching
    datatypes = ((state, DATATYPES.get(state.data_type)) for state in batching.state)
    return SequenceBatching(
        strategy=_strategy(batching),
        controls=tuple(_controls(batching)),
        states=tuple(_state(state, datatype) for state, datatype in datatypes if datatype is not None),
        max_idle_ns=batching.max_sequence_idle_microseconds * MICROSECOND_NS or DEFAULT_IDLE_NS,
        iterative=batching.iterative_sequence,
    )


def _strategy(batching: pb.ModelSequenceBatching) -> Strategy:
    oldest, direct = batching.oldest, batching.direct
    if batching.HasField("oldest"):
        return OldestStrategy(
            oldest.max_candidate_sequences,
            tuple(sorted(set(oldest.preferred_batch_size))),
            oldest.max_queue_delay_microseconds * MICROSECOND_NS,
            oldest.preserve_ordering,
        )
    return DirectStrategy(direct.max_queue_delay_microseconds * MICROSECOND_NS, direct.minimum_slot_utilization)


def _controls(batching: pb.ModelSequenceBatching) -> Iterator[Control]:
    for tensor in batching.control_input:
        for control in tensor.control:
            kind = _KINDS.get(control.kind)
            if kind is ControlKind.CORRID:
                datatype = DATATYPES.get(control.data_type)
                if datatype is not None:
                    yield Control(tensor.name, kind, datatype)
            elif kind is not None:
                for field, datatype in _VALUES.items():
                    values = getattr(control, field)
                    if len(values) == 2:
                        yield Control(tensor.name, kind, datatype, (values[0], values[1]))


def _state(state: _State, datatype: Datatype) -> SequenceState:
    contents = (InitialState(each.name, tuple(each.dims), each.data_file) for each in state.initial_state)
    initial = next(contents, None)
    return SequenceState(
        state.input_name, state.output_name, datatype, tuple(state.dims), initial, state.use_growable_memory
    )


def inputs(message: pb.ModelConfig) -> Mapping[str, FieldPath]:
    """Return the model's inputs that are controls and states, and the places where the configuration names them."""
    batching = message.sequence_batching
    return {
        **{tensor.name: (_HERE, "control_input", index, "name") for index, tensor in enumerate(batching.control_input)},
        **{state.input_name: (_HERE, "state", index, "input_name") for index, state in enumerate(batching.state)},
    }


def controls(message: pb.ModelConfig) -> set[str]:
    """Return the names of the control inputs."""
    return {tensor.name for tensor in message.sequence_batching.control_input}


def count_inputs(message: pb.ModelConfig) -> int:
    """Return the number of the model's inputs that are controls or states, counted like Triton."""
    batching = message.sequence_batching
    kinds = {control.kind for tensor in batching.control_input for control in tensor.control if tensor.name}
    return len(kinds & _KINDS.keys()) + len(batching.state)


def state_outputs(message: pb.ModelConfig) -> set[str]:
    """Return the model's outputs that are states."""
    return {state.output_name for state in message.sequence_batching.state}


# The rules by itself


def validate(message: pb.ModelConfig) -> Faults:
    if not message.HasField(_HERE):
        return
    name, batching = message.name, message.sequence_batching
    yield from _control_faults(message)
    yield from _state_faults(message)
    for index, size in enumerate(batching.oldest.preferred_batch_size):
        path: FieldPath = (_HERE, "oldest", "preferred_batch_size", index)
        if size <= 0:
            yield path, f"sequence batching preferred batch size must be positive for {name}"
        elif size > message.max_batch_size:
            yield path, f"sequence batching preferred batch size must be <= max batch size for {name}"
    if batching.oldest.max_candidate_sequences < 0:
        text = f"sequence batching max candidate sequences must be >= 0 for {name}"
        yield (_HERE, "oldest", "max_candidate_sequences"), text
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
        yield (_HERE, "direct", "minimum_slot_utilization"), text


def _control_faults(message: pb.ModelConfig) -> Faults:
    name = message.name
    client_inputs = {tensor.name for tensor in message.input}
    seen_tensors: set[str] = set()
    seen_kinds: set[int] = set()
    for index, tensor in enumerate(message.sequence_batching.control_input):
        here: FieldPath = (_HERE, "control_input", index)
        label = f"sequence batching control tensor '{tensor.name}'"
        if not tensor.name:
            yield here, f"sequence batching control tensor must have a name for {name}"
        elif tensor.name in seen_tensors or len(tensor.control) > 1:
            yield (*here, "name"), f"{label} is specified for multiple control kinds for {name}"
        elif tensor.name in client_inputs:
            yield (*here, "name"), f"{label} is also an input that clients send for {name}"
        seen_tensors.add(tensor.name)
        for place, control in enumerate(tensor.control):
            path: FieldPath = (*here, "control", place)
            kind = _KINDS.get(control.kind)
            if kind is None:
                continue  # another rule reports it
            if control.kind in seen_kinds:
                yield path, f"sequence batching specifies multiple {kind.value} tensors for {name}"
            seen_kinds.add(control.kind)
            if text := _control_fault(control, kind, name):
                yield path, text


def _control_fault(control: _Control, kind: ControlKind, model: str) -> str:
    label = f"{kind.value} for {model}"
    fields = [field for field in _VALUES if len(getattr(control, field))]
    if kind is ControlKind.CORRID:
        if fields:
            return f"sequence batching must not specify either {_ANY_VALUES} for {label}"
        if DATATYPES.get(control.data_type) in CORRELATION_DATATYPES:
            return ""
        *names, last = [datatype.config_name for datatype in CORRELATION_DATATYPES]
        return f"unexpected data type for control {label}. Allowed data types are {', '.join(names)} and {last}"
    if not fields:
        return f"sequence batching must specify either {_ANY_VALUES} for {label}"
    if len(fields) > 1:
        return f"sequence batching specifies more than one from {_ANY_VALUES.replace(' or ', ' and ')} for {label}"
    if len(getattr(control, fields[0])) != 2:
        return f"sequence batching control '{fields[0]}' must have exactly 2 entries for {label}"
    return ""


def _state_faults(message: pb.ModelConfig) -> Faults:
    input_names = {tensor.name for tensor in message.input}
    input_names |= {tensor.name for tensor in message.sequence_batching.control_input}
    output_names: set[str] = set()
    for index, state in enumerate(message.sequence_batching.state):
        for path, text in (
            *_missing_of_state(state, message.name),
            *_find_repeated_name("input", state.input_name, input_names),
            *_find_repeated_name("output", state.output_name, output_names),
            *_initial_faults(state),
        ):
            yield (_HERE, "state", index, *path), text


def _missing_of_state(state: _State, model: str) -> Faults:
    label = f"sequence batching state '{state.input_name}'"
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            yield (), f"sequence batching state must specify '{field}' for {model}"
    for field in ("data_type", "dims"):
        if not getattr(state, field):
            yield (), f"{label} must specify '{field}' for {model}"
    for place, size in enumerate(state.dims):
        if size < 1 and size != -1:
            yield ("dims", place), f"{label} dimension must be {VALID_SIZE} for {model}"


def _find_repeated_name(side: str, name: str, names: set[str]) -> Faults:
    """Yield a fault if a state's name is among the `names` before it; add it to them."""
    if name and name in names:
        yield (f"{side}_name",), f"State {side} name '{name}' specified more than once."
    names.add(name)


def _initial_faults(state: _State) -> Faults:
    """Yield the faults that Triton's ``GenerateInitialStateData`` reports."""
    name, count = state.input_name, len(state.initial_state)
    label = f"state input '{name}'"
    if count > 1:
        text = f"initial_state field for {label} must contain exactly one or zero element. Found '{count}' elements."
        yield ("initial_state",), text
        return
    for initial in state.initial_state:
        here: FieldPath = ("initial_state", 0)
        if initial.data_type != state.data_type:
            field = f"'initial_state' field of state '{name}'"
            yield here, f"The data type used for {field} does not match the state data type."
        if not initial.name:
            yield here, f"Field 'name' must be set when using initial_state for {label}."
        yield from (((*here, "dims"), text) for text in _initial_dims_faults(state, initial))
        if initial.WhichOneof("state_data") is None:
            yield here, f"initial_state setting expects state '{name}' to have state_data set"
        what = f"initial_state file path '{{}}' for {label}"
        if text := filename_fault(initial.data_file, what, "the initial_state directory"):
            yield (*here, "data_file"), text


def _initial_dims_faults(state: _State, initial: pb.ModelSequenceBatching.InitialState) -> Iterator[str]:
    name = state.input_name
    if len(initial.dims) != len(state.dims):
        counts = f"{len(initial.dims)} != {len(state.dims)}"
        expected = f"the size of 'state' dimensions for state input '{name}'. {counts}"
        yield f"Number of dimensions in 'initial_state' doesn't match {expected}"
        return
    for initial_size, size in zip(initial.dims, state.dims, strict=True):
        if initial_size < 0:
            yield f"'initial_state' field for state input name '{name}' contains variable dimensions."
        elif size not in (-1, initial_size):
            sizes = f"{initial_size} != {size}"
            yield f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {sizes}"


# Against the model


def compare(message: pb.ModelConfig, description: ModelDescription, shapes: bool) -> Faults:
    """Compares the shapes of states only with `shapes`."""
    if not message.HasField(_HERE):
        return
    batching, name = message.sequence_batching, message.name
    paths = inputs(message)
    described_inputs = {tensor.name: tensor for tensor in description.inputs}
    described_outputs = {tensor.name: tensor for tensor in description.outputs}
    for control in _controls(batching):
        path = paths[control.name]
        tensor = described_inputs.get(control.name)
        if tensor is None:
            head = f"configuration specified sequence control '{control.name}'"
            yield path, f"{head}, but model does not provide that input"
            continue
        label = f"unable to load model '{name}', sequence control '{control.name}'"
        item = tensor.shape[1:] if message.max_batch_size > 0 else tensor.shape
        if item not in ((1,), (-1,)):
            yield path, f"{label} in model has dims {format_shape(item)} but dims [1] is expected"
        yield from _datatype_faults(label, control.datatype, tensor, path)
    for index, state in enumerate(batching.state):
        datatype = DATATYPES.get(state.data_type)
        if datatype is None:
            continue
        has_faults = any((*_missing_of_state(state, name), *_initial_faults(state)))
        for side, state_name, described in (
            ("input", state.input_name, described_inputs),
            ("output", state.output_name, described_outputs),
        ):
            path = (_HERE, "state", index, f"{side}_name")
            tensor = described.get(state_name)
            if tensor is None:
                names = ", ".join(sorted(described))
                yield path, f"configuration specified state {side} '{state_name}', but the model only has: {names}"
                continue
            label = f"unable to load model '{name}', state {side} '{state_name}'"
            yield from _datatype_faults(label, datatype, tensor, path)
            if shapes and not has_faults:
                fault = _shape_fault(side, _state(state, datatype), tensor.shape, message.max_batch_size)
                if fault:
                    yield (_HERE, "state", index, "dims"), f"{label}, {fault}"


def _shape_fault(side: str, state: SequenceState, shape: Shape, max_batch_size: int) -> str:
    """Return the reason why every request with this state would fail, or "". Triton only finds out when they do.

    The model must take the state that a sequence starts with, and must not return one that cannot be kept.
    """
    batch: Shape = (-1,) if max_batch_size > 0 else ()
    dims = state.initial_dims if side == "input" else state.dims
    is_output = side == "output"
    fits = len(shape) == len(batch) + len(dims) and all(
        model_size in (-1, size) or (is_output and (size == -1 or state.growable))
        for model_size, size in zip(shape[len(batch) :], dims, strict=True)
    )
    # A model that only takes one row at a time fits, too, if there is never a second row.
    if fits and (shape[: len(batch)] == batch or (shape[0] == max_batch_size == 1)):
        return ""
    gives, says = ("gives", "specifies") if is_output else ("expects", "begins a sequence with")
    actual, configured = format_shape(shape), format_shape((*batch, *dims))
    return f"the model {gives} shape {actual} but the model configuration {says} shape {configured}"


def _datatype_faults(label: str, datatype: Datatype, tensor: DescribedTensor, path: FieldPath) -> Faults:
    if tensor.datatype != datatype:
        actual, configured = tensor.datatype.config_name, datatype.config_name
        text = f"the model expects data-type {actual} but the model configuration specifies data-type {configured}"
        yield path, f"{label}, {text}"

"""``sequence_batching``: its defaults, its rules in Triton's words, and its value."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.model_config import DescribedTensor, ModelDescription
from modserve.core.sequence_config import (
    CORRELATION_DATATYPES,
    DEFAULT_IDLE_NS,
    MICROSECOND_NS,
    Control,
    ControlKind,
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    State,
    Strategy,
)
from modserve.core.tensor import Shape, format_shape
from modserve.pb import inference as pb

from .problems import FieldPath, Problems

_HERE: Final = "sequence_batching"
_KINDS: Mapping[int, ControlKind] = {
    pb.ModelSequenceBatching.Control.Kind.Value(kind.value): kind for kind in ControlKind
}
_VALUES: Mapping[str, Datatype] = {
    "int32_false_true": dtypes.INT32,
    "fp32_false_true": dtypes.FP32,
    "bool_false_true": dtypes.BOOL,
}
"""The fields that give a control's values, and what its input then is."""
_DATATYPES = {pb.DataType.Value(row.config_name): row for row in dtypes.ALL}


def normalise(message: pb.ModelConfig) -> None:
    """Fills in what Triton fills in."""
    batching = message.sequence_batching
    if not batching.max_sequence_idle_microseconds:
        batching.max_sequence_idle_microseconds = DEFAULT_IDLE_NS // MICROSECOND_NS
    if batching.HasField("oldest") and not batching.oldest.preferred_batch_size and message.max_batch_size > 0:
        batching.oldest.preferred_batch_size.append(message.max_batch_size)


# The value


def to_value(message: pb.ModelConfig) -> SequenceBatching:
    """What does not fit is left out."""
    batching = message.sequence_batching
    return SequenceBatching(
        strategy=_strategy(batching),
        controls=tuple(_controls(batching)),
        states=tuple(_states(batching)),
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
                datatype = _DATATYPES.get(control.data_type)
                if datatype is not None:
                    yield Control(tensor.name, kind, datatype)
            elif kind is not None:
                for field, datatype in _VALUES.items():
                    values = getattr(control, field)
                    if len(values) == 2:
                        yield Control(tensor.name, kind, datatype, (values[0], values[1]))


def _states(batching: pb.ModelSequenceBatching) -> Iterator[State]:
    for state in batching.state:
        datatype = _DATATYPES.get(state.data_type)
        if datatype is not None:
            yield _state(state, datatype)


def _state(state: pb.ModelSequenceBatching.State, datatype: Datatype) -> State:
    initial = None
    for given in state.initial_state:
        initial = InitialState(given.name, tuple(given.dims), given.data_file)
    return State(state.input_name, state.output_name, datatype, tuple(state.dims), initial, state.use_growable_memory)


def inputs(message: pb.ModelConfig) -> Mapping[str, FieldPath]:
    """The model's inputs that no client gives, and where the configuration names them."""
    batching = message.sequence_batching
    found: dict[str, FieldPath] = {}
    for index, control in enumerate(batching.control_input):
        found[control.name] = (_HERE, "control_input", index, "name")
    for index, state in enumerate(batching.state):
        found[state.input_name] = (_HERE, "state", index, "input_name")
    return found


def controls(message: pb.ModelConfig) -> set[str]:
    """The names of the control inputs."""
    return {tensor.name for tensor in message.sequence_batching.control_input}


def count_inputs(message: pb.ModelConfig) -> int:
    """How many of the model's inputs are controls or states, as Triton counts them."""
    batching = message.sequence_batching
    kinds = {control.kind for tensor in batching.control_input for control in tensor.control if tensor.name}
    return len(kinds & _KINDS.keys()) + len(batching.state)


def state_outputs(message: pb.ModelConfig) -> set[str]:
    """The model's outputs that are states."""
    return {state.output_name for state in message.sequence_batching.state}


# Its rules


def validate(message: pb.ModelConfig, problems: Problems) -> None:
    """Adds every rule that is broken."""
    if not message.HasField(_HERE):
        return
    name, batching = message.name, message.sequence_batching
    _validate_controls(message, problems)
    _validate_states(message, problems)
    for index, size in enumerate(batching.oldest.preferred_batch_size):
        path: FieldPath = (_HERE, "oldest", "preferred_batch_size", index)
        if size <= 0:
            problems.add(path, f"sequence batching preferred batch size must be positive for {name}")
        elif size > message.max_batch_size:
            problems.add(path, f"sequence batching preferred batch size must be <= max batch size for {name}")
    if batching.oldest.max_candidate_sequences < 0:
        problems.add(
            (_HERE, "oldest", "max_candidate_sequences"),
            f"sequence batching max candidate sequences must be >= 0 for {name}",
        )
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        problems.add(
            (_HERE, "direct", "minimum_slot_utilization"),
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}",
        )


def _validate_controls(message: pb.ModelConfig, problems: Problems) -> None:
    name = message.name
    clients = {tensor.name for tensor in message.input}
    seen_tensors: set[str] = set()
    seen_kinds: set[int] = set()
    for index, tensor in enumerate(message.sequence_batching.control_input):
        here: FieldPath = (_HERE, "control_input", index)
        if not tensor.name:
            problems.add(here, f"sequence batching control tensor must have a name for {name}")
        elif tensor.name in seen_tensors or len(tensor.control) > 1:
            problems.add(
                (*here, "name"),
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {name}",
            )
        elif tensor.name in clients:
            problems.add(
                (*here, "name"),
                f"sequence batching control tensor '{tensor.name}' is an input of clients too for {name}",
            )
        seen_tensors.add(tensor.name)
        for place, control in enumerate(tensor.control):
            path: FieldPath = (*here, "control", place)
            kind = _KINDS.get(control.kind)
            if kind is None:
                continue  # another rule says so
            if control.kind in seen_kinds:
                problems.add(path, f"sequence batching specifies multiple {kind.value} tensors for {name}")
            seen_kinds.add(control.kind)
            fault = _correlation_fault(control) if kind is ControlKind.CORRID else _values_fault(control)
            if fault:
                problems.add(path, fault.replace("<kind>", kind.value).replace("<model>", name))


def _values_fault(control: pb.ModelSequenceBatching.Control) -> str:
    given = [field for field in _VALUES if len(getattr(control, field))]
    if not given:
        return (
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "<kind> for <model>"
        )
    if len(given) > 1:
        return (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            "'bool_false_true' for <kind> for <model>"
        )
    if len(getattr(control, given[0])) != 2:
        return f"sequence batching control '{given[0]}' must have exactly 2 entries for <kind> for <model>"
    return ""


def _correlation_fault(control: pb.ModelSequenceBatching.Control) -> str:
    if any(len(getattr(control, field)) for field in _VALUES):
        return (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "<kind> for <model>"
        )
    if _DATATYPES.get(control.data_type) not in CORRELATION_DATATYPES:
        return (
            "unexpected data type for control <kind> for <model>. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
    return ""


@dataclass(frozen=True, slots=True)
class _Fault:
    text: str
    path: FieldPath = ()


def _validate_states(message: pb.ModelConfig, problems: Problems) -> None:
    taken = {tensor.name for tensor in message.input}
    taken |= {tensor.name for tensor in message.sequence_batching.control_input}
    outputs: set[str] = set()
    for index, state in enumerate(message.sequence_batching.state):
        here: FieldPath = (_HERE, "state", index)
        faults = [
            *_missing_of_state(state, message.name),
            *_names_of_state(state, taken, outputs),
            *_initial_faults(state),
        ]
        for fault in faults:
            problems.add((*here, *fault.path), fault.text)
        taken.add(state.input_name)
        outputs.add(state.output_name)


def _missing_of_state(state: pb.ModelSequenceBatching.State, model: str) -> Iterator[_Fault]:
    who = f"sequence batching state '{state.input_name}'"
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            yield _Fault(f"sequence batching state must specify '{field}' for {model}")
    if state.data_type == pb.TYPE_INVALID:
        yield _Fault(f"{who} must specify 'data_type' for {model}")
    if not state.dims:
        yield _Fault(f"{who} must specify 'dims' for {model}")
    for place, size in enumerate(state.dims):
        if size < 1 and size != -1:
            text = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
            yield _Fault(f"{who} {text} for {model}", ("dims", place))


def _names_of_state(state: pb.ModelSequenceBatching.State, taken: set[str], outputs: set[str]) -> Iterator[_Fault]:
    if state.input_name and state.input_name in taken:
        yield _Fault(f"State input name '{state.input_name}' specified more than once.", ("input_name",))
    if state.output_name and state.output_name in outputs:
        yield _Fault(f"State output name '{state.output_name}' specified more than once.", ("output_name",))


def _initial_faults(state: pb.ModelSequenceBatching.State) -> Iterator[_Fault]:
    """As Triton's ``GenerateInitialStateData``."""
    who = f"state input '{state.input_name}'"
    count = len(state.initial_state)
    if count > 1:
        yield _Fault(
            f"initial_state field for {who} must contain exactly one or zero element. Found '{count}' elements.",
            ("initial_state",),
        )
        return
    for initial in state.initial_state:
        here: FieldPath = ("initial_state", 0)
        if initial.data_type != state.data_type:
            yield _Fault(
                f"The data type used for 'initial_state' field of state '{state.input_name}' does not match the state "
                "data type.",
                here,
            )
        if not initial.name:
            yield _Fault(f"Field 'name' must be set when using initial_state for {who}.", here)
        yield from _initial_dims_faults(state, initial)
        if initial.WhichOneof("state_data") is None:
            yield _Fault(f"initial_state setting expects state '{state.input_name}' to have state_data set", here)
        if _escapes(initial.data_file):
            yield _Fault(
                f"initial_state file path '{initial.data_file}' for {who} is outside the initial_state directory",
                (*here, "data_file"),
            )


def _initial_dims_faults(
    state: pb.ModelSequenceBatching.State, initial: pb.ModelSequenceBatching.InitialState
) -> Iterator[_Fault]:
    path: FieldPath = ("initial_state", 0, "dims")
    if len(initial.dims) != len(state.dims):
        yield _Fault(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{state.input_name}'. {len(initial.dims)} != {len(state.dims)}",
            path,
        )
        return
    for given, wanted in zip(initial.dims, state.dims, strict=True):
        if given < 0:
            yield _Fault(
                f"'initial_state' field for state input name '{state.input_name}' contains variable dimensions.", path
            )
        elif wanted not in (-1, given):
            yield _Fault(
                f"'initial_state' dim for input name '{state.input_name}' doesn't match 'state' dim description. "
                f"{given} != {wanted}",
                path,
            )


def _escapes(filename: str) -> bool:
    return os.path.isabs(filename) or os.path.normpath(filename).split(os.sep)[0] == os.pardir


# Against the model


def compare(message: pb.ModelConfig, description: ModelDescription, problems: Problems, *, shapes: bool) -> None:
    """Adds where the controls and states differ from what the model has; shapes of states only with `shapes`."""
    batching, name = to_value(message), message.name
    if not message.HasField(_HERE):
        return
    paths = inputs(message)
    known_inputs = {tensor.name: tensor for tensor in description.inputs}
    known_outputs = {tensor.name: tensor for tensor in description.outputs}
    for control in batching.controls:
        who = f"unable to load model '{name}', sequence control '{control.name}'"
        known = known_inputs.get(control.name)
        if known is None:
            problems.add(
                paths[control.name],
                f"configuration specified sequence control '{control.name}', but model does not provide that input",
            )
            continue
        item = known.shape[1:] if message.max_batch_size > 0 else known.shape
        if item not in ((1,), (-1,)):
            dims = ",".join(map(str, item))
            problems.add(paths[control.name], f"{who} in model has dims [{dims}] but dims [1] is expected")
        _compare_datatype(who, control.datatype, known, paths[control.name], problems)
    for index, state in enumerate(message.sequence_batching.state):
        datatype = _DATATYPES.get(state.data_type)
        if datatype is None:
            continue
        sides: Sequence[tuple[str, str, Mapping[str, DescribedTensor]]] = (
            ("input", state.input_name, known_inputs),
            ("output", state.output_name, known_outputs),
        )
        for side, tensor, has in sides:
            path: FieldPath = (_HERE, "state", index, f"{side}_name")
            known = has.get(tensor)
            if known is None:
                there = ", ".join(sorted(has))
                problems.add(path, f"configuration specified state {side} '{tensor}', but the model only has: {there}")
                continue
            who = f"unable to load model '{name}', state {side} '{tensor}'"
            _compare_datatype(who, datatype, known, path, problems)
            if shapes and not any((*_missing_of_state(state, name), *_initial_faults(state))):
                fault = _shape_fault(side, _state(state, datatype), known.shape, message.max_batch_size)
                if fault:
                    problems.add((_HERE, "state", index, "dims"), f"{who}, {fault}")


def _shape_fault(side: str, state: State, known: Shape, max_batch_size: int) -> str:
    """Why every request with this state would fail, "" if none need to. Triton finds out when they do.

    The model must take what a sequence begins with, and not give what may not be kept.
    """
    batch: Shape = (-1,) if max_batch_size > 0 else ()
    dims = state.initial_dims if side == "input" else state.dims
    free = side == "output"
    fits = len(known) == len(batch) + len(dims) and all(
        wanted in (-1, size) or (free and (size == -1 or state.growable))
        for wanted, size in zip(known[len(batch) :], dims, strict=True)
    )
    # A model that only takes one row at a time fits, too, where there is never another.
    if fits and (known[: len(batch)] == batch or (known[0] == max_batch_size == 1)):
        return ""
    gives, says = ("gives", "specifies") if free else ("expects", "begins a sequence with")
    return (
        f"the model {gives} shape {format_shape(known)} but the model configuration {says} shape "
        f"{format_shape((*batch, *dims))}"
    )


def _compare_datatype(
    who: str, datatype: Datatype, known: DescribedTensor, path: FieldPath, problems: Problems
) -> None:
    if known.datatype is not datatype:
        problems.add(
            path,
            f"{who}, the model expects data-type {known.datatype.config_name} but the model configuration specifies "
            f"data-type {datatype.config_name}",
        )

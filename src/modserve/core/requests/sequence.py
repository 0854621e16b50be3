"""Sequence parameters of a request, and the tensors that the model gets in addition to the client's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..configuration.sequence_config import Control, ControlKind, InitialState, SequenceBatching, SequenceState
from ..errors import ModserveError, internal, invalid
from ..tensors import dtypes
from ..tensors.dtypes import Datatype
from ..tensors.tensor import Array, Shape, Tensor, TruncatedError, decode_elements, format_shape, matches
from .request import InferenceRequest

SequenceId: TypeAlias = int | str
SequenceKey: TypeAlias = SequenceId | tuple[str, SequenceId]
"""Unique key of a sequence: its id, and its tenant if it has one, since each tenant has its own ids."""

_LONGEST_ID = 128
_LARGEST_ID = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Membership:
    """A request's place in a sequence. `id` is 0 or empty for a request outside all sequences."""

    id: SequenceId
    start: bool = False
    end: bool = False
    tenant: str = ""

    @property
    def key(self) -> SequenceKey:
        return (self.tenant, self.id) if self.tenant else self.id


def membership(request: InferenceRequest) -> Membership:
    """Read the place of a request in a sequence. Raises INVALID_ARG for parameters of a wrong type."""
    parameters = request.parameters
    id = parameters.get("sequence_id", 0)
    if type(id) is str:
        size = len(id.encode(errors="surrogatepass"))
        if size > _LONGEST_ID:
            limit = f"longer than {_LONGEST_ID} characters, got {size} (bytes of UTF-8)"
            raise invalid(f"{request.label}string correlation ID cannot be {limit}")
    elif type(id) is not int or not 0 <= id <= _LARGEST_ID:
        raise invalid(
            f"{request.label}parameter 'sequence_id' is {id!r}, expected a string or an integer from 0 to 2^64 - 1"
        )
    tenant = "" if request.tenant is None else request.tenant.name
    return Membership(id, _flag(request, "sequence_start"), _flag(request, "sequence_end"), tenant)


def _flag(request: InferenceRequest, name: str) -> bool:
    value = request.parameters.get(name, False)
    if type(value) is not bool:
        raise invalid(f"{request.label}parameter '{name}' is {value!r}, expected true or false")
    return value


def check_id(id: SequenceId, request: InferenceRequest, batching: SequenceBatching) -> None:
    """Check an id. Raises INVALID_ARG for one that the model's correlation id input does not take."""
    control = batching.correlation
    datatype = dtypes.BYTES if isinstance(id, str) else dtypes.UINT64
    if control is not None and (datatype is dtypes.BYTES) is not (control.datatype is dtypes.BYTES):
        expected = f"model '{request.model_name}' expects '{control.datatype.name}'"
        what = f"sequence batching control '{control.name}' data-type is '{datatype.name}'"
        raise invalid(f"{request.label}{what}, but {expected}")


class ControlTensors:
    """The control inputs of requests, made once but for the id. Shape [1], or [1,1] with a batch dimension."""

    def __init__(self, controls: tuple[Control, ...], batching: bool) -> None:
        self._shape: Shape = (1, 1) if batching else (1,)
        self._correlation = next((control for control in controls if control.kind is ControlKind.CORRID), None)
        flags = [control for control in controls if control.kind is not ControlKind.CORRID]
        self._flags = {
            (start, end): self._make_tensors(
                flags, {ControlKind.START: start, ControlKind.END: end, ControlKind.READY: True}
            )
            for start in (False, True)
            for end in (False, True)
        }
        self._absent = self._make_tensors(flags, {})

    def of(self, member: Membership) -> dict[str, Tensor]:
        return self._with_id(self._flags[member.start, member.end], member.id)

    def absent(self) -> dict[str, Tensor]:
        """Return the control inputs of a padding row in a batch."""
        return self._with_id(self._absent, 0)

    def _make_tensors(self, flags: list[Control], values: Mapping[ControlKind, bool]) -> dict[str, Tensor]:
        states = [(flag, values.get(flag.kind, False)) for flag in flags]
        return {flag.name: _fill(flag.datatype, self._shape, flag.values[is_on]) for flag, is_on in states}

    def _with_id(self, flags: Mapping[str, Tensor], value: SequenceId) -> dict[str, Tensor]:
        control = self._correlation
        if control is None:
            return dict(flags)
        content: object = value
        if control.datatype is dtypes.BYTES:
            content = value.encode(errors="surrogatepass") if isinstance(value, str) else b""
        elif isinstance(value, int):
            # As Triton: a large id loses its upper half, or turns negative.
            content = np.uint64(value).astype(control.datatype.numpy)
        return {**flags, control.name: _fill(control.datatype, self._shape, content)}


def file_state(state: SequenceState, initial: InitialState, content: bytes) -> Tensor:
    """Read the state in a file, without a batch dimension. The file has raw elements as in the protocol.

    Raises INVALID_ARG for a file that is too short, for numbers with Triton's text. Excess bytes are ignored.
    """
    datatype, dims = state.datatype, initial.dims
    count = int(np.prod(dims))
    if datatype.size:
        size = count * datatype.size
        if len(content) < size:
            provided = f"the data provided from {initial.file} only has {len(content)} bytes."
            raise invalid(f"initial_state setting expects {size} bytes, but {provided}")
        return Tensor.from_raw(datatype, dims, content[:size])
    try:
        elements = len(decode_elements(content))
    except TruncatedError as error:
        elements = error.complete
    if elements != count:
        expected = f"{count} strings, each preceded by its length in 4 bytes"
        provided = f"the data provided from {initial.file} has {elements}"
        raise invalid(f"initial_state setting expects {expected}, but {provided}")
    return Tensor.from_raw(datatype, dims, content)


class StateTable:
    """Initial states of a model's sequences. `files` has the states from files, by input name."""

    def __init__(self, states: tuple[SequenceState, ...], batching: bool, files: Mapping[str, Tensor]) -> None:
        self.states = states
        self._batch: Shape = (1,) if batching else ()
        self._initial: dict[str, Tensor] = {}
        for state in states:
            name, shape = state.input_name, (*self._batch, *state.initial_dims)
            self._initial[name] = files[name].reshaped(shape) if name in files else _zeros(state.datatype, shape)

    def fresh(self) -> "SequenceStates":
        return SequenceStates(self.states, dict(self._initial), self._batch)


class SequenceStates:
    """The states of one sequence between its requests.

    The thread that executes a request of the sequence writes them, and the event loop's thread reads them afterwards.
    """

    __slots__ = ("_batch", "_states", "inputs")

    def __init__(self, states: tuple[SequenceState, ...], inputs: dict[str, Tensor], batch: Shape) -> None:
        self._states = states
        self._batch = batch
        self.inputs: Mapping[str, Tensor] = inputs
        """The states for the next request, by input name."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(tensor.shape for tensor in self.inputs.values())

    def keep(
        self, model: str, outputs: Mapping[str, Array], row: int | None = None, rows: int = 1, *, some: bool = False
    ) -> None:
        """Take the states for the next request from an execution's outputs; from row `row` of `rows` if there are rows.

        With `some`, missing states stay as they are. Raises INTERNAL, and leaves all states unchanged, if the outputs
        do not match the model configuration.
        """
        inputs = dict(self.inputs)
        for state in self._states:
            array = outputs.get(state.output_name)
            if array is None:
                if some:
                    continue
                raise internal(f"model '{model}' returned no state '{state.output_name}'")
            if row is not None:
                if not array.shape or array.shape[0] != rows:
                    raise _wrong(model, state, f"has shape {format_shape(array.shape)}, expected {rows} rows")
                array = array[row : row + 1]
            if not self._fits(state, array.shape):
                wrong, right = format_shape(array.shape), format_shape((*self._batch, *state.dims))
                shapes = f"has shape {wrong}, but the model configuration says {right}"
                raise _wrong(model, state, f"{shapes}; a dimension whose size may change is -1")
            if state.datatype.size:
                if array.dtype != state.datatype.numpy:
                    raise _wrong(model, state, f"is of type {array.dtype}, expected {state.datatype.config_name}")
                array = array.copy()  # the engine may use its memory again
            inputs[state.input_name] = Tensor.from_array(array, state.datatype)
        self.inputs = inputs

    def _fits(self, state: SequenceState, shape: Shape) -> bool:
        """Return True if a sequence may continue with a state of this shape. Triton accepts any shape."""
        expected = (*self._batch, *([-1] * len(state.dims) if state.growable else state.dims))
        return matches(expected, shape)


def zeros_like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return zeros of the same datatypes and shapes, for padding rows in a batch."""
    return {name: _zeros(tensor.datatype, tensor.shape) for name, tensor in tensors.items()}


def _fill(datatype: Datatype, shape: Shape, value: Any) -> Tensor:
    """Return a read-only tensor, which many requests share."""
    tensor = Tensor.from_array(np.full(shape, value, dtype=datatype.numpy), datatype)
    tensor.array.setflags(write=False)
    return tensor


def _zeros(datatype: Datatype, shape: Shape) -> Tensor:
    return _fill(datatype, shape, 0 if datatype.size else b"")


def _wrong(model: str, state: SequenceState, problem: str) -> ModserveError:
    return internal(f"state '{state.output_name}' of model '{model}' {problem}")

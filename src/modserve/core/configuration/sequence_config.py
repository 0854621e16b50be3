"""The configuration of sequence batching as frozen values (``sequence_batching`` of config.pbtxt)."""

import enum
from dataclasses import dataclass
from typing import TypeAlias

from ..tensors import dtypes
from ..tensors.dtypes import Datatype
from ..tensors.tensor import Shape

MICROSECOND_NS = 1000
DEFAULT_IDLE_NS = 1_000_000 * MICROSECOND_NS

CORRELATION_DATATYPES = (dtypes.UINT64, dtypes.INT64, dtypes.UINT32, dtypes.INT32, dtypes.BYTES)
"""The datatypes in which a model can take a correlation id."""


class ControlKind(enum.Enum):
    """Content of a control input about a request."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class Control:
    """A control input. `values` stand for false and true; there are none for the correlation id."""

    name: str
    kind: ControlKind
    datatype: Datatype
    values: tuple[float, float] = (0, 1)


@dataclass(frozen=True, slots=True)
class InitialState:
    """State at the start of a sequence: zeros, or the content of `file` in the model's ``initial_state``."""

    name: str
    dims: Shape
    file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """An output that becomes an input of the next request of its sequence.

    `dims` leave out the batch dimension; -1 stands for any size, and such a size may differ from request to request.
    """

    input_name: str
    output_name: str
    datatype: Datatype
    dims: Shape
    initial: InitialState | None = None
    growable: bool = False
    """True if any size may differ from `dims` (``use_growable_memory``)."""

    @property
    def initial_dims(self) -> Shape:
        """Without an initial state, dimensions of any size begin as 1, as in Triton."""
        return self.initial.dims if self.initial is not None else tuple(max(1, size) for size in self.dims)


@dataclass(frozen=True, slots=True)
class DirectStrategy:
    """Strategy that gives each sequence a row in the batches of one instance."""

    max_queue_delay_ns: int = 0
    minimum_slot_utilization: float = 0.0
    """The share of rows that, if filled, run without waiting for the delay."""


@dataclass(frozen=True, slots=True)
class OldestStrategy:
    """Strategy that gives each instance a number of sequences and batches their oldest requests."""

    max_candidate_sequences: int = 0
    """Sequences per instance; 0: as many as fit a batch."""
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    """Without effect: an instance runs one batch after the other, and responds in order."""


Strategy: TypeAlias = DirectStrategy | OldestStrategy


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """Scheduling of sequences, and the model's inputs about them."""

    strategy: Strategy = DirectStrategy()
    controls: tuple[Control, ...] = ()
    states: tuple[SequenceState, ...] = ()
    max_idle_ns: int = DEFAULT_IDLE_NS
    """Idle time without a request after which a sequence ends."""
    iterative: bool = False
    """The model may reschedule a request; each request is a sequence of its own."""

    @property
    def inputs(self) -> tuple[tuple[str, Datatype], ...]:
        """The inputs that the server makes, not the client."""
        controls = [(control.name, control.datatype) for control in self.controls]
        return (*controls, *((state.input_name, state.datatype) for state in self.states))

    @property
    def state_outputs(self) -> tuple[tuple[str, Datatype], ...]:
        return tuple((state.output_name, state.datatype) for state in self.states)

    @property
    def correlation(self) -> Control | None:
        """The control input for the correlation id."""
        return next((control for control in self.controls if control.kind is ControlKind.CORRID), None)

"""Decides which steps of an ensemble are ready, by the available tensors: pure rules over the graph of its steps.

The rules are from Triton's ensemble scheduler (core, ensemble_scheduler.cc). Conditions are an addition.
"""

import enum
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from modserve.core.configuration.ensemble_config import EnsembleConfig, Step
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import internal, invalid
from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Shape, Tensor, as_reshape, format_shape, matches

SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")


class MissingReason(enum.Enum):
    """Reason that a tensor is known to be missing."""

    ABSENT = "absent"
    """The request omitted an optional input, or a model omitted an output."""
    SKIPPED = "skipped"
    """No step that ran produced it, here or in an ensemble used as a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the ensemble. `batch_size`: of its request, 0 without a batch dimension.

    `sequence`: sequence parameters for it, if they differ from the request's.
    """

    tensor: Tensor
    batch_size: int = 0
    sequence: Mapping[str, ParameterValue] | None = None


Entry: TypeAlias = Value | MissingReason
Sequenced: TypeAlias = Mapping[str, ParameterValue] | None


class StepPlan:
    """Steps needed for some of an ensemble's outputs, and the tensors between them."""

    def __init__(self, ensembling: EnsembleConfig, outputs: Iterable[str]) -> None:
        self.outputs = frozenset(outputs)
        self.steps = ensembling.steps
        self.most_inflight = ensembling.max_inflight_requests
        """Maximum concurrent requests of each step, over all requests to the ensemble; 0 for no limit."""
        self.needed = _find_needed(ensembling.steps, self.outputs)
        tensors = self.outputs | {tensor for index in self.needed for tensor in self.steps[index].needs}
        consumers: dict[str, list[int]] = {}
        for index in self.needed:
            for tensor in sorted(self.steps[index].needs):
                consumers.setdefault(tensor, []).append(index)
        self.consumers: Mapping[str, Sequence[int]] = consumers
        self.uses = Counter({tensor: len(indices) for tensor, indices in consumers.items()})
        """Number of reads of each tensor."""
        self.uses.update(self.outputs)
        self.writers = Counter(
            tensor for index in self.needed for tensor in self.steps[index].outputs.values() if tensor in tensors
        )
        """Number of steps that may produce each tensor: one, unless they have conditions."""
        self.requested: Mapping[int, tuple[str, ...]] = {
            index: tuple(name for name, tensor in self.steps[index].outputs.items() if tensor in tensors)
            for index in self.needed
        }
        """Outputs that each step requests of its model."""
        read_here = self.outputs.union(*({step.when.tensor} for step in self.steps if step.when))
        self.between: Mapping[int, frozenset[str]] = {
            index: frozenset(name for name in names if self.steps[index].outputs[name] not in read_here)
            for index, names in self.requested.items()
        }
        """Outputs of each step that only other steps read: they may stay in device memory."""
        self.needs: tuple[tuple[str, int | None], ...] = tuple(
            dict.fromkeys((self.steps[index].model, self.steps[index].version) for index in self.needed)
        )
        """The needed models, with their versions."""


def _find_needed(steps: Sequence[Step], outputs: frozenset[str]) -> tuple[int, ...]:
    """Return the needed steps, found backwards from the outputs."""
    needed: set[int] = set()
    tensors = set(outputs)
    while writers := {i for i, step in enumerate(steps) if not tensors.isdisjoint(step.outputs.values())} - needed:
        needed |= writers
        tensors.update(*(steps[index].needs for index in writers))
    return tuple(sorted(needed))


class Wave:
    """Related tensors: of a request, or derived from one response of a decoupled step.

    `order`: position of its response among all responses to the request: the order of the originating wave, and the
    number of the response in it. `held`: number of its steps that wait because of their limit.
    """

    __slots__ = ("_entries", "_plan", "_started", "_uses", "_waited", "_writers", "held", "order")

    def __init__(self, plan: StepPlan, order: tuple[int, ...] = ()) -> None:
        self.order = order
        self.held = 0
        self._plan = plan
        self._entries: dict[str, Entry] = {}
        self._writers = dict(plan.writers)
        self._uses = dict(plan.uses)
        self._started: set[int] = set()
        self._waited: dict[str, int] = {}

    def settle(self, entries: Mapping[str, Entry], waited_ns: int = 0) -> list[int]:
        """Record new knowledge about tensors. Return the steps that are now ready, which count as started.

        A step is ready when all of its inputs are known, as present or missing. A tensor that several steps may produce
        is known when all of these have run or were skipped. Raises INVALID_ARG if two of them produced it. `waited_ns`:
        see the method of that name.
        """
        touched: set[int] = set()
        for name, entry in entries.items():
            left = self._writers.get(name, 1) - 1
            self._writers[name] = left
            known = self._entries.get(name)
            if isinstance(known, Value) and isinstance(entry, Value):
                raise invalid(f"more than one step produced tensor '{name}': at most one of their conditions may hold")
            if known is None or known is MissingReason.SKIPPED:
                self._entries[name] = entry
            if waited_ns:
                self._waited[name] = max(self._waited.get(name, 0), waited_ns)
            if not left:
                touched.update(self._plan.consumers.get(name, ()))
        ready = [index for index in sorted(touched - self._started) if self._has(self._plan.steps[index].needs)]
        self._started.update(ready)
        return ready

    def _has(self, names: Iterable[str]) -> bool:
        return all(name in self._entries and not self._writers.get(name) for name in names)

    def take(self, index: int) -> tuple[dict[str, Entry], Entry | None]:
        """Take the inputs of a ready step, by their names in its model, and the tensor of its condition."""
        step = self._plan.steps[index]
        inputs = {name: self._entries[tensor] for name, tensor in step.inputs.items()}
        condition = self._entries[step.when.tensor] if step.when else None
        for tensor in step.needs:
            self._count_use(tensor)
        return inputs, condition

    def longest_wait_ns(self, names: Iterable[str]) -> int:
        """Return the time that the steps before these tensors waited in sequence; of branches, the longest counts."""
        return max([self._waited.get(name, 0) for name in names], default=0)

    @property
    def complete(self) -> bool:
        """True if all requested outputs are known."""
        return self._has(self._plan.outputs)

    def outputs(self, names: Iterable[str]) -> dict[str, Entry]:
        return {name: self._entries[name] for name in names}

    def _count_use(self, tensor: str) -> None:
        """Drop a tensor after its last reader: it may be large."""
        self._uses[tensor] -= 1
        if not self._uses[tensor]:
            self._entries[tensor] = MissingReason.ABSENT


def runs(step: Step, inputs: Mapping[str, Entry], condition: Entry | None, optional: Container[str]) -> bool:
    """True if a ready step runs; False if it is skipped.

    It is skipped if its condition does not hold, if skipped steps should have produced an input that its model needs,
    or if it has no inputs left for that reason. Raises INVALID_ARG if the condition cannot be evaluated.
    """
    if step.when is not None and (not isinstance(condition, Value) or not step.when.holds(condition.tensor)):
        return False
    skipped = [name for name, entry in inputs.items() if entry is MissingReason.SKIPPED]
    if any(name not in optional for name in skipped):
        return False
    return not skipped or any(isinstance(entry, Value) for entry in inputs.values())


def follow_up(
    step: Step, response: InferenceResponse, requested: Iterable[str], batch_size: int, sequence: Sequenced
) -> dict[str, Entry]:
    """Return the ensemble's tensors from a step's response; omitted outputs are known to be missing."""
    outputs = response.outputs
    entries: dict[str, Entry] = {}
    for name in requested:
        missing = MissingReason.SKIPPED if name in response.skipped else MissingReason.ABSENT
        entries[step.outputs[name]] = Value(outputs[name], batch_size, sequence) if name in outputs else missing
    return entries


def wrong_input(
    plan: StepPlan, index: int, inputs: Mapping[str, Entry], config_of: Callable[[int], ModelConfig]
) -> str:
    """Return the input of a refused step that deviates from the configuration of its originating model; empty if none.

    `config_of`: returns the configuration of a step's model. A tensor produced by one of several possible steps is not
    checked.
    """
    step = plan.steps[index]
    for name, entry in inputs.items():
        writers = [
            (number, output)
            for number in plan.needed
            for output, tensor in plan.steps[number].outputs.items()
            if tensor == step.inputs[name]
        ]
        if len(writers) == 1 and isinstance(entry, Value):
            number, output = writers[0]
            if difference := _difference(entry, output, config_of(number)):
                return (
                    f"model '{plan.steps[number].model}' (step {number + 1} of {len(plan.steps)}) returned output "
                    f"'{output}' {difference}; model '{step.model}' cannot take it as input '{name}'"
                )
    return ""


def _difference(value: Value, output: str, config: ModelConfig) -> str:
    """Describe how an output of a model differs from its configuration; empty if it does not."""
    spec, tensor = config.outputs_by_name[output], value.tensor
    if tensor.datatype is not spec.datatype:
        return f"of type {tensor.datatype.config_name}, but its configuration says {spec.datatype.config_name}"
    rows = -1 if config.decoupled else value.batch_size
    dims = (rows, *spec.dims) if value.batch_size else spec.dims
    if matches(dims, tensor.shape):
        return ""
    return f"with shape {format_shape(tensor.shape)}, but its configuration says {format_shape(dims)}"


def fit(tensor: Tensor, batch_size: int, dims: Shape, batching: bool) -> Tensor:
    """Fit a tensor to an input of `dims`, after a batch dimension if `batching`.

    Between models with and without batching, a batch dimension of 1 is added or removed if the shapes fit only then
    (core, EnsembleContext::ReshapeTensorDims).
    """
    shape = tensor.shape
    if batching == (batch_size != 0):
        return tensor
    if batching:
        return tensor.reshaped((1, *shape)) if matches(dims, shape) else tensor
    return tensor if matches(dims, shape) or batch_size != 1 else tensor.reshaped(shape[1:])


def as_output(spec: TensorSpec, value: Value, batching: bool) -> Tensor:
    """Return an ensemble's output in the clients' shape. Raises INTERNAL if it cannot be reshaped."""
    tensor = fit(value.tensor, value.batch_size, spec.dims if spec.reshape is None else spec.reshape, batching)
    if spec.reshape is None:
        return tensor
    batch, item = tensor.shape[:batching], tensor.shape[batching:]
    if not matches(spec.reshape, item):
        raise internal(
            f"output '{spec.name}' has shape {format_shape(tensor.shape)}, but the model configuration reshapes it "
            f"from {format_shape(spec.reshape)}"
        )
    shape = (*batch, *as_reshape(spec.dims, spec.reshape, item))
    assert math.prod(shape) == math.prod(tensor.shape), "the configuration was validated: this is a bug"
    return tensor.reshaped(shape)


def sequence_parameters(
    response: Mapping[str, ParameterValue], request: Mapping[str, ParameterValue]
) -> dict[str, ParameterValue]:
    """Return the sequence parameters of a response that sets some; the id defaults to the request's."""
    defaults = (request.get("sequence_id", 0), False, False)
    return {name: response.get(name, default) for name, default in zip(SEQUENCE_PARAMETERS, defaults, strict=True)}

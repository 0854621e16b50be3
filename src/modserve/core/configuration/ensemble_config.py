"""The configuration of an ensemble as frozen values (``ensemble_scheduling`` of config.pbtxt)."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..errors import invalid
from ..tensors import dtypes
from ..tensors.tensor import Tensor, format_shape

Operand: TypeAlias = bool | int | float | bytes

COMPARISONS: Mapping[str, Callable[[Operand, Operand], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITY = frozenset({"==", "!="})
"""The only comparisons for truth values and texts."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``<tensor> <comparison> <value>``: when a step runs. The tensor must have one element."""

    tensor: str
    comparison: str
    value: Operand

    def __str__(self) -> str:
        value = self.value.decode(errors="replace") if isinstance(self.value, bytes) else self.value
        return f"{self.tensor} {self.comparison} {value!r}"

    def holds(self, tensor: Tensor) -> bool:
        """Return True if `tensor` meets the condition. Raises INVALID_ARG unless it is one element of a fitting type.

        The value is rounded to the type of a floating-point tensor, so 0.1 equals 0.1. Integers are compared exactly.
        """
        array = tensor.array
        if array.size != 1:
            shape = format_shape(tensor.shape)
            raise invalid(f"condition '{self}' needs a tensor of one element, '{self.tensor}' has shape {shape}")
        if not self.fits(tensor.datatype):
            what = f"tensor '{self.tensor}' of type {tensor.datatype}, expected {comparable(tensor.datatype)}"
            raise invalid(f"condition '{self}' cannot be applied to {what}")
        value = _round_to(self.value, tensor.datatype) if tensor.datatype.json_kind == "float" else self.value
        return bool(COMPARISONS[self.comparison](array.reshape(-1).tolist()[0], value))

    def fits(self, datatype: dtypes.Datatype) -> bool:
        """Return True if a tensor of this type is comparable with the value: by its kind, and for numbers its range."""
        value = self.value
        if isinstance(value, bytes) or datatype is dtypes.BYTES:
            return isinstance(value, bytes) and datatype is dtypes.BYTES
        if isinstance(value, bool) or datatype is dtypes.BOOL:
            return isinstance(value, bool) and datatype is dtypes.BOOL
        if datatype.json_kind == "float":
            return math.isfinite(_round_to(value, datatype)) or abs(value) == math.inf
        low, high = _range(datatype)
        return low <= value <= high


def comparable(datatype: dtypes.Datatype) -> str:
    """Return the values that a tensor of this type is comparable with, for messages."""
    if datatype is dtypes.BYTES:
        return "a text, in quotes if it looks like something else"
    if datatype is dtypes.BOOL:
        return "true or false"
    low, high = _range(datatype)
    return f"a number from {low} to {high}" if isinstance(low, int) else f"a number from {low:.6g} to {high:.6g}"


def _round_to(value: Operand, datatype: dtypes.Datatype) -> float:
    """Round a number to a floating-point type; infinite if it is too large."""
    try:
        with np.errstate(over="ignore"):
            return float(datatype.numpy.type(float(value)))
    except OverflowError:
        return math.inf


def _range(datatype: dtypes.Datatype) -> tuple[int, int] | tuple[float, float]:
    """Return the smallest and the largest finite number of a type."""
    if datatype.json_kind == "int":
        whole = np.iinfo(datatype.numpy)
        return whole.min, whole.max
    return -datatype.largest, datatype.largest


@dataclass(frozen=True, slots=True)
class Step:
    """Step of an ensemble: a model. The maps go from its tensor names to the ensemble's. `version` None: the latest."""

    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    when: Condition | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The ensemble's tensors that must be known before it can run."""
        return frozenset(self.inputs.values()) | ({self.when.tensor} if self.when else frozenset())


@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """The steps of an ensemble."""

    steps: tuple[Step, ...]
    max_inflight_requests: int = 0
    """Requests that a step may have under way, of all requests to the ensemble together; 0 = no limit."""
    needs: Mapping[str, frozenset[int | None]] = field(init=False, default_factory=dict)
    """The composing models with their versions."""

    def __post_init__(self) -> None:
        needs: dict[str, frozenset[int | None]] = {}
        for step in self.steps:
            needs[step.model] = needs.get(step.model, frozenset()) | {step.version}
        object.__setattr__(self, "needs", needs)

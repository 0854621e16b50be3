"""An inference request as its client sent it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from .tensor import Tensor

ParameterValue: TypeAlias = bool | int | float | str


@dataclass(slots=True, eq=False)  # not frozen: that takes a microsecond longer
class InferenceRequest:
    """One call as decoded. Tensors have the client's shapes; `core.normalize` checks them against the model.

    `version` None stands for the latest ready one. `outputs` names the requested outputs, empty for all.
    `deadline_ns` is on the monotonic clock; past it the request is dropped wherever it waits; 0 = none. `timeout_ns` is
    how long the client lets it wait in a queue, whose policy says what happens then; 0 = for ever.
    """

    model_name: Final[str]
    inputs: Final[Mapping[str, Tensor]]
    outputs: Final[tuple[str, ...]] = ()
    version: Final[int | None] = None
    id: Final[str] = ""
    parameters: Final[Mapping[str, ParameterValue]] = field(default_factory=dict)
    deadline_ns: Final[int] = 0
    timeout_ns: Final[int] = 0

    @property
    def label(self) -> str:
        """The prefix of messages about this request."""
        return label(self.id)


def timeout_ns(parameters: Mapping[str, ParameterValue]) -> int:
    """The ``timeout`` parameter, which counts microseconds, in nanoseconds; 0 if there is none."""
    timeout = parameters.get("timeout")
    return timeout * 1000 if type(timeout) is int else 0


def label(request_id: str) -> str:
    """How messages about a request begin."""
    return f"[request id: {request_id or '<id_unknown>'}] "

"""An answer, and who takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .errors import ModserveError
from .request import ParameterValue
from .tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class InferenceResponse:
    """One answer. `outputs` are in the order in which the client asked, or that of the configuration."""

    model_name: str
    model_version: int
    outputs: Mapping[str, Tensor]
    id: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)


class ResponseSink(Protocol):
    """Takes the answers of one request, always on the event loop's thread.

    Either `fail` is called once, or `respond` for each answer, the last time with `final` set; nothing follows that.
    Neither may block or raise.
    """

    def respond(self, response: InferenceResponse, final: bool) -> None: ...

    def fail(self, error: ModserveError) -> None: ...

"""The trace of one request, as front ends and models see it."""

from collections.abc import Mapping
from typing import Protocol

from .response import Outcome
from .tensor import Tensor
from .timing import ExecutionTiming
from .version import ModelId


class RequestTrace(Protocol):
    """Implemented by `observability.trace.Trace`. `servable.submit_traced` connects it with a request in flight."""

    request_id: str

    def stamp(self, activity: str, ns: int = 0) -> None:
        """An activity of the front end happens now, or happened at `ns` of the monotonic clock."""

    def submitted(self, inputs: Mapping[str, Tensor], start_ns: int, queue_start_ns: int) -> None:
        """The model has accepted the request."""

    def settled(self, outcome: Outcome, final: bool, timing: ExecutionTiming | None) -> None:
        """An outcome is about to be handed to the request's sink; `timing` is that of its execution."""

    def child(self, model: ModelId) -> "RequestTrace":
        """The trace of a request that the model makes of another one; it ends with that request's final outcome."""

    def end(self) -> None:
        """The response has been sent, or nobody waits for it any more. May be called again."""

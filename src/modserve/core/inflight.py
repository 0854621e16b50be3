"""Our bookkeeping for one accepted request."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from .errors import ModserveError, cancelled
from .request import InferenceRequest
from .response import NOBODY, Outcome, ResponseSink
from .sequence import SequenceStates
from .tensor import Tensor
from .timing import ExecutionTiming
from .version import ModelId

_log = logging.getLogger(__name__)

SINK_FAILED = "the receiver of a response failed"


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


class FlowControl(Protocol):
    """Keeps an engine that responds many times from running ahead of its client: `resources.flow.Flow`."""

    def given(self, size: int) -> None:
        """The engine is about to give a response with tensors of `size` bytes. On any thread, as all methods."""

    def wait(self) -> None:
        """Return when there is room for another response. Blocks."""

    @property
    def room(self) -> bool:
        """Whether `wait` would return at once."""

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when there is room: at once if there is, else on the thread that makes room."""

    def sent(self) -> None:
        """The first unsent response has been sent, or dropped."""

    def progressed(self) -> None:
        """A part of a response has been sent."""

    def release(self) -> None:
        """Nobody sends any more: let the engine go on, now and later."""


@dataclass(slots=True, eq=False, repr=False)
class Inflight:
    """A request between acceptance and its settlement, which happens exactly once.

    `inputs` have the model's shapes (batch dimension kept, reshapes applied). `batch_size` is 0 for models without a
    batch dimension. `length` is that of its paddable dimension, or the number of ragged elements of one item; 0 for
    models without either. `deadline_ns` is when its client stops waiting, `queue_limit_ns` when it has waited
    too long if its execution has not begun; 0 for never, for both. `level` (since `level_ns`) and `arrival` are
    its place in the queue it waits in, `priority` that with which it came there. It never points back to model or
    server; `on_cancel` is set by the queue that holds it, so that a cancelled request leaves at once. `states` are
    those of its sequence, if the model has any, which its execution changes. `callers` are the models that wait for its
    response, the first one at the beginning: none for a client's request.
    """

    request: InferenceRequest
    sink: ResponseSink
    inputs: Mapping[str, Tensor]
    output_names: tuple[str, ...]
    batch_size: int
    shape_key: object
    request_start_ns: int
    deadline_ns: int = 0
    queue_limit_ns: int = 0
    queue_start_ns: int = 0
    length: int = 0
    level: int = -1
    priority: int = 0
    level_ns: int = 0
    arrival: int = 0
    timing: ExecutionTiming | None = None
    trace: RequestTrace | None = None
    """Set by `servable.submit_traced`, None once the request is settled."""
    states: SequenceStates | None = None
    ordered: bool = False
    """Its responses wait for those of the requests before it."""
    flow: FlowControl | None = None
    """For requests with many responses; None for all others."""
    cancelled: bool = False
    settled: bool = False
    on_cancel: "Callable[[Inflight], None] | None" = None
    callers: tuple[ModelId, ...] = ()
    device_outputs: Collection[str] = ()
    """The outputs that may come in the memory of a device. Set, if at all, before the request's execution begins."""

    @property
    def begin_by_ns(self) -> int:
        """When it is too late to begin its execution, for its client or its queue; 0 for never."""
        return min(self.deadline_ns, self.queue_limit_ns) or self.deadline_ns or self.queue_limit_ns

    def sent(self) -> None:
        """One of the outcomes that the sink has received has been sent."""
        if self.flow is not None:
            self.flow.sent()

    def sent_some(self) -> None:
        """A part of an outcome that the sink has received has been sent."""
        if self.flow is not None:
            self.flow.progressed()

    def settle(self, outcome: Outcome, final: bool = True) -> None:
        """Hand an outcome to the sink. Outcomes after the final one are ignored. Never raises.

        With the final outcome the request and its sink let go of each other: most sinks hold the request, and as a
        cycle both would keep their tensors until the garbage collector runs, which counts objects and not bytes.
        """
        if self.settled:
            return
        sink, trace = self.sink, self.trace
        if final:
            self.settled = True
            self.sink = NOBODY
            self.trace = None
            if self.flow is not None:
                self.flow.release()
        try:
            if trace is not None:
                trace.settled(outcome, final, self.timing)
            sink.settle(outcome, final)
        except Exception:  # must not reach the engine's other requests
            _log.exception(SINK_FAILED)

    def cancel(self) -> None:
        """The client no longer wants a response. Safe to call at any time, on the event loop's thread."""
        if self.flow is not None:
            self.flow.release()
        if not self.settled and not self.cancelled:
            self.end(cancelled())

    def end(self, error: ModserveError) -> None:
        """Fail it before its execution is over, and let that stop."""
        if self.settled or self.cancelled:
            return
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel(self)
        self.settle(error)

"""State of an accepted request."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from mypy_extensions import mypyc_attr

from ..errors import ModserveError, cancelled
from ..tensors.tensor import Tensor
from ..version import ModelId
from .request import InferenceRequest
from .response import NOBODY, Outcome, ResponseSink, hand_over
from .sequence import SequenceStates
from .timing import ExecutionTiming

_log = logging.getLogger(__name__)


class RequestTrace(Protocol):
    """Trace of a request, implemented by `observability.trace.Trace`. `servable.submit_traced` connects the two."""

    request_id: str

    @property
    def context(self) -> str:
        """The request's span for its execution, as JSON; empty if traces are not spans."""

    @property
    def trace_id(self) -> str:
        """Trace id, for exemplars on the metrics page."""

    def stamp(self, activity: str, ns: int = 0) -> None:
        """Stamp an activity of the front end that happens now, or happened at the monotonic time `ns`."""

    def on_submit(self, inputs: Mapping[str, Tensor], start_ns: int, queue_start_ns: int) -> None:
        """Note that the model has accepted the request."""

    def on_batch(self, timing: ExecutionTiming) -> None:
        """Note that an execution with the request is about to begin."""

    def on_settle(self, outcome: Outcome, final: bool, timing: ExecutionTiming | None) -> None:
        """Note that an outcome is about to be handed to the request's sink; `timing` belongs to its execution."""

    def child(self, model: ModelId) -> "RequestTrace":
        """Return the trace of a request that the model makes itself. It ends with that request's final outcome."""

    def link(self, other: "RequestTrace") -> None:
        """Link a request that is also made on behalf of `other`, without being its child."""

    def on_failure(self, error: ModserveError, status: int | str) -> None:
        """Note the error that the client gets instead of a response, with the HTTP status or the gRPC status name."""

    def end(self) -> None:
        """End the trace after the response has been sent or abandoned. May be called again."""


class FlowControl(Protocol):
    """Flow control for an engine with many responses to one client: `resources.flow.Flow`."""

    def on_response(self, size: int) -> None:
        """Note an imminent response with tensors of `size` bytes. Any thread, like all methods."""

    def wait(self) -> None:
        """Block until there is room for another response."""

    @property
    def room(self) -> bool:
        """True if `wait` would return at once."""

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when there is room: immediately, or later on the thread that makes room."""

    def on_sent(self) -> None:
        """Note that the first unsent response has been sent or dropped."""

    def on_progress(self) -> None:
        """Note that part of a response has been sent."""

    def release(self) -> None:
        """Stop limiting the engine, as no more responses are sent."""


class RequestPermit(Protocol):
    """A client request's share of a limit: `resources.quotas.Permit`."""

    def release(self) -> None:
        """Release the share at the end of the request."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Inflight:
    """A request between its acceptance and its settlement, which happens exactly once.

    `inputs` have the model's shapes (batch dimension kept, reshapes applied). `batch_size` is 0 for models without a
    batch dimension. `length` is the size of the paddable dimension, or the number of ragged elements of one item; 0 for
    other models. The client stops waiting at `deadline_ns`. At `queue_limit_ns` the request has waited too long if its
    execution has not begun; 0 means never for both. `level` (since `level_ns`) and `arrival` are its position in its
    queue, and `priority` its initial level. It never refers to the model or server; its queue sets `on_cancel`, so that
    a cancelled request leaves at once. `states` are the sequence's states, which the execution changes. `callers` are
    the models that wait for its response, outermost first; none for a client's request.

    `trace` is set by `servable.submit_traced`, and None after settlement. The responses of an `ordered` request wait
    for the responses of earlier requests. `flow` is None except for requests with many responses. `device_outputs`,
    set before the execution begins, are the outputs allowed in device memory. The code that accepts the request for its
    client sets `permit`, which is released with the final outcome.
    """

    __slots__ = (
        "arrival",
        "batch_size",
        "callers",
        "cancelled",
        "deadline_ns",
        "device_outputs",
        "flow",
        "inputs",
        "length",
        "level",
        "level_ns",
        "on_cancel",
        "ordered",
        "output_names",
        "permit",
        "priority",
        "queue_limit_ns",
        "queue_start_ns",
        "request",
        "request_start_ns",
        "settled",
        "shape_key",
        "sink",
        "states",
        "timing",
        "trace",
    )

    def __init__(
        self,
        request: InferenceRequest,
        sink: ResponseSink,
        inputs: Mapping[str, Tensor],
        output_names: tuple[str, ...],
        batch_size: int,
        shape_key: object,
        request_start_ns: int,
        deadline_ns: int = 0,
        length: int = 0,
    ) -> None:
        self.request = request
        self.sink = sink
        self.inputs = inputs
        self.output_names = output_names
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.request_start_ns = request_start_ns
        self.deadline_ns = deadline_ns
        self.queue_limit_ns = 0
        self.queue_start_ns = 0
        self.length = length
        self.level = -1
        self.priority = 0
        self.level_ns = 0
        self.arrival = 0
        self.timing: ExecutionTiming | None = None
        self.trace: RequestTrace | None = None
        self.states: SequenceStates | None = None
        self.ordered = False
        self.flow: FlowControl | None = None
        self.cancelled = False
        self.settled = False
        self.on_cancel: Callable[[Inflight], None] | None = None
        self.callers: tuple[ModelId, ...] = ()
        self.device_outputs: Collection[str] = ()
        self.permit: RequestPermit | None = None

    @property
    def begin_by_ns(self) -> int:
        """Latest start of its execution, by its deadline and its queue limit; 0 for unlimited."""
        return min(self.deadline_ns, self.queue_limit_ns) or self.deadline_ns or self.queue_limit_ns

    def on_sent(self) -> None:
        """Report that an outcome received by the sink has been sent."""
        if self.flow is not None:
            self.flow.on_sent()

    def on_progress(self) -> None:
        """Report that a part of an outcome received by the sink has been sent."""
        if self.flow is not None:
            self.flow.on_progress()

    def settle(self, outcome: Outcome, final: bool = True) -> None:
        """Hand an outcome to the sink. Outcomes after the final one are ignored. Never raises.

        The final outcome removes the references between the request and its sink. As a cycle, both would keep their
        tensors until the garbage collector runs, which counts objects and not bytes.
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
            if self.permit is not None:
                self.permit.release()
        if trace is not None:
            try:
                trace.on_settle(outcome, final, self.timing)
            except Exception:  # the client gets its response without a trace
                _log.exception("tracing a response failed")
        if not hand_over(sink, outcome, final) and not final:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the request for its client. Callable at any time, on the event loop's thread."""
        if self.flow is not None:
            self.flow.release()
        if not self.settled and not self.cancelled:
            self.end(cancelled())

    def end(self, error: ModserveError) -> None:
        """Fail the request before the end of its execution, and stop the execution."""
        if self.settled or self.cancelled:
            return
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel(self)
        self.settle(error)

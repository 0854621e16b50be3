"""Our bookkeeping for one accepted request."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from .errors import ModserveError, cancelled
from .request import InferenceRequest
from .response import NOBODY, InferenceResponse, ResponseSink
from .sequence import SequenceStates
from .tensor import Tensor
from .timing import ExecutionTiming

_log = logging.getLogger(__name__)

_MISBEHAVED = "whoever waits for a response failed to take it"
"""What a sink raises must not reach the engine's other requests."""


class FlowControl(Protocol):
    """Keeps an engine that responds many times from running ahead of its client: `resources.flow.Flow`."""

    def given(self, size: int) -> None:
        """The engine is about to give a response with tensors of `size` bytes. On any thread, as all methods."""
        ...

    def wait(self) -> None:
        """Return when there is room for another response. Blocks."""
        ...

    def sent(self) -> None:
        """The first unsent response has been sent, or dropped."""
        ...

    def progressed(self) -> None:
        """A part of a response has been sent."""
        ...

    def release(self) -> None:
        """Nobody sends any more: let the engine go on, now and later."""
        ...


class Inflight:
    """A request between acceptance and its settlement, which happens exactly once.

    `inputs` have the model's shapes (batch dimension kept, reshapes applied). `batch_size` is 0 for models without a
    batch dimension. `length` is that of its paddable dimension, or the number of ragged elements of one item; 0 for
    models without either. `deadline_ns` is when its client stops waiting for the answer, `queue_limit_ns` when it has
    waited too long if its execution has not begun; 0 for never, for both. `level` (since `level_ns`) and `arrival` are
    its place in the queue it waits in, `priority` that with which it came there. It never points back to model or
    server; `on_cancel` is set by the queue that holds it, so that a cancelled request leaves at once. `states` are
    those of its sequence, if the model has any, which its execution changes.
    """

    __slots__ = (
        "arrival",
        "batch_size",
        "cancelled",
        "deadline_ns",
        "flow",
        "inputs",
        "length",
        "level",
        "level_ns",
        "on_cancel",
        "ordered",
        "output_names",
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
    ) -> None:
        self.request = request
        self.sink = sink
        self.inputs = inputs
        self.output_names = output_names
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.deadline_ns = request.deadline_ns
        self.queue_limit_ns = 0
        self.request_start_ns = request_start_ns
        self.queue_start_ns = 0
        self.length = 0
        self.level = -1
        self.priority = 0
        self.level_ns = 0
        self.arrival = 0
        self.timing: ExecutionTiming | None = None
        self.states: SequenceStates | None = None
        self.ordered = False
        """Its answers wait for those of the requests before it."""
        self.flow: FlowControl | None = None
        """For requests with many responses; None for all others."""
        self.cancelled = False
        self.settled = False
        self.on_cancel: Callable[[Inflight], None] | None = None

    @property
    def begin_by_ns(self) -> int:
        """When it is too late to begin its execution, for its client or its queue; 0 for never."""
        return min(self.deadline_ns, self.queue_limit_ns) or self.deadline_ns or self.queue_limit_ns

    def sent(self) -> None:
        """One of the responses that the sink got has been sent."""
        if self.flow is not None:
            self.flow.sent()

    def sent_some(self) -> None:
        """A part of a response that the sink got has been sent."""
        if self.flow is not None:
            self.flow.progressed()

    def respond(self, response: InferenceResponse, final: bool = True) -> None:
        """Hand an answer to the client; after the final one, and after a failure, later ones are dropped."""
        if not self.settled:
            sink = self._last_sink() if final else self.sink
            try:
                sink.respond(response, final)
            except Exception:
                _log.exception(_MISBEHAVED)

    def fail(self, error: ModserveError, final: bool = True) -> None:
        """Hand a failure to the client; the request may go on if it is not final."""
        if not self.settled:
            sink = self._last_sink() if final else self.sink
            try:
                sink.fail(error, final)
            except Exception:
                _log.exception(_MISBEHAVED)

    def complete(self) -> None:
        """No answer comes after those that were given."""
        if not self.settled:
            sink = self._last_sink()
            try:
                sink.complete()
            except Exception:
                _log.exception(_MISBEHAVED)

    def cancel(self) -> None:
        """The client no longer wants an answer. Safe to call at any time, on the event loop's thread."""
        if self.flow is not None:
            self.flow.release()
        if not self.settled and not self.cancelled:
            self.end(cancelled())

    def _last_sink(self) -> ResponseSink:
        """The request is settled by what its sink is told now. The two let go of each other.

        Most sinks hold the request in flight. As a cycle, both would stay in memory, with all their tensors, until the
        garbage collector runs, which counts objects and not bytes.
        """
        self.settled = True
        sink, self.sink = self.sink, NOBODY
        if self.flow is not None:
            self.flow.release()
        return sink

    def end(self, error: ModserveError) -> None:
        """Fail it before its execution is over, and let that stop."""
        if self.settled or self.cancelled:
            return
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel(self)
        self.fail(error)

"""Trace of one sampled request: its activities, and the activities of requests that its model made for it."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from modserve.core.configuration.trace_settings import TraceLevel
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import RequestTrace
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId

from .span_ids import Batches, SpanIds
from .trace_file import TraceRecord, render
from .trace_sampling import TraceSampler

_log = logging.getLogger(__name__)

MOST_OF_ONE = 32 * 1024 * 1024
"""Maximum size in bytes of one trace's tensors, and also of its stamps; the rest is dropped."""

_STAMP_SIZE = 256
"""Approximate memory of a stamp in bytes."""
_CANCELLED = "nobody is waiting for the response any longer"


class Failure(NamedTuple):
    """Failure of a request."""

    code: str
    message: str
    status: int | str = ""
    """HTTP status, or name of the gRPC status; empty if the client did not get the failure."""


def _failure(error: ModserveError, status: int | str = "") -> Failure:
    code = error.code
    return Failure(code.name, error.message or (_CANCELLED if code is Code.CANCELLED else code.value), status)


class TraceOwner(Protocol):
    """A tracer's interface for its traces."""

    batches: Batches
    ids: Iterator[int]

    def on_end(self, setting: TraceSampler, trace: "Trace") -> None: ...


class Trace:
    """Implements `core.requests.inflight.RequestTrace`: records of one request and of its children.

    `spans`: ids of its spans; None for a trace in a file. The front end adds its own stamps, and calls `end` when the
    response has been sent or no client waits for it. Children, requests that a model made for this one, are written
    with it.
    """

    def __init__(
        self,
        owner: TraceOwner,
        setting: TraceSampler,
        model: ModelId,
        trace_id: int,
        parent: "Trace | None" = None,
        spans: SpanIds | None = None,
    ) -> None:
        self._owner = owner
        self._setting = setting
        self._parent = parent
        self._ended = False
        self.model = model
        self.children: list[Trace] = []
        self.records: list[TraceRecord] = []
        self.timing: ExecutionTiming | None = None
        self.failure: Failure | None = None
        self.refusal: Failure | None = None
        self.request_id = ""
        self.tenant = ""
        """Tenant of the request; empty without tenants."""
        self.attributes: Mapping[str, str] = {}
        """Span attributes from the front end."""
        self.spans = spans
        self.start_ns = time.monotonic_ns()
        self.end_ns = 0
        self.id = trace_id
        self.size = 0

    @property
    def context(self) -> str:
        return "" if self.spans is None else self.spans.own.as_json()

    @property
    def parent_id(self) -> int:
        return 0 if self._parent is None else self._parent.id

    @property
    def trace_id(self) -> str:
        return str(self.id) if self.spans is None else f"{self.spans.own.trace_id:032x}"

    def stamp(self, activity: str, ns: int = 0) -> None:
        if TraceLevel.TIMESTAMPS not in self._setting.level or self._ended:
            return
        if self.size <= 2 * MOST_OF_ONE:
            self.size += _STAMP_SIZE
            self.records.append(TraceRecord(ns or time.monotonic_ns(), activity))

    def on_submit(self, inputs: Mapping[str, Tensor], start_ns: int, queue_start_ns: int) -> None:
        self.stamp("REQUEST_START", start_ns)
        self.stamp("QUEUE_START", queue_start_ns)
        self._tensors("TENSOR_QUEUE_INPUT", inputs, queue_start_ns)

    def on_batch(self, timing: ExecutionTiming) -> None:
        if self.spans is not None and not self._ended:
            self._owner.batches.join(self.spans, self.model, timing)

    def on_settle(self, outcome: Outcome, final: bool, timing: ExecutionTiming | None) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(outcome, InferenceResponse):
            self.model = ModelId(self.model.name, outcome.model_version)  # the version chosen by routing
            self._tensors("TENSOR_BACKEND_OUTPUT", outcome.outputs, now_ns)
        elif isinstance(outcome, ModserveError):
            self.failure = _failure(outcome)
        inner = self._parent is not None or self._is_continued
        # As in Triton, only for client calls with a waiting client, not for requests of models.
        if outcome is not None and not inner and not _is_cancellation(outcome):
            self.stamp("INFER_RESPONSE_COMPLETE", now_ns)
        if final:
            self.stamp("REQUEST_END", now_ns)
            self.timing = timing
            if inner:  # such a trace has no front end to end it
                self.end()

    def child(self, model: ModelId) -> "Trace":
        spans = None if self.spans is None else self.spans.child()
        child = Trace(self._owner, self._setting, model, next(self._owner.ids), self, spans)
        child.tenant = self.tenant
        if not self._ended:
            self.children.append(child)
        return child

    def link(self, other: RequestTrace) -> None:
        if self.spans is not None and isinstance(other, Trace) and other.spans is not None:
            self.spans.links.append(other.spans.own)

    def on_failure(self, error: ModserveError, status: int | str) -> None:
        self.refusal = _failure(error, status)

    def end(self) -> None:
        if not self._ended:
            for child in self.children:
                child.end()
            self._execution()
            self._ended = True
            self.end_ns = time.monotonic_ns()
            if self.spans is not None:
                self._owner.batches.leave(self.spans)
            if self._parent is None:
                self._owner.on_end(self._setting, self)

    def render(self) -> bytes:
        """Render the trace's records, including its children's. On any thread, once the trace has ended."""
        own = render(self.id, self.model, self.request_id, self.records, self.parent_id, self.tenant)
        return b",".join([own, *(child.render() for child in self.children)])

    @property
    def whole_size(self) -> int:
        """Approximate memory of the trace with its children."""
        return self.size + sum(child.whole_size for child in self.children)

    @property
    def span_count(self) -> int:
        """Approximate number of spans with children: call, request and execution."""
        return 3 + sum(child.span_count for child in self.children)

    @property
    def _is_continued(self) -> bool:
        """True if the call's span is in another process."""
        return self.spans is not None and self.spans.root is None

    def _tensors(self, activity: str, tensors: Mapping[str, Tensor], ns: int) -> None:
        if TraceLevel.TENSORS not in self._setting.level or self._ended:
            return
        for name, tensor in tensors.items():
            raw = tensor.raw
            size = memoryview(raw).nbytes
            if self.size + size > MOST_OF_ONE:
                _log.warning("trace %d: tensor '%s' is left out: its %d bytes are too many", self.id, name, size)
                continue
            self.size += size
            # A copy: the client or the engine may reuse the memory.
            copy = Tensor.from_raw(tensor.datatype, tensor.shape, bytes(raw))
            self.records.append(TraceRecord(ns, activity, name, copy))

    def _execution(self) -> None:
        """Add the stamps of the execution so far; it may still be under way."""
        timing = self.timing
        executed = self.spans is not None and self.spans.batch is not None
        if timing is None or (self.children and not executed):  # the children have the executions
            return
        for activity, ns in (
            ("COMPUTE_START", timing.compute_start_ns),
            ("COMPUTE_INPUT_END", timing.compute_input_end_ns),
            ("COMPUTE_OUTPUT_START", timing.compute_output_start_ns),
            ("COMPUTE_END", timing.compute_end_ns),
        ):
            if ns:
                self.stamp(activity, ns)


def _is_cancellation(outcome: Outcome) -> bool:
    return isinstance(outcome, ModserveError) and outcome.code is Code.CANCELLED

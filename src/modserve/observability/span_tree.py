"""Spans of a complete trace as plain values, with Triton's names, events and attributes (``tracer.cc``).

``InferRequest`` is the call; its events are the front end's activities. Below it is a span with the model's name, and
below that ``compute``, or the spans of requests to other models. An engine's own activities are events of the model's
span; from ``X_START`` to ``X_END`` they form a span ``X``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from modserve.core.requests import trace_context
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.requests.trace_context import SpanContext

from .request_trace import Failure, Trace
from .span_ids import Batch, SpanIds

CALL = "InferRequest"
COMPUTE = "compute"
BATCH = "batch"
_COMPLETE = "INFER_RESPONSE_COMPLETE"
_OF_REQUEST = frozenset(("REQUEST_START", "QUEUE_START", "REQUEST_END"))
_OF_EXECUTION = frozenset(("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"))
_OF_WIRE = ("HTTP_", "GRPC_")
_RPC_ERRORS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""gRPC statuses that make a server span an error, by OpenTelemetry's semantic conventions."""
_HTTP_ERRORS = 500
"""Lowest such HTTP status."""


class Event(NamedTuple):
    """An event at `ns` since 1970."""

    name: str
    ns: int


class Span(NamedTuple):
    """A span with its times in nanoseconds since 1970."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    start_ns: int
    end_ns: int
    events: Sequence[Event] = ()
    attributes: Mapping[str, str | int] = {}
    links: Sequence[SpanContext] = ()
    failure: Failure | None = None
    serves: bool = False
    """True for the server side of a call."""


def spans_of(trace: Trace) -> Iterator[Span]:
    """Yield the spans of a trace and of its children, parents first."""
    ids = trace.spans
    assert ids is not None, "only traces with spans come here: this is a bug"
    records = sorted((record for record in trace.records if record.tensor is None), key=lambda record: record.ns)
    call: list[Event] = []
    request: list[Event] = []
    execution: list[Event] = []
    own: list[Event] = []
    for record in records:
        name = record.activity
        event = Event(name, record.ns + ids.offset_ns)
        if name.startswith(_OF_WIRE) or name == _COMPLETE:
            call.append(event)
        elif name in _OF_EXECUTION:
            execution.append(event)
        else:
            (request if name in _OF_REQUEST else own).append(event)
    end_ns = trace.end_ns + ids.offset_ns
    parent = ids.parent
    if ids.root is not None:
        start_ns = call[0].ns if call else trace.start_ns + ids.offset_ns
        failure = trace.refusal or trace.failure
        attributes = {**({} if request else _of_model(trace)), **trace.attributes, **_error(failure)}
        if failure is not None and not _is_of_server(failure):
            attributes["modserve.error_message"] = failure.message
            failure = None
        yield Span(CALL, ids.root, parent, start_ns, end_ns, call, attributes, (), failure, True)
        parent = ids.root
    if not request:
        return  # refused before it reached a model
    loose, inner = _custom(own, ids.own, end_ns)
    attributes = {**_of_model(trace), **_error(trace.failure)}
    last_ns = max([end_ns] if request[-1].name != "REQUEST_END" else [event.ns for event in request])
    events = sorted([*request, *loose], key=lambda event: event.ns)
    yield Span(trace.model.name, ids.own, parent, request[0].ns, last_ns, events, attributes, ids.links, trace.failure)
    yield from inner
    if execution:
        yield _execution(trace, ids, execution, last_ns)
    for child in trace.children:
        yield from spans_of(child)


def batch_span(batch: Batch, offset_ns: int) -> Span | None:
    """Return the execution shared by several traced requests, with links to all of them; None if it never began.

    It has no parent, since it has several.
    """
    timing = batch.timing
    if not timing.compute_start_ns:
        return None
    attributes = {
        "triton.model_name": batch.model.name,
        "triton.model_version": batch.model.version,
        **_of_batch(timing),
    }
    start_ns, end_ns = timing.compute_start_ns, timing.compute_end_ns or batch.end_ns
    return Span(BATCH, batch.context, None, start_ns + offset_ns, end_ns + offset_ns, (), attributes, batch.members)


def _execution(trace: Trace, ids: SpanIds, events: Sequence[Event], end_ns: int) -> Span:
    batch = ids.batch
    links = [batch.context] if batch is not None and len(batch.members) > 1 and batch.timing is trace.timing else []
    attributes = {} if trace.timing is None else _of_batch(trace.timing)
    if events[-1].name == "COMPUTE_END":
        end_ns = events[-1].ns
    context = ids.own._replace(span_id=trace_context.new_span_id())
    return Span(COMPUTE, context, ids.own, events[0].ns, max(end_ns, events[0].ns), events, attributes, links)


def _custom(events: Sequence[Event], parent: SpanContext, end_ns: int) -> tuple[list[Event], list[Span]]:
    """Return an engine's activities, divided into events of the model's span and spans of their own."""
    loose: list[Event] = []
    spans: list[Span] = []
    open: list[tuple[str, SpanContext, SpanContext, list[Event]]] = []
    for event in events:
        name, _, ending = event.name.rpartition("_")
        if ending == "START" and name:
            above = open[-1][1] if open else parent
            open.append((name, above._replace(span_id=trace_context.new_span_id()), above, [event]))
            continue
        (open[-1][3] if open else loose).append(event)
        if ending == "END" and open and open[-1][0] == name:
            _, context, above, inner = open.pop()
            spans.append(Span(name, context, above, inner[0].ns, event.ns, inner))
    for name, context, above, inner in open:
        spans.append(Span(name, context, above, inner[0].ns, max(end_ns, inner[-1].ns), inner))
    return loose, sorted(spans, key=lambda span: span.start_ns)


def _of_model(trace: Trace) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "triton.model_name": trace.model.name,
        "triton.model_version": trace.model.version,
        "triton.trace_id": trace.id,
        "triton.trace_parent_id": trace.parent_id,
    }
    if trace.request_id:
        attributes["triton.request_id"] = trace.request_id
    if trace.tenant:
        attributes["modserve.tenant"] = trace.tenant
    return attributes


def _of_batch(timing: ExecutionTiming) -> dict[str, str | int]:
    return {"modserve.batch_size": timing.batch_size, "modserve.batch_closed": timing.close_reason}


def _is_of_server(failure: Failure) -> bool:
    """False for client errors, and failures that reached no client: the server's span has no status then."""
    status = failure.status
    return status >= _HTTP_ERRORS if isinstance(status, int) else status in _RPC_ERRORS


def _error(failure: Failure | None) -> dict[str, str | int]:
    return {} if failure is None else {"error.type": failure.code}

"""What the access log gets to know of a call, over whichever wire."""

from collections.abc import Iterable
from typing import Final

from modserve.core.requests.inflight import Inflight, RequestTrace
from modserve.core.requests.trace_context import TraceHeaders
from modserve.observability.access_log import AccessLog

from .call import InferenceCall

GONE: Final = 499
"""The status in the log of an HTTP request whose client has gone before its response."""


def record(
    access: AccessLog,
    call: InferenceCall,
    client: object,
    call_name: str,
    status: int,
    received: int,
    sent: int,
    responses: int = 1,
    start_ns: int = 0,
    traceparent: str = "",
) -> None:
    """An inference is over. `start_ns`: when its request had come, if not as the call has it.

    `traceparent` is the client's, by which requests have a trace that are not traced here.
    """
    trace: RequestTrace | None = call.trace
    inflight: Inflight | None = call.inflight
    version = call.version
    access.record(
        call.wire.name,
        client,
        call_name,
        call.model,
        -1 if version is None else version,
        status,
        received,
        sent,
        responses,
        call.id,
        call.request_id,
        start_ns or call.now_ns,
        0 if inflight is None else inflight.queue_start_ns,
        None if inflight is None else inflight.timing,
        (trace.trace_id if trace is not None else "") or traceparent,
        "" if call.tenant is None else call.tenant.name,
    )


def traceparent_of(headers: TraceHeaders | None) -> str:
    """As `record` takes it; empty where there is none."""
    return "" if headers is None else headers.traceparent.decode("latin-1")


def traceparent_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The same among the metadata of a gRPC call."""
    for key, value in metadata:
        if key == "traceparent" and isinstance(value, str):
            return value
    return ""

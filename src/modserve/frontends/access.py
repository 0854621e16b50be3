"""Access-log entries of calls, for every protocol."""

from typing import Final

from modserve.core.requests.inflight import Inflight, RequestTrace
from modserve.observability.access_log import AccessLog

from .call import InferenceCall

GONE: Final = 499
"""Status in the log of an HTTP request when its client disconnects before the response."""


def record(
    access: AccessLog,
    call: InferenceCall,
    call_name: str,
    status: int,
    received: int,
    sent: int,
    responses: int = 1,
    start_ns: int = 0,
) -> None:
    """Log a finished inference. `start_ns`: arrival time of its request, if different from the call's."""
    trace: RequestTrace | None = call.trace
    inflight: Inflight | None = call.inflight
    version = call.version
    access.record(
        call.wire.name,
        call.origin,
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
        "" if trace is None else trace.trace_id,
        "" if call.tenant is None else call.tenant.name,
    )

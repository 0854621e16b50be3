"""The stamps of HTTP in traces, under Triton's names."""

from collections.abc import Iterator
from contextlib import contextmanager

from modserve.core.servable import Servable
from modserve.core.tracing import RequestTrace
from modserve.server import Server


def begun(server: Server, servable: Servable, start_ns: int, end_ns: int) -> RequestTrace | None:
    """A trace if it is the turn of one, of a request that came in between these times."""
    trace = server.tracer.sample(servable)
    if trace is not None:
        trace.stamp("HTTP_RECV_START", start_ns)
        trace.stamp("HTTP_RECV_END", end_ns)
    return trace


@contextmanager
def traced(server: Server, servable: Servable, now_ns: int) -> Iterator[RequestTrace | None]:
    """For calls that await responses: a trace, if it is the turn of one, which ends with the block.

    Sending begins with the end of the block; how long it takes is not seen from here.
    """
    trace = begun(server, servable, now_ns, now_ns) if server.tracer.on else None
    try:
        yield trace
    finally:
        if trace is not None:
            trace.stamp("HTTP_SEND_START")
            trace.stamp("HTTP_SEND_END")
            trace.end()

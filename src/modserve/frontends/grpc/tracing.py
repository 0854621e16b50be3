"""The stamps of gRPC in traces, under Triton's names."""

from typing import Any, TypeAlias, cast

import grpc

from modserve.core.servable import Servable
from modserve.core.tracing import RequestTrace
from modserve.server import Server

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def begun(server: Server, servable: Servable, now_ns: int) -> RequestTrace | None:
    """A trace if it is the turn of one. A message has been read when we hear of it: its reading takes no time here."""
    trace = server.tracer.sample(servable)
    if trace is not None:
        trace.stamp("GRPC_WAITREAD_START", now_ns)
        trace.stamp("GRPC_WAITREAD_END", now_ns)
    return trace


def unary(server: Server, servable: Servable, context: Context, now_ns: int) -> RequestTrace | None:
    """As `begun`, for a call with one answer: the trace ends with the call, however that ends."""
    trace = begun(server, servable, now_ns)
    if trace is not None:
        context.add_done_callback(cast(Any, lambda _: sent(trace)))  # the stubs ask for a class
    return trace


def sent(trace: RequestTrace) -> None:
    """The last answer has left, or never will."""
    trace.stamp("GRPC_SEND_END")
    trace.end()

"""A collector of OpenTelemetry as far as traces go: OTLP over HTTP and over gRPC, as opentelemetry-proto has them."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from server_process import eventually
from wire import HOST


@dataclass(frozen=True)
class Span:
    """A span as it came; ids are hexadecimal, `parent` is empty for none."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    events: Sequence[str]
    links: Sequence[tuple[str, str]]
    error: str | None
    """The message of a failure; None for none."""
    state: str
    resource: Mapping[str, Any]


@dataclass
class Receiver:
    http_port: int = 0
    grpc_port: int = 0
    paths: set[str] = field(default_factory=set)
    refusing: bool = False
    _spans: list[Span] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: service_pb.ExportTraceServiceRequest) -> None:
        spans = [
            _span(span, _values(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += spans

    @property
    def spans(self) -> list[Span]:
        with self._lock:
            return list(self._spans)

    def of(self, trace: str, count: int) -> list[Span]:
        """The spans of a trace, by their begin, when there are as many."""
        eventually(lambda: len(self._of(trace)) >= count)
        return self._of(trace)

    def _of(self, trace: str) -> list[Span]:
        return sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.start_ns)


def _span(span: pb.Span, resource: Mapping[str, Any]) -> Span:
    failed = span.status.code == pb.Status.STATUS_CODE_ERROR
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        pb.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [event.name for event in span.events],
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.message if failed else None,
        span.trace_state,
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class _Service(service.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        self._receiver.take(request)
        return service_pb.ExportTraceServiceResponse()


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on free ports."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.paths.add(self.path)
            if receiver.refusing:
                self.send_response(400)
            else:
                receiver.take(service_pb.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *values: Any) -> None: ...

    web = ThreadingHTTPServer((HOST, 0), Handler)
    web.daemon_threads = True
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    rpc = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(_Service(receiver), rpc)  # type: ignore[no-untyped-call]
    receiver.http_port, receiver.grpc_port = web.server_port, rpc.add_insecure_port(f"{HOST}:0")
    rpc.start()
    try:
        yield receiver
    finally:
        rpc.stop(None)
        web.shutdown()
        web.server_close()

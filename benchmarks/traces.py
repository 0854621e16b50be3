"""What traces cost a server: its CPU a request, with none, and with one of so many requests traced as spans.

    python benchmarks/traces.py                      # prints a table, about a minute
    python benchmarks/traces.py --baseline ../old    # another checkout of the source beside this one, without traces
    python benchmarks/traces.py --parts              # what each part of a trace takes, without a server, in a second

Needs ``pip install .[dev]`` and the program wrk. The servers take turns, window by window; each figure is the median of
their windows, and the ratio is that of the pairs of windows. The collector runs here, and takes what it gets.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from modserve.core.configuration.trace_settings import SpanSettings, TraceLevel, TraceSettings
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import NOBODY, ResponseSink
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.servable import submit_traced
from modserve.core.version import ModelId
from modserve.observability.request_trace import Trace
from modserve.observability.span_export import Spans
from modserve.observability.trace import Tracer
from modserve.observability.trace_file import Writer
from overhead import Load, ServerProcess, http_body, server, tensors, write_repository, wrk

CONNECTIONS = 16


class Sink(BaseHTTPRequestHandler):
    """Takes spans, and looks at none of them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *values: object) -> None: ...


@contextmanager
def collector() -> Iterator[str]:
    """Its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as sink:
        threading.Thread(target=sink.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{sink.server_port}/v1/traces"
        sink.shutdown()


def variants(url: str) -> dict[str, list[str]]:
    """Options of servers by name; what is first is what the others are compared with."""
    spans = ["--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={url}"]
    traced = [*spans, "--trace-config=level=TIMESTAMPS", "--trace-config=opentelemetry,bsp_max_queue_size=100000"]
    return {
        "no traces": [],
        "mode opentelemetry, level OFF": spans,
        "one request of 1000": [*traced, "--trace-config=rate=1000"],
        "one request of 100": [*traced, "--trace-config=rate=100"],
        "one request of 10": [*traced, "--trace-config=rate=10"],
    }


def measure(targets: Sequence[ServerProcess], runs: int, seconds: int) -> list[list[Load]]:
    """The windows of each server."""
    body, length = http_body(tensors(), bytes(128))
    loads: list[list[Load]] = [[] for _ in targets]
    for run in range(runs + 1):
        for target, windows in zip(targets, loads, strict=True):
            load = wrk(target, "simple", body, length, CONNECTIONS, seconds if run else 1)
            if run:  # the first one only warms up
                windows.append(load)
    return loads


class Model:
    """As much of a servable as a trace needs."""

    id = ModelId("simple", 1)

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        return Inflight(request, sink, request.inputs, (), 1, None, now_ns)


class Kept(Writer):
    """Keeps the work of the thread that makes spans."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Callable[[], None]] = []

    def put(self, work: Callable[[], None], size: int = 0) -> bool:
        self.works.append(work)
        return True


def traced(tracer: Tracer, model: Any, count: int) -> None:
    """Requests of three spans each, as the event loop sees them."""
    for _ in range(count):
        trace: Trace | None = tracer.sample(model)
        assert trace is not None, "each request is traced"
        for activity in ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"):
            trace.stamp(activity)
        inflight = submit_traced(trace, model, InferenceRequest("simple", {}), NOBODY, 1)
        inflight.timing = ExecutionTiming(1, "alone", 2, 3, 4, 5)
        trace.on_batch(inflight.timing)
        inflight.settle(None)
        trace.end()


def parts(runs: int, count: int = 2000) -> None:
    """The least of several runs, in microseconds of CPU."""
    each = [_parts(count) for _ in range(runs)]
    print("| | µs of CPU |\n|---|---|")
    for name in each[0]:
        print(f"| {name} | {min(one[name] for one in each):.1f} |")


def _parts(count: int) -> dict[str, float]:
    settings = SpanSettings("", "", (), 10**6, 10**9, 10**6)
    model: Any = Model()
    exporter, writer = InMemorySpanExporter(), Kept()
    spans = Spans(settings, "benchmark", exporter)
    seldom, always = (
        Tracer(TraceSettings(TraceLevel.TIMESTAMPS, rate, spans=settings), writer, spans) for rate in (10**9, 1)
    )
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("event loop, a request that is not traced", lambda: [seldom.sample(model) for _ in range(count)]),
        ("event loop, one that is traced", lambda: traced(always, model, count)),
        ("a thread, to make its three spans", lambda: [work() for work in writer.works]),
        ("another, to take and encode them", lambda: _sent(spans, exporter)),
    )
    took: dict[str, float] = {}
    for name, step in steps:
        began = time.process_time()
        step()
        took[name] = (time.process_time() - began) / count * 1e6
    return took


def _sent(spans: Spans, exporter: InMemorySpanExporter) -> bytes:
    spans.close()
    return encode_spans(exporter.get_finished_spans()).SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="windows of each server")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each window")
    parser.add_argument("--baseline", type=Path, help="another checkout, whose server runs without traces")
    parser.add_argument("--parts", action="store_true", help="what each part of a trace takes")
    arguments = parser.parse_args()
    if arguments.parts:
        parts(arguments.runs)
        return
    with ExitStack() as stack:
        repository = write_repository(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        names, targets = [], []
        for name, options in variants(stack.enter_context(collector())).items():
            names.append(name)
            targets.append(stack.enter_context(server(repository, None, options)))
        if arguments.baseline is not None:
            names.append("the baseline, no traces")
            targets.append(stack.enter_context(server(repository, arguments.baseline)))
        loads = measure(targets, arguments.runs, arguments.seconds)
    print("| | CPU a request, µs | beside no traces | requests/s |\n|---|---|---|---|")
    for name, windows in zip(names, loads, strict=True):
        ratio = statistics.median(one.cpu_us / other.cpu_us for one, other in zip(windows, loads[0], strict=True))
        cpu_us = statistics.median(window.cpu_us for window in windows)
        rate = statistics.median(window.per_second for window in windows)
        print(f"| {name} | {cpu_us:.1f} | {ratio:.3f} | {rate:.0f} |")


if __name__ == "__main__":
    main()

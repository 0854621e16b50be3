"""Traces as spans, by the library's exporter that keeps them: their tree, sampling, batches, and what is lost."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from trace_builders import AtOnce

from modserve.core.configuration.trace_settings import SpanSettings, TraceLevel, TraceSettings
from modserve.core.errors import cancelled, internal, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.requests.trace_context import TraceHeaders, from_json
from modserve.core.servable import submit_traced
from modserve.core.version import ModelId
from modserve.models.serving.model_calls import trace_of_call
from modserve.observability.request_trace import Trace
from modserve.observability.span_export import ExportStats, Spans, resource_of
from modserve.observability.span_figures import EXPORT_FAILED, QUEUE_FULL, STOPPED, SpanFigures, span_families
from modserve.observability.trace import Tracer
from modserve.testing import RecordingSink, request

SAMPLED = TraceHeaders(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"vendor=1", b"user=me")
UNSAMPLED = TraceHeaders(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
SLOW = SpanSettings(bsp_schedule_delay=1_000_000)
"""Nothing is sent before the end."""


class Model:
    """As much of a servable as is traced."""

    def __init__(self, name: str = "m") -> None:
        self.id = ModelId(name, 3)

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = Inflight(request, sink, request.inputs, (), 1, None, now_ns)
        inflight.queue_start_ns = now_ns + 1
        return inflight


class Bench:
    """A tracer, and the spans that it has made."""

    def __init__(self, settings: SpanSettings = SLOW, **more: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans = Spans(settings, "bench", self.exporter)
        start = TraceSettings(TraceLevel.TIMESTAMPS, spans=settings, **{"rate": 1, **more})
        self.tracer = Tracer(start, AtOnce(), self.spans)

    def begin(self, model: str = "m", headers: TraceHeaders | None = None) -> Trace | None:
        return self.tracer.sample(Model(model), headers)  # type: ignore[arg-type]

    def call(self, model: str = "m", headers: TraceHeaders | None = None, id: str = "") -> tuple[Trace, Inflight]:
        trace = self.begin(model, headers)
        assert trace is not None
        trace.stamp("HTTP_RECV_START", 5)
        trace.stamp("HTTP_RECV_END", 9)
        return trace, submit_traced(trace, Model(model), request(id=id), RecordingSink(), 10)

    def end(self) -> list[ReadableSpan]:
        self.tracer.close()
        return list(self.exporter.get_finished_spans())


def run(inflights: Sequence[Inflight], at_ns: int = 20) -> ExecutionTiming:
    timing = ExecutionTiming(len(inflights), "full")
    for inflight in inflights:
        inflight.timing = timing
        if inflight.trace is not None:
            inflight.trace.on_batch(timing)
    timing.compute_start_ns, timing.compute_input_end_ns = at_ns, at_ns + 1
    timing.compute_output_start_ns, timing.compute_end_ns = at_ns + 2, at_ns + 3
    return timing


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def parent(span: ReadableSpan) -> int:
    return 0 if span.parent is None else span.parent.span_id


def context(span: ReadableSpan) -> tuple[int, int]:
    known = span.get_span_context()
    assert known is not None
    return known.trace_id, known.span_id


# The tree


def test_a_plain_model() -> None:
    """As in Triton: three spans, whose events are the stamps."""
    bench = Bench()
    trace, inflight = bench.call(id="mine")
    run([inflight])
    inflight.settle(InferenceResponse("m", 3, {}))
    trace.stamp("HTTP_SEND_START")
    trace.stamp("HTTP_SEND_END")
    trace.end()
    call, model, compute = bench.end()
    assert names([call, model, compute]) == ["InferRequest", "m", "compute"]
    assert [parent(call), parent(model), parent(compute)] == [0, context(call)[1], context(model)[1]]
    assert len({context(span)[0] for span in (call, model, compute)}) == 1
    assert [call.kind, model.kind] == [SpanKind.SERVER, SpanKind.INTERNAL]
    sending = ["INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
    assert events(call) == ["HTTP_RECV_START", "HTTP_RECV_END", *sending]
    assert events(model) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert events(compute) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert model.attributes == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "mine",
    }
    assert compute.attributes == {"modserve.batch_size": 1, "modserve.batch_closed": "full"}
    starts = [span.start_time or 0 for span in (call, model, compute)]
    assert [start - starts[0] for start in starts] == [0, 5, 15]
    assert (compute.end_time or 0) - starts[2] == 3
    assert call.status.status_code is StatusCode.UNSET
    assert not compute.links
    assert call.resource.attributes["service.name"] == "bench"


def test_the_tenant_of_a_call_is_an_attribute_of_its_spans() -> None:
    bench = Bench()
    trace, inflight = bench.call(id="mine")
    trace.tenant = "team-a"
    child = trace.child(ModelId("n", 1))
    run([inflight])
    inflight.settle(InferenceResponse("m", 3, {}))
    trace.end()
    assert child.tenant == "team-a"
    model = next(span for span in bench.end() if span.name == "m")
    assert (model.attributes or {})["modserve.tenant"] == "team-a"


def test_the_models_that_a_model_calls() -> None:
    """An ensemble does not run itself; a model in Python does."""
    bench = Bench()
    trace, inflight = bench.call("e")
    assert inflight.trace is trace
    child = submit_traced(trace.child(ModelId("a", 1)), Model("a"), request(), RecordingSink(), 30)
    run([child], 40)
    child.settle(InferenceResponse("a", 1, {}))
    inflight.timing = ExecutionTiming(1, "single", 20, 20, 20, 20)
    inflight.settle(InferenceResponse("e", 3, {}))
    trace.end()
    other, inflight = bench.call("p")
    run([inflight])
    child = submit_traced(other.child(ModelId("a", 1)), Model("a"), request(), RecordingSink(), 30)
    run([child], 40)
    child.settle(internal("broke"))
    inflight.settle(InferenceResponse("p", 3, {}))
    other.end()
    spans = bench.end()
    assert names(spans) == ["InferRequest", "e", "a", "compute", "InferRequest", "p", "compute", "a", "compute"]
    by_id = {context(span)[1]: span for span in spans}
    above = [by_id[parent(span)].name if parent(span) else "" for span in spans]
    assert above == ["", "InferRequest", "e", "a", "", "InferRequest", "p", "p", "a"]
    assert events(spans[2]) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert (spans[2].attributes or {})["triton.trace_parent_id"] == 1
    assert [span.status.description for span in spans if span.status.status_code is StatusCode.ERROR] == ["broke"]


def test_calls_for_several_requests() -> None:
    """Below the one that the model names, or else the first, with links to the others."""
    bench = Bench()
    calls = [bench.call(name) for name in ("a", "b", "c")]
    parents = [Model().submit(request(), RecordingSink(), 1), *(inflight for _, inflight in calls)]
    for context_of in (calls[1][0].context, "", "one that nobody has"):
        trace = trace_of_call(parents, context_of, ModelId("called", 1))
        assert trace is not None
        submit_traced(trace, Model("called"), request(), RecordingSink(), 30).settle(None)
    for trace, inflight in calls:
        inflight.settle(None)
        trace.end()
    spans = bench.end()
    by_id = {context(span)[1]: span.name for span in spans}
    made = [
        (by_id[parent(span)], [by_id[each.context.span_id] for each in span.links])
        for span in spans
        if span.name == "called"
    ]
    assert sorted(made) == [("a", ["b", "c"]), ("a", ["b", "c"]), ("b", [])]
    assert trace_of_call(parents[:1], "", ModelId("called", 1)) is None
    assert trace_of_call([], "", ModelId("called", 1)) is None


def test_activities_of_an_engine() -> None:
    bench = Bench()
    trace, inflight = bench.call()
    for ns, activity in enumerate(("A_START", "B_START", "NOTE", "B_END", "A_END", "ALONE", "C_START"), 11):
        trace.stamp(activity, ns)
    inflight.settle(None)
    trace.end()
    _, model, first, second, third = bench.end()
    assert names([first, second, third]) == ["A", "B", "C"]
    assert [parent(first), parent(second)] == [context(model)[1], context(first)[1]]
    assert [events(first), events(second), events(third)] == [
        ["A_START", "A_END"],
        ["B_START", "NOTE", "B_END"],
        ["C_START"],
    ]
    assert events(model) == ["REQUEST_START", "QUEUE_START", "ALONE", "REQUEST_END"]


@pytest.mark.parametrize(
    ("status", "is_error"),
    [
        *((status, status >= 500) for status in (400, 404, 429, 499, 500, 501, 503, 507)),
        *((name, False) for name in ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "CANCELLED")),
        *((name, True) for name in ("UNKNOWN", "INTERNAL", "UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED")),
    ],
)
def test_a_request_that_no_model_takes(status: int | str, is_error: bool) -> None:
    """The server's span is an error if the failure is the server's, by OpenTelemetry's semantic conventions."""
    bench = Bench()
    trace = bench.begin()
    assert trace is not None
    trace.stamp("GRPC_WAITREAD_START", 5)
    trace.on_failure(invalid("no such input"), status)
    trace.end()
    (call,) = bench.end()
    attributes = call.attributes or {}
    message = attributes.get("modserve.error_message")
    seen = call.status.status_code, call.status.description, message
    assert seen == (
        (StatusCode.ERROR, "no such input", None) if is_error else (StatusCode.UNSET, None, "no such input")
    )
    assert attributes["error.type"] == "INVALID_ARG"


def test_a_request_that_is_cancelled() -> None:
    bench = Bench()
    trace, inflight = bench.call()
    inflight.settle(cancelled())
    trace.end()
    spans = bench.end()
    assert names(spans) == ["InferRequest", "m"]
    assert {(span.attributes or {})["error.type"] for span in spans} == {"CANCELLED"}
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.ERROR]


def test_several_responses() -> None:
    bench = Bench()
    trace, inflight = bench.call()
    for _ in range(200):
        inflight.settle(InferenceResponse("m", 3, {}), final=False)
    inflight.settle(None)
    trace.end()
    call, _ = bench.end()
    assert events(call).count("INFER_RESPONSE_COMPLETE") == len(call.events) == 128  # the library's limit
    assert call.dropped_events == 74


# Batches


def test_a_batch_has_links_to_its_requests_and_they_to_it() -> None:
    bench = Bench()
    calls = [bench.call() for _ in range(3)]
    untraced = Model().submit(request(), RecordingSink(), 1)
    run([*(inflight for _, inflight in calls), untraced])
    assert len(bench.tracer.batches) == 1
    for trace, inflight in calls:
        inflight.settle(InferenceResponse("m", 3, {}))
        trace.end()
    assert len(bench.tracer.batches) == 0
    spans = bench.end()
    (batch,) = [span for span in spans if span.name == "batch"]
    models = [context(span) for span in spans if span.name == "m"]
    assert [(link.context.trace_id, link.context.span_id) for link in batch.links] == models
    assert len(set(models)) == 3
    assert batch.parent is None
    assert (batch.attributes or {})["modserve.batch_size"] == 4
    for span in spans:
        if span.name == "compute":
            assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [context(batch)]
            assert abs((span.start_time or 0) - (batch.start_time or 0)) < 10**9


def test_requests_of_a_batch_that_run_again_alone() -> None:
    """The engine has refused the batch: what runs in the end is none."""
    bench = Bench()
    calls = [bench.call() for _ in range(2)]
    refused = run([inflight for _, inflight in calls])
    for trace, inflight in calls:
        inflight.timing = ExecutionTiming(1, "refused", 30, 31, 32, 33)
        inflight.settle(InferenceResponse("m", 3, {}))
        trace.end()
    assert refused.compute_end_ns
    spans = bench.end()
    assert [len(span.links) for span in spans if span.name == "compute"] == [0, 0]
    assert len(bench.tracer.batches) == 0


def test_a_request_that_runs_in_several_batches() -> None:
    """Iterative sequences: each time it leaves the batch before."""
    bench = Bench()
    trace, inflight = bench.call()
    for _ in range(3):
        run([inflight])
        assert len(bench.tracer.batches) == 1
    inflight.settle(InferenceResponse("m", 3, {}))
    trace.end()
    assert len(bench.tracer.batches) == 0
    assert names(bench.end()) == ["InferRequest", "m", "compute"]


# Who is traced


@pytest.mark.parametrize(
    ("settings", "requests", "expected"),
    [
        ({"rate": 3}, [None] * 7, [3, 6]),
        ({"rate": 0}, [None] * 5, []),
        ({"rate": 0}, [None, SAMPLED, UNSAMPLED, None], [2]),
        ({"rate": 1, "count": 2}, [None] * 4, [1, 2]),
        ({"rate": 1, "count": 1}, [None, None, SAMPLED, UNSAMPLED], [1, 3]),
        ({"rate": 1}, [UNSAMPLED, None], [2]),
        # As in Triton, requests that are traced anyway count: the fourth is the second of two.
        ({"rate": 2}, [None, UNSAMPLED, SAMPLED, None, None, None], [3, 5]),
        ({"rate": 1}, [TraceHeaders(b"nonsense"), None], [1, 2]),
        ({"level": TraceLevel.OFF}, [None, SAMPLED], []),
    ],
)
def test_sampling(settings: dict[str, Any], requests: list[TraceHeaders | None], expected: list[int]) -> None:
    spans = Spans(SLOW, "bench", InMemorySpanExporter())
    start = TraceSettings(**{"level": TraceLevel.TIMESTAMPS, **settings}, spans=SLOW)
    tracer = Tracer(start, AtOnce(), spans)
    assert tracer.on is ("level" not in settings)
    hits = []
    for number, headers in enumerate(requests, 1):
        trace = tracer.sample(Model(), headers)  # type: ignore[arg-type]
        if trace is not None:
            hits.append(number)
            trace.end()
    tracer.close()
    assert hits == expected


def test_settings_while_it_runs() -> None:
    bench = Bench(rate=0)
    bench.tracer.change({"level": TraceLevel.OFF})
    assert not bench.tracer.on
    assert bench.begin(headers=SAMPLED) is None
    bench.tracer.change({"level": TraceLevel.TIMESTAMPS, "rate": 0}, "m")
    assert bench.tracer.on
    trace = bench.begin(headers=SAMPLED)
    assert trace is not None
    assert bench.begin("other", SAMPLED) is None
    assert bench.begin() is None
    trace.end()
    assert names(bench.end()) == ["InferRequest"]


def test_a_clients_trace_goes_on() -> None:
    bench = Bench(rate=0)
    trace, inflight = bench.call(headers=SAMPLED)
    inflight.settle(InferenceResponse("m", 3, {}))
    passed = from_json(trace.context)
    assert trace.trace_id.encode() in SAMPLED.traceparent  # which exemplars of metrics have
    trace.end()
    call, model = bench.end()
    assert call.parent is not None
    assert f"{call.parent.trace_id:032x}-{call.parent.span_id:016x}".encode() in SAMPLED.traceparent
    assert call.parent.is_remote
    assert context(call)[0] == context(model)[0] == call.parent.trace_id
    assert passed is not None
    assert (passed.trace_id, passed.span_id) == context(model)
    assert (passed.sampled, passed.state, passed.baggage) == (True, "vendor=1", "user=me")
    known = call.get_span_context()
    assert known is not None
    assert known.trace_state.to_header() == "vendor=1"


def test_a_request_whose_call_is_in_another_worker() -> None:
    bench, elsewhere = Bench(), Bench()
    trace, _ = bench.call()
    part = elsewhere.tracer.continue_trace(Model(), trace.context)  # type: ignore[arg-type]
    inflight = submit_traced(part, Model(), request(), RecordingSink(), 10)
    run([inflight])
    inflight.settle(InferenceResponse("m", 3, {}))
    spans = elsewhere.end()
    assert names(spans) == ["m", "compute"]
    here = from_json(trace.context)
    assert here is not None
    assert parent(spans[0]) == here.span_id
    assert context(spans[1])[0] == here.trace_id
    trace.end()
    bench.end()


def test_a_file_has_no_spans() -> None:
    tracer = Tracer(TraceSettings(TraceLevel.TIMESTAMPS, 1, file="x"), AtOnce())
    trace = tracer.sample(Model(), UNSAMPLED)  # type: ignore[arg-type]
    assert trace is not None
    assert (trace.context, trace.spans, tracer.propagates, tracer.figures) == ("", None, False, None)
    trace.on_batch(ExecutionTiming())
    assert len(tracer.batches) == 0


# What is lost


class Failing(InMemorySpanExporter):
    """A collector that is not there, or raises what an exporter should not."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").error("Failed to export: %s", "refused")
        if self.error is not None:
            raise self.error
        return SpanExportResult.FAILURE


def ended(spans: Spans, count: int) -> None:
    """So many traces of one span each."""
    tracer = Tracer(TraceSettings(TraceLevel.TIMESTAMPS, 1, spans=SLOW), AtOnce(), spans)
    for _ in range(count):
        trace = tracer.sample(Model())  # type: ignore[arg-type]
        assert trace is not None
        trace.end()
    tracer.close()


@pytest.mark.parametrize(
    ("error", "reason"), [(None, "Failed to export: refused"), (RuntimeError("odd"), "RuntimeError: odd")]
)
def test_a_collector_that_is_not_there(caplog: pytest.LogCaptureFixture, error: Exception | None, reason: str) -> None:
    spans = Spans(SLOW, "bench", Failing(error))
    ended(spans, 3)
    assert spans.figures == SpanFigures(0, {EXPORT_FAILED: 3}, 0)
    assert [record.getMessage() for record in caplog.records] == [
        f"3 trace spans were lost: the collector did not accept them ({reason})"
    ]


def test_a_queue_that_is_full() -> None:
    spans = Spans(SpanSettings("", "", (), 2, 1_000_000, 2), "bench", exporter := Held())
    tracer = Tracer(TraceSettings(TraceLevel.TIMESTAMPS, 1, spans=SLOW), AtOnce(), spans)
    for _ in range(20):
        trace = tracer.sample(Model())  # type: ignore[arg-type]
        assert trace is not None
        trace.end()
    exporter.go.set()
    tracer.close()
    figures = spans.figures
    assert figures.exported + figures.dropped[QUEUE_FULL] == 20
    assert figures.exported == len(exporter.get_finished_spans()) <= 6


class Held(InMemorySpanExporter):
    """A collector that takes nothing before it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go.wait(20)
        return super().export(spans)


def test_the_end_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Held()
    spans = Spans(SLOW, "bench", exporter)
    tracer = Tracer(TraceSettings(TraceLevel.TIMESTAMPS, 1, spans=SLOW), AtOnce(), spans)
    trace = tracer.sample(Model())  # type: ignore[arg-type]
    assert trace is not None
    trace.end()
    spans.close(0.01)
    assert spans.figures.dropped == {STOPPED: 1}
    assert "1 trace spans were lost: the server stopped" in caplog.text
    exporter.go.set()


def test_losses_are_logged_at_once_and_then_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    losses = ExportStats(clock=lambda: now[0])
    for at_s in (0.0, 1.0, 59.0, 61.0, 62.0):
        now[0] = at_s
        losses.drop(2, QUEUE_FULL)
    assert [record.getMessage().split(" trace spans")[0] for record in caplog.records] == ["2", "6"]
    assert losses.dropped == {QUEUE_FULL: 10}


# What describes the server, and what the metrics say


def test_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=env,b=env")
    found = resource_of(SpanSettings(resource=(("b", "own"), ("c", "own"))), "mine").attributes
    assert [found[name] for name in ("service.name", "a", "b", "c")] == ["mine", "env", "own", "own"]
    assert found["telemetry.sdk.name"] == "opentelemetry"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "by environment")
    assert resource_of(SpanSettings(), "mine").attributes["service.name"] == "by environment"
    named = SpanSettings(resource=(("service.name", "by setting"),))
    assert resource_of(named, "mine").attributes["service.name"] == "by setting"


def test_metrics() -> None:
    assert list(span_families(None)) == []
    rows = {name: samples for name, _, _, samples in span_families(SpanFigures(5, {QUEUE_FULL: 2}, 1))}
    assert rows["modserve_trace_spans_exported_total"] == [({}, 5)]
    assert ({"reason": "queue_full"}, 2.0) in rows["modserve_trace_spans_dropped_total"]
    assert rows["modserve_trace_spans_waiting"] == [({}, 1)]


def test_what_the_front_end_knows_is_said_of_the_call_only() -> None:
    bench = Bench()
    trace, inflight = bench.call()
    trace.attributes = {"url.path": "/v2/models/m/infer"}
    run([inflight])
    trace.end()
    said = {span.name: dict(span.attributes or {}).get("url.path") for span in bench.end()}
    assert said.pop("InferRequest") == "/v2/models/m/infer"
    assert set(said.values()) == {None}

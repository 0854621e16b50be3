"""Traces as spans, from a client's span to what a collector gets of it, over OTLP/HTTP and OTLP/gRPC."""

import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from otlp_receiver import Receiver, Span, receiving
from python_models import tensors, write_python
from repositories import EXAMPLES, write_accumulator, write_identity
from server_process import ServerProcess, eventually, serving
from wire import (
    HOST,
    SECONDS,
    Ask,
    Input,
    binary_outputs,
    binary_request,
    channel,
    http,
    infer_path,
    ints,
    message,
    metric,
    stub,
)

REQUEST = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            inner = pb_utils.InferenceRequest(
                model_name="inner",
                requested_output_names=["OUTPUT0"],
                inputs=[pb_utils.Tensor("INPUT0", value)],
                trace=request.trace(),
            ).exec()
            context = request.trace().get_context() or ""
            texts = np.array([[context.encode()]], np.object_)
            error = inner.error() if inner.has_error() else None
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("CONTEXT", texts)], error))
        return responses
"""
FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        codes = [pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0] for request in requests]
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no luck", int(code))) for code in codes]
"""
WAITING = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }"
QUICK = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,bsp_schedule_delay=20"]
ONLY_CLIENTS = [*QUICK, "--trace-config=level=TIMESTAMPS", "--trace-config=rate=0"]


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    write_identity(place, "inner")
    write_identity(place, "batched", extra=WAITING)
    described = tensors("input", IN="INT32 1") + "\n" + tensors("output", CONTEXT="BYTES 1")
    described_failing = tensors("input", CODE="INT32 1") + "\n" + tensors("output", OUT="INT32 1")
    write_python(place, "failing", FAILING, described_failing, modes=["thread"])
    write_python(place, "caller", CALLER, f"max_batch_size: 8\n{WAITING.replace('3', '2')}\n{described}")
    return place


@pytest.fixture(scope="module")
def traced(collector: Receiver, repository: Path) -> Iterator[ServerProcess]:
    """Traces what its clients trace, and nothing else."""
    options = [
        *ONLY_CLIENTS,
        f"--trace-config=opentelemetry,url={HOST}:{collector.http_port}",
        "--trace-config=opentelemetry,resource=service.name=under-test",
        "--trace-config=opentelemetry,resource=stage=e2e",
    ]
    with serving(EXAMPLES, repository, options=options) as running:
        yield running


MADE = re.compile(r"[0-9a-f]+-[0-9a-f]+")
_numbers = iter(range(1, 1000))


Tree = dict[str, Any]


class Client:
    """A span of a client, below which the server's shall be."""

    def __init__(self, sampled: bool = True) -> None:
        number = next(_numbers)
        self.trace, self.id = f"{number:032x}", f"{number + 4096:016x}"
        self.headers = {"traceparent": f"00-{self.trace}-{self.id}-0{int(sampled)}", "tracestate": "vendor=1"}

    def http(self, server: ServerProcess, ask: Ask) -> Any:
        body, headers = binary_request(ask)
        return http(
            server.http_port, "POST", infer_path(ask.model), body, {**headers, **self.headers, "baggage": "a=b"}
        )

    def grpc(self, server: ServerProcess, ask: Ask) -> Any:
        with channel(server.grpc_port) as opened:
            return stub(opened).ModelInfer(message(ask), metadata=tuple(self.headers.items()), timeout=SECONDS)

    def grpc_stream(self, server: ServerProcess, *asks: Ask) -> list[Any]:
        with channel(server.grpc_port) as opened:
            metadata = tuple(self.headers.items())
            requests = iter([message(ask) for ask in asks])
            return list(stub(opened).ModelStreamInfer(requests, metadata=metadata, timeout=SECONDS))


def tree(spans: list[Span], parent: str) -> Tree:
    """Names below a span, and what is below them."""
    return {span.name: tree(spans, span.id) for span in spans if span.parent == parent}


def named(spans: list[Span], name: str) -> Span:
    (span,) = [span for span in spans if span.name == name]
    return span


def one(model: str, *values: int) -> Ask:
    return Ask((Input("INPUT0", "INT32", (1, len(values)), ints(*values)),), model, outputs=("OUTPUT0",))


def photo() -> Ask:
    return Ask((Input("photo", "UINT8", (1, 16, 16), bytes(256)),), "digits_pipeline", outputs=("label",))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_plain_model(traced: ServerProcess, collector: Receiver, protocol: str) -> None:
    client, before = Client(), time.time_ns()
    getattr(client, protocol)(traced, Ask(id="mine"))
    spans = collector.of(client.trace, 3)
    assert tree(spans, client.id) == {"InferRequest": {"simple": {"compute": {}}}}
    call, model, compute = (named(spans, name) for name in ("InferRequest", "simple", "compute"))
    assert sorted(call.events) == sorted(HTTP if protocol == "http" else GRPC)
    assert [list(model.events), list(compute.events)] == [REQUEST, COMPUTE]
    assert before <= call.start_ns <= model.start_ns <= compute.start_ns <= compute.end_ns
    assert compute.end_ns <= model.end_ns <= call.end_ns <= time.time_ns()
    assert {name: model.attributes[name] for name in model.attributes if "trace" not in name} == {
        "triton.model_name": "simple",
        "triton.model_version": 1,
        "triton.request_id": "mine",
    }
    said = dict(call.attributes)
    assert MADE.fullmatch(said.pop("modserve.request_id"))
    assert said.pop("client.address") == HOST
    if protocol == "http":
        assert said == {"http.request.method": "POST", "url.path": infer_path("simple")}
    else:
        assert said.pop("user_agent.original").startswith("grpc-python/")
        service = "inference.GRPCInferenceService"
        assert said == {"rpc.system": "grpc", "rpc.service": service, "rpc.method": "ModelInfer"}
    assert compute.attributes["modserve.batch_size"] == 1
    assert [span.kind for span in (call, model)] == ["SERVER", "INTERNAL"]
    assert {span.state for span in spans} == {"vendor=1"}
    resource = {name: call.resource[name] for name in ("service.name", "stage")}
    assert resource == {"service.name": "under-test", "stage": "e2e"}
    assert collector.paths == {"/v1/traces"}


def test_a_batch(traced: ServerProcess, collector: Receiver) -> None:
    clients = [Client() for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda client: client.http(traced, one("batched", 1)), clients))
    spans = [span for client in clients for span in collector.of(client.trace, 3)]
    computes = [span for span in spans if span.name == "compute"]
    ((batch_trace, batch_id),) = {link for span in computes for link in span.links}
    (batch,) = collector.of(batch_trace, 1)
    assert (batch.name, batch.id, batch.parent) == ("batch", batch_id, "")
    assert sorted(batch.links) == sorted((span.trace, span.id) for span in spans if span.name == "batched")
    assert (batch.attributes["modserve.batch_size"], batch.attributes["triton.model_name"]) == (3, "batched")
    assert {span.attributes["modserve.batch_size"] for span in computes} == {3}


def test_an_ensemble(traced: ServerProcess, collector: Receiver) -> None:
    client = Client()
    assert client.http(traced, photo()).status == 200
    spans = collector.of(client.trace, 6)
    steps: Tree = {"digits_resize": {"compute": {}}, "digits": {"compute": {}}}
    assert tree(spans, client.id) == {"InferRequest": {"digits_pipeline": steps}}
    whole = named(spans, "digits_pipeline")
    for step in steps:
        span = named(spans, step)
        assert span.attributes["triton.trace_parent_id"] == whole.attributes["triton.trace_id"]
        assert whole.start_ns <= span.start_ns <= span.end_ns <= whole.end_ns


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_calls_of_a_model_in_python(traced: ServerProcess, collector: Receiver, mode: str) -> None:
    """Two requests in one batch: each call is in the trace of its own, and each request knows its span."""
    clients = [Client(), Client()]
    ask = Ask((Input("IN", "INT32", (1, 1), ints(7)),), f"caller_{mode}", outputs=("CONTEXT",))
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda client: client.http(traced, ask), clients))
    for client, answer in zip(clients, answers, strict=True):
        spans = collector.of(client.trace, 5)
        called: Tree = {"compute": {}, "inner": {"compute": {}}}
        assert tree(spans, client.id) == {"InferRequest": {f"caller_{mode}": called}}
        model = named(spans, f"caller_{mode}")
        raw = binary_outputs(answer)["CONTEXT"]
        assert json.loads(raw[struct.calcsize("<I") :]) == {
            "traceparent": f"00-{client.trace}-{model.id}-01",
            "tracestate": "vendor=1",
            "baggage": "a=b",
        }


def test_a_stream(traced: ServerProcess, collector: Receiver) -> None:
    client = Client()
    inputs = Input("IN", "INT32", (2,), ints(1, 2)), Input("DELAY", "UINT32", (2,), ints(0, 0))
    ask = Ask((*inputs, Input("WAIT", "UINT32", (1,), ints(0))), "repeat")
    assert len(client.grpc_stream(traced, ask)) == 2
    spans = collector.of(client.trace, 3)
    assert tree(spans, client.id) == {"InferRequest": {"repeat": {"compute": {}}}}
    events = list(named(spans, "InferRequest").events)
    assert [events.count(name) for name in ("INFER_RESPONSE_COMPLETE", "GRPC_SEND_END")] == [2, 2]
    page = http(traced.metrics_port, "GET", "/metrics", headers={"Accept": "application/openmetrics-text"}).body
    for family in ("modserve_request_duration_seconds", "nv_inference_first_response_histogram_ms"):
        exemplars = [line for line in page.decode().splitlines() if line.startswith(f'{family}_bucket{{model="repeat"')]
        assert any(f'# {{trace_id="{client.trace}"}}' in line for line in exemplars), family


def test_generate_and_v1(traced: ServerProcess, collector: Receiver) -> None:
    for path, body in (
        ("/v2/models/repeat/generate_stream", {"IN": [1, 2], "DELAY": [0, 0], "WAIT": [0]}),
        ("/v1/models/inner:predict", {"instances": [{"INPUT0": [1]}]}),
    ):
        client = Client()
        answer = http(traced.http_port, "POST", path, json.dumps(body).encode(), client.headers)
        assert answer.status == 200, answer.body
        assert tree(collector.of(client.trace, 3), client.id)["InferRequest"]


def test_failures(traced: ServerProcess, collector: Receiver) -> None:
    client = Client()
    assert client.http(traced, one("simple", 1)).status == 400
    (call,) = collector.of(client.trace, 1)
    assert (call.error, call.attributes["error.type"]) == (None, "INVALID_ARG")
    assert "INPUT" in call.attributes["modserve.error_message"]
    assert (call.attributes["triton.model_name"], call.attributes["triton.model_version"]) == ("simple", 1)
    client = Client()
    with pytest.raises(grpc.RpcError) as refused:
        client.grpc(traced, one("simple", 1))
    (call,) = collector.of(client.trace, 1)
    assert (call.error, call.attributes["modserve.error_message"]) == (None, refused.value.details())


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc_stream"])
@pytest.mark.parametrize(
    "code", ["INVALID_ARG", "NOT_FOUND", "ALREADY_EXISTS", "INTERNAL", "UNAVAILABLE", "UNSUPPORTED"]
)
def test_only_failures_of_the_server_make_its_span_an_error(
    traced: ServerProcess, collector: Receiver, code: str, protocol: str
) -> None:
    """That of the model is one anyway: its work has failed."""
    number = {"INTERNAL": 1, "NOT_FOUND": 2, "INVALID_ARG": 3, "UNAVAILABLE": 4, "UNSUPPORTED": 5, "ALREADY_EXISTS": 6}
    client = Client()
    with suppress(grpc.RpcError):
        getattr(client, protocol)(traced, Ask((Input("CODE", "INT32", (1,), ints(number[code])),), "failing_thread"))
    spans = collector.of(client.trace, 3)
    call, model = named(spans, "InferRequest"), named(spans, "failing_thread")
    assert call.attributes["error.type"] == model.attributes["error.type"] == code
    is_of_server = code in ("INTERNAL", "UNAVAILABLE", "UNSUPPORTED")
    assert (call.error, call.attributes.get("modserve.error_message")) == (
        ("no luck", None) if is_of_server else (None, "no luck")
    )
    assert model.error == "no luck"


def test_who_is_traced(traced: ServerProcess, collector: Receiver) -> None:
    """Neither those whose clients trace them without recording, nor those of clients that do not."""
    unsampled, before = Client(sampled=False), len({span.trace for span in collector.spans})
    for _ in range(3):
        assert unsampled.http(traced, Ask()).status == 200
    assert http(traced.http_port, "POST", infer_path("simple"), *binary_request(Ask())).status == 200
    last = Client()
    last.http(traced, Ask())
    collector.of(last.trace, 3)
    assert len({span.trace for span in collector.spans}) == before + 1


def test_settings(traced: ServerProcess, collector: Receiver) -> None:
    shown = http(traced.http_port, "GET", "/v2/trace/setting").json
    assert shown == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "0",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": f"{HOST}:{collector.http_port}",
        "resource": "service.name=under-test,stage=e2e",
        "bsp_max_queue_size": "2048",
        "bsp_schedule_delay": "20",
        "bsp_max_export_batch_size": "512",
    }
    change: Callable[[Any], Any] = lambda body: http(  # noqa: E731
        traced.http_port, "POST", "/v2/models/inner/trace/setting", json.dumps(body).encode()
    )
    assert change({"trace_mode": "triton"}).status == 501
    assert change({"trace_level": ["OFF"], "trace_mode": "opentelemetry"}).status == 200
    off, on = Client(), Client()
    off.http(traced, one("inner", 1))
    assert change({"trace_level": None}).status == 200
    on.http(traced, one("inner", 1))
    collector.of(on.trace, 3)
    assert off.trace not in {span.trace for span in collector.spans}


def test_metrics(traced: ServerProcess, collector: Receiver) -> None:
    client = Client()
    client.http(traced, Ask())
    collector.of(client.trace, 3)
    eventually(lambda: figure(traced, "exported_total") >= 3)
    assert figure(traced, "waiting") == 0
    assert metric(traced, "modserve_trace_spans_dropped_total", reason="export_failed") == 0


def figure(server: ServerProcess, name: str) -> float:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith(f"modserve_trace_spans_{name} ")]
    return float(line.split()[1])


def test_workers_over_grpc(collector: Receiver, tmp_path: Path) -> None:
    """Each has its own exporter, by the environment's variables, and every second request is traced; what is left at
    the end is sent then. A sequence that belongs to another worker has one trace."""
    write_accumulator(tmp_path, "sum", "direct { }", "max_sequence_idle_microseconds: 600000000")
    options = ["--workers=2", *QUICK[:1], "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1000"]
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{collector.grpc_port}",
        "OTEL_SERVICE_NAME": "several",
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
    }
    clients = [Client() for _ in range(8)]
    with serving(tmp_path, options=options, environment=environment) as running:
        body = {
            "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
            "parameters": {"sequence_id": 77, "sequence_start": True, "sequence_end": True},
        }
        for client in clients:
            answer = http(running.http_port, "POST", infer_path("sum"), json.dumps(body).encode(), client.headers)
            assert answer.status == 200, answer.body
        assert not [span for span in collector.spans if span.resource["service.name"] == "several"]
    spans = [span for client in clients for span in collector.of(client.trace, 3)]
    assert {span.resource["service.name"] for span in spans} == {"several"}
    forwarded: Tree = {"InferRequest": {"sum": {"sum": {"compute": {}}}}}
    here: Tree = {"InferRequest": {"sum": {"compute": {}}}}
    trees = [tree(collector.of(client.trace, 3), client.id) for client in clients]
    assert all(each in (forwarded, here) for each in trees)
    instances = {span.resource["service.instance.id"] for span in spans}
    assert len(instances) == (2 if forwarded in trees else 1)


def test_a_collector_that_is_not_there(repository: Path) -> None:
    """It costs nothing but the spans; the end does not wait for it for long."""
    options = [
        *QUICK,
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        f"--trace-config=opentelemetry,url=http://{HOST}:9",
    ]
    environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with serving(EXAMPLES, options=options, environment=environment) as running:
        for _ in range(3):
            assert http(running.http_port, "POST", infer_path("simple"), *binary_request(Ask())).status == 200
        name = "modserve_trace_spans_dropped_total"
        eventually(lambda: metric(running, name, reason="export_failed") >= 3)
        running.wait_for(r"WARNING .*span_export: \d+ trace spans were lost: the collector did not accept them \(.*\)")
        assert "opentelemetry." not in running.log

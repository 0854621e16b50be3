"""Secrets that clients send as headers are in no log and no trace, at any level, over either protocol."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from otlp_receiver import receiving
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server, eventually
from wire import HOST, SECONDS, Ask, binary_request, channel, http, infer_path, message, stub

SECRET = "c0ffee-secret-5f3a"
"""In all of the headers below: nothing else that is sent has it."""
HEADERS = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET, "Cookie": f"session={SECRET}", "Admin-Key": SECRET}
METADATA: list[tuple[str, str | bytes]] = [
    *((name.lower(), value) for name, value in HEADERS.items()),
    ("triton-grpc-protocol-admin-key", SECRET),
]
METADATA += [("secret-bin", SECRET.encode())]
OPTIONS = [
    "--log-verbose=9",
    "--access-log=all",
    f"--http-restricted-api=model-repository:admin-key={SECRET}",
    f"--grpc-restricted-protocol=model-repository:admin-key={SECRET}",
    "--trace-config=level=TIMESTAMPS",
    "--trace-config=level=TENSORS",
    "--trace-config=rate=1",
]


def call_everything(server: Server, model: str) -> None:
    """Calls that succeed, calls that fail, and some that are no calls."""
    port = server.http_port
    for name in (model, "no_such_model"):
        body, headers = binary_request(Ask(model=name))
        http(port, "POST", infer_path(name), body, {**headers, **HEADERS})
        http(port, "POST", infer_path(name), b"{", HEADERS)
    for path in ("/v2", "/metrics", "/nowhere", f"/v2/models/{model}/stats", "/console/failures"):
        http(port, "GET", path, headers=HEADERS)
    for path in ("/v2/repository/index", "/v2/repository/models/simple/load", f"/v1/models/{model}:predict"):
        http(port, "POST", path, b"{}", HEADERS)
        http(port, "POST", path, b"{}", {**HEADERS, "Admin-Key": f"not {SECRET}"})
    http(port, "POST", "/v2", b"", {**HEADERS, "Content-Length": f"x{SECRET}"})
    http(server.metrics_port, "GET", "/metrics", headers=HEADERS)
    with channel(server.grpc_port) as opened:
        service = stub(opened)
        for name in (model, "no_such_model"):
            _outcome(service.ModelInfer, message(Ask(model=name)))
            _outcome(lambda ask, **more: list(service.ModelStreamInfer(iter([ask]), **more)), message(Ask(model=name)))
        for method in ("Unknown", "RepositoryIndex"):
            _outcome(opened.unary_unary(f"/inference.GRPCInferenceService/{method}", None, None), b"")


def _outcome(call: Any, request: Any) -> None:
    try:
        call(request, metadata=METADATA, timeout=SECONDS)
    except grpc.RpcError:
        pass


@pytest.mark.parametrize("form", ["default", "ISO8601", "json"])
def test_logs_and_traces_of_tritons_form(form: str, tmp_path: Path) -> None:
    log, traces = tmp_path / "log", tmp_path / "trace.json"
    options = [*OPTIONS, f"--trace-config=triton,file={traces}", f"--log-file={log}", f"--log-format={form}"]
    with serving_here(EXAMPLES, options=options) as server:
        call_everything(server, "simple")
        eventually(lambda: "RepositoryIndex" in log.read_text())
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()} | {"standard error": server.log}
    assert {"log", "trace.json"} <= set(texts)
    assert "simple" in texts["log"]
    assert "GRPC_WAITREAD_START" in texts["trace.json"]
    assert "HTTP_RECV_START" in texts["trace.json"]
    assert [name for name, text in texts.items() if SECRET in text] == []


def test_spans() -> None:
    with receiving() as receiver:
        options = [
            *OPTIONS,
            "--trace-config=mode=opentelemetry",
            "--trace-config=opentelemetry,bsp_schedule_delay=20",
            f"--trace-config=opentelemetry,url={HOST}:{receiver.http_port}",
        ]
        with serving_here(EXAMPLES, options=options) as server:
            call_everything(server, "simple")
            eventually(lambda: "RepositoryIndex" in server.log)
        spans = receiver.spans
    assert {"InferRequest"} <= {span.name for span in spans}
    assert [span for span in spans if SECRET in repr(span)] == []
    assert SECRET not in server.log

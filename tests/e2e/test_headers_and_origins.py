"""Headers that go along with requests, and pages of other origins: a real server, with options of its own."""

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, Ask, binary_request, http, infer_path

PAGE = "https://page.example"
RESERVED = "Header '{}' is reserved for Triton usage and cannot be forwarded."
A = np.arange(16, dtype=np.int32).reshape(1, 16)
OPTIONS = [
    "--http-header-forward-pattern=^(x-|priority)",
    "--grpc-header-forward-pattern=^(x-|priority)",
    f"--http-cors-allow-origin={PAGE}",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_here(EXAMPLES, options=OPTIONS) as process:
        yield process


def inputs(module: Any) -> list[Any]:
    found = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in found:
        each.set_data_from_numpy(A)
    return found


def test_headers_of_the_http_client(server: Server) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        result = client.infer("simple", inputs(tritonclient.http), headers={"X-User": "a"})
        assert (result.as_numpy("OUTPUT0") == A + A).all()
        with pytest.raises(InferenceServerException) as caught:
            client.infer("simple", inputs(tritonclient.http), headers={"priority": "1"})
        assert caught.value.message() == RESERVED.format("priority")


def test_metadata_of_the_grpc_client(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        result = client.infer("simple", inputs(tritonclient.grpc), headers={"x-user": "a", "x-raw-bin": b"\xff"})
        assert (result.as_numpy("OUTPUT0") == A + A).all()
        with pytest.raises(InferenceServerException) as caught:
            client.infer("simple", inputs(tritonclient.grpc), headers={"priority": "1"})
        assert caught.value.message() == RESERVED.format("priority")


def test_metadata_of_a_stream(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers={"priority": "1"})
        client.async_stream_infer("simple", inputs(tritonclient.grpc))
        result, error = answers.get(timeout=SECONDS)
        client.stop_stream()
    assert result is None
    assert error.message() == RESERVED.format("priority")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2"), ("POST", infer_path("simple")), ("GET", "/nowhere")])
def test_a_page_may_read_the_answer(server: Server, method: str, path: str) -> None:
    body, headers = binary_request(Ask()) if method == "POST" else (b"", {})
    for origin, expected in ((PAGE, PAGE), ("https://other.example", None)):
        answer = http(server.http_port, method, path, body, {**headers, "Origin": origin})
        assert answer.headers.get("Access-Control-Allow-Origin") == expected
        assert answer.headers["Vary"] == "Origin"


def test_preflight(server: Server) -> None:
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,inference-header-content-length",
    }
    answer = http(server.http_port, "OPTIONS", infer_path("simple"), headers=headers)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert answer.headers["Access-Control-Allow-Headers"] == headers["Access-Control-Request-Headers"]
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]

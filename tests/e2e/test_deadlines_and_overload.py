"""Deadlines of clients, requests refused by prediction, and why batches did not grow."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest
from repositories import write_identity
from server_process import ServerProcess, eventually, serving
from wire import (
    SECONDS,
    Answer,
    Ask,
    Input,
    binary_request,
    channel,
    connect,
    http,
    http_infer,
    infer_path,
    ints,
    message,
    metric,
    send,
    stub,
)

SHORT = {"X-Request-Timeout-Ms": "30"}
SLOW, GUARDED = (Ask((Input("INPUT0", "INT32", (1, 2), ints(1, 2)),), model) for model in ("slow", "guarded"))
GATE = {"scheduling.admission": "deadline", "scheduling.overload_status": "429"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`slow` takes 150 ms, and so does `guarded`, which refuses what would be late."""
    repository = tmp_path_factory.mktemp("slow")
    write_identity(repository, "slow", parameters={"execute_delay_ms": 150})
    write_identity(repository, "guarded", parameters={"execute_delay_ms": 150, **GATE}, extra="dynamic_batching { }")
    with serving(repository) as running:
        yield running


def infer(server: ServerProcess, ask: Ask, headers: dict[str, str]) -> Answer:
    body, own = binary_request(ask)
    return http(server.http_port, "POST", infer_path(ask.model), body, {**own, **headers})


@contextmanager
def busy(port: int, ask: Ask, count: int) -> Iterator[None]:
    """While the block runs, so many requests are sent at once on connections of their own, or are being answered."""
    body, headers = binary_request(ask)
    opened = [connect(port) for _ in range(count)]
    for connection in opened:
        connection.request("POST", infer_path(ask.model), body, headers)
    yield
    for connection in opened:
        with closing(connection):
            assert connection.getresponse().status == 200


def test_a_deadline_passes_in_the_queue(server: ServerProcess) -> None:
    with busy(server.http_port, SLOW, 3):
        answer = _refusal(server, SLOW)
        assert (answer.status, answer.json) == (503, {"error": "Request timeout expired"})
    assert infer(server, SLOW, {"Grpc-Timeout": "20S"}).status == 200


def _refusal(server: ServerProcess, ask: Ask) -> Answer:
    """The answer to the first request of a client in a hurry that is refused: the others found the model idle."""

    def refused() -> list[Answer]:
        answer = infer(server, ask, SHORT)
        return [] if answer.status == 200 else [answer]

    return eventually(refused)[0]


def test_who_would_be_late_is_refused_at_once(server: ServerProcess) -> None:
    assert http_infer(server.http_port, GUARDED).status == 200  # and it is known how long that takes
    with busy(server.http_port, GUARDED, 3):
        answer = _refusal(server, GUARDED)
        assert answer.status == 429
        assert answer.headers["Retry-After"] == "1"
        assert "Request refused, it would come too late: predicted " in answer.json["error"]
        assert infer(server, GUARDED, {}).status == 200
    assert metric(server, "nv_inference_request_failure", model="guarded", reason="REJECTED") >= 1


def test_the_same_over_grpc(server: ServerProcess) -> None:
    assert http_infer(server.http_port, GUARDED).status == 200

    def refused() -> list[Any]:
        try:
            stub(opened).ModelInfer(message(GUARDED), timeout=0.1)
        except grpc.RpcError as error:
            return [error] if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else []
        return []

    with channel(server.grpc_port) as opened:
        with busy(server.http_port, GUARDED, 3):
            (error,) = eventually(refused)
            assert "predicted " in error.details()
            assert [int(value) > 0 for key, value in error.trailing_metadata() if key == "grpc-retry-pushback-ms"] == [
                True
            ]
        assert stub(opened).ModelInfer(message(GUARDED), timeout=SECONDS).model_name == "guarded"


def test_why_batches_did_not_grow(server: ServerProcess) -> None:
    assert http_infer(server.http_port, GUARDED).status == 200
    with closing(connect(server.http_port)) as connection:
        found = send(connection, "GET", "/v2/models/guarded/batches").json
    assert found["close_reasons"]["idle_instance"] >= 1
    assert found["recent"][0]["compute_us"] >= 150_000
    count = found["close_reasons"]["idle_instance"]
    assert metric(server, "modserve_batches_closed", model="guarded", reason="idle_instance") >= count


def test_a_header_that_says_no_time(server: ServerProcess) -> None:
    answer = infer(server, SLOW, {"X-Request-Timeout-Ms": "soon"})
    assert answer.status == 400
    assert "x-request-timeout-ms" in answer.json["error"]

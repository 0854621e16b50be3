"""``--access-log=all``, ids of requests and SIGHUP, with the log in a file of JSON lines."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from python_models import MODES, write_python
from repositories import EXAMPLES
from server_process import GRPC_ENGINES, ServerProcess, eventually, grpc_engine, serving
from tritonclient.grpc import service_pb2
from wire import SECONDS, Answer, Ask, Input, binary_request, channel, http, infer_path, ints, message, stub

MADE = re.compile(r"[0-9a-f]{10}-[0-9a-f]+")
FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("a\\nb")
"""
CONFIG = """
max_batch_size: 0
input { name: "IN" data_type: TYPE_INT32 dims: -1 }
output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
"""
SIMPLE = {name: [1] * 16 for name in ("INPUT0", "INPUT1")}


class Served:
    def __init__(self, server: ServerProcess, file: Path) -> None:
        self.server = server
        self.file = file

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def of(self, request_id: str, logger: str = "modserve.access") -> dict[str, Any]:
        """The one record of a logger about a request."""

        def look() -> list[dict[str, Any]]:
            return [
                record
                for record in self.records()
                if record.get("request_id") == request_id and record["logger"] == logger
            ]

        (record,) = eventually(look)
        return record


def infer(served: Served, ask: Ask, request_id: str = "") -> Answer:
    body, headers = binary_request(ask)
    if request_id:
        headers = {**headers, "X-Request-ID": request_id}
    return http(served.server.http_port, "POST", infer_path(ask.model), body, headers)


def echoed(answer: Answer) -> str:
    """The id that a response repeats."""
    return {name.lower(): value for name, value in answer.headers.items()}["x-request-id"]


@pytest.fixture(scope="module", params=GRPC_ENGINES)
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    with grpc_engine(request.param), served_with(tmp_path_factory.mktemp("logged"), "--access-log=all") as running:
        yield running


@contextmanager
def served_with(folder: Path, *options: str) -> Iterator[Served]:
    write_python(folder / "models", "failing", FAILING, CONFIG)
    file = folder / "log"
    with serving(EXAMPLES, folder / "models", options=["--log-format=json", f"--log-file={file}", *options]) as server:
        yield Served(server, file)


def test_an_inference_over_http(served: Served) -> None:
    answer = infer(served, Ask(id="mine"), "http-1")
    assert echoed(answer) == "http-1"
    record = served.of("http-1")
    for key in ("time", "client", "queue_us", "compute_us", "total_us"):
        assert record.pop(key) is not None
    assert record.pop("request_bytes") > 128
    assert record.pop("response_bytes") > 128
    assert record == {
        "level": "INFO",
        "logger": "modserve.access",
        "message": "request",
        "protocol": "HTTP",
        "call": "infer",
        "model": "simple",
        "version": 1,
        "status": 200,
        "batch_size": 1,
        "id": "mine",
        "request_id": "http-1",
    }


@pytest.mark.parametrize("sent", ["", "with blanks", "x" * 129, "é"])
def test_an_id_is_made(served: Served, sent: str) -> None:
    ids = [echoed(infer(served, Ask(), sent)) for _ in range(2)]
    assert ids[0] != ids[1]
    for request_id in ids:
        assert MADE.fullmatch(request_id)
        assert served.of(request_id)["status"] == 200


def test_every_other_call_over_http(served: Served) -> None:
    body = json.dumps(SIMPLE).encode()
    predicted = json.dumps({"instances": [SIMPLE] * 9}).encode()
    for number, (method, path, content, status, model) in enumerate(
        (
            ("GET", "/v2/health/ready", b"", 200, None),
            ("GET", "/v2/models/nosuch", b"", 404, None),
            ("POST", "/v2/models/simple/generate", body, 200, "simple"),
            ("POST", "/v2/models/simple/generate", b"{", 400, "simple"),
            ("POST", "/v2/models/simple/generate_stream", body, 200, "simple"),
            ("POST", "/v1/models/simple:predict", predicted, 200, "simple"),
        )
    ):
        answer = http(served.server.http_port, method, path, content, {"X-Request-ID": f"call-{number}"})
        assert echoed(answer) == f"call-{number}", path
        record = served.of(f"call-{number}")
        assert (record["call"], record["status"], record.get("model")) == (f"{method} {path}", status, model)
        assert record["request_bytes"] == len(content)
        assert record["response_bytes"] > 0 or path.endswith("ready")
        assert ("compute_us" in record) == (status == 200 and model is not None)


@pytest.mark.parametrize("mode", MODES)
def test_failures_have_the_id_in_each_of_their_lines(served: Served, mode: str) -> None:
    path = f"/v2/models/failing_{mode}/infer"
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}).encode()
    answer = http(served.server.http_port, "POST", path, body, {"X-Request-ID": f"fails-{mode}"})
    assert echoed(answer) == f"fails-{mode}"
    assert served.of(f"fails-{mode}")["status"] == answer.status == 500
    assert "ValueError" in served.of(f"fails-{mode}", "modserve.observability.failure_log")["error"]
    lines = [record for record in served.records() if "Traceback" in record["message"]]
    assert f"fails-{mode}" in [record.get("request_id") for record in lines]


def test_what_is_no_request(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.server.http_port)) as client:
        client.sendall(b"no request\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
    (record,) = eventually(lambda: [each for each in served.records() if each.get("call") == "-"])
    assert record["status"] == 400


def test_over_grpc(served: Served) -> None:
    with channel(served.server.grpc_port) as open_channel:
        for number, model, code in ((1, "simple", "OK"), (2, "nosuch", "NOT_FOUND")):
            metadata = (("x-request-id", f"grpc-{number}"),)
            call = stub(open_channel).ModelInfer.future(
                message(Ask(model=model, id="own")), timeout=SECONDS, metadata=metadata
            )
            assert call.code().name == code
            sent_back = dict(call.initial_metadata()) | dict(call.trailing_metadata())
            assert sent_back["x-request-id"] == f"grpc-{number}"
            record = served.of(f"grpc-{number}")
            assert record["client"].startswith(("127.0.0.1:", "ipv4:"))
            about = {key: record[key] for key in ("protocol", "call", "model", "status", "id")}
            expected = {"protocol": "gRPC", "call": "ModelInfer", "model": model, "status": code, "id": "own"}
            assert about == expected
            assert ("compute_us" in record) == (code == "OK")


def test_a_stream_over_grpc(served: Served) -> None:
    requests = [message(Ask(id=str(number))) for number in range(3)]
    metadata = (("x-request-id", "stream-1"),)
    with channel(served.server.grpc_port) as open_channel:
        answers = list(stub(open_channel).ModelStreamInfer(iter(requests), timeout=SECONDS, metadata=metadata))
    assert len(answers) == 3

    def lines() -> list[dict[str, Any]]:
        records = [record for record in served.records() if record.get("request_id") == "stream-1"]
        return records if len(records) == 3 else []

    for number, record in enumerate(eventually(lines)):
        assert (record["call"], record["status"], record["id"]) == ("ModelStreamInfer", "OK", str(number))
        assert min(record["request_bytes"], record["response_bytes"], record["total_us"]) > 0


def test_a_stream_of_many_responses(served: Served) -> None:
    """A line when the last response has been sent, with how many there were."""
    values = {"IN": [1, 2, 3], "DELAY": [0, 0, 0], "WAIT": [0]}
    tensors = (
        Input(name, "INT32" if name == "IN" else "UINT32", (len(each),), ints(*each)) for name, each in values.items()
    )
    asks = iter([message(Ask(tuple(tensors), "repeat"))])
    with channel(served.server.grpc_port) as open_channel:
        answers = list(
            stub(open_channel).ModelStreamInfer(asks, timeout=SECONDS, metadata=(("x-request-id", "many-1"),))
        )
    assert len(answers) == 3
    path = "/v2/models/repeat/generate_stream"
    answer = http(served.server.http_port, "POST", path, json.dumps(values).encode(), {"X-Request-ID": "many-2"})
    assert answer.body.count(b"data: ") == 3
    for request_id, call, status in (("many-1", "ModelStreamInfer", "OK"), ("many-2", f"POST {path}", 200)):
        record = served.of(request_id)
        assert (record["call"], record["model"], record["status"]) == (call, "repeat", status)
        assert record["responses"] == 3
        assert min(record["request_bytes"], record["response_bytes"], record["total_us"]) > 0


def test_a_failure_in_a_stream(served: Served) -> None:
    """The stream goes on, and the line of the request has its status."""
    requests = [message(Ask(model=model, id=model)) for model in ("simple", "nosuch")]
    with channel(served.server.grpc_port) as open_channel:
        metadata = (("x-request-id", "half"),)
        call = stub(open_channel).ModelStreamInfer(iter(requests), timeout=SECONDS, metadata=metadata)
        assert sorted(bool(each.error_message) for each in call) == [False, True]
        assert call.code().name == "OK"

    def lines() -> dict[str, str]:
        records = [record for record in served.records() if record["logger"] == "modserve.access"]
        statuses = {record["id"]: record["status"] for record in records if record.get("request_id") == "half"}
        return statuses if len(statuses) == 2 else {}

    assert eventually(lines) == {"simple": "OK", "nosuch": "NOT_FOUND"}
    assert served.of("half", "modserve.observability.failure_log")["model"] == "nosuch"


def test_a_client_that_leaves_its_stream(served: Served) -> None:
    inputs = (
        Input("IN", "INT32", (2,), ints(1, 2)),
        Input("DELAY", "UINT32", (2,), ints(0, 600_000)),
        Input("WAIT", "UINT32", (1,), ints(0)),
    )
    with channel(served.server.grpc_port) as open_channel:
        metadata = (("x-request-id", "leaves"),)
        asks = iter([message(Ask(inputs, "repeat"))])
        call = stub(open_channel).ModelStreamInfer(asks, timeout=SECONDS, metadata=metadata)
        assert not next(call).error_message
        call.cancel()
        record = served.of("leaves")
    assert (record["model"], record["status"]) == ("repeat", "CANCELLED")


def test_other_calls_over_grpc(served: Served) -> None:
    with channel(served.server.grpc_port) as open_channel:
        metadata = (("x-request-id", "live"),)
        stub(open_channel).ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS, metadata=metadata)
    assert (served.of("live")["call"], served.of("live")["status"]) == ("ServerLive", "OK")


def test_the_path_of_a_request(served: Served) -> None:
    def settings(level: int) -> None:
        body = json.dumps({"log_verbose_level": level}).encode()
        assert http(served.server.http_port, "POST", "/v2/logging", body).status == 200

    settings(1)
    infer(served, Ask(), "followed")
    settings(0)
    infer(served, Ask(), "alone")
    served.of("alone")
    steps = [each["message"] for each in served.records() if each.get("request_id") == "followed"]
    assert len(steps) == 3
    assert re.search(r"^request followed of model 'simple', version 1: received .* accepted and queued", steps[0])
    assert re.search(r"batch of 1 closed because .*; executed: .*; settled \d+ us after .*: a response of", steps[1])
    assert len([each for each in served.records() if each.get("request_id") == "alone"]) == 1


def test_a_hang_up_opens_the_file_anew(served: Served) -> None:
    os.rename(served.file, served.file.with_name("log.1"))
    served.server.signal(signal.SIGHUP)
    eventually(lambda: served.file.exists() and "opened anew" in served.file.read_text())
    assert http(served.server.http_port, "GET", "/v2/health/live").status == 200

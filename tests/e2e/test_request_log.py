"""``--access-log=all``, ids of requests and SIGHUP, with the log in a file of JSON lines."""

import itertools
import json
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from python_models import MODES, write_python
from repositories import EXAMPLES
from server_here import serving_here
from server_process import ServerProcess, eventually, serving
from tritonclient.grpc import service_pb2
from wire import SECONDS, Answer, Ask, Input, binary_request, channel, http, infer_path, ints, message, stub

NUMBERS = itertools.count()
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


def records_in(file: Path) -> list[dict[str, Any]]:
    """Without a last line of which a part is not written yet."""
    lines, _, _ = file.read_text().rpartition("\n")
    return [json.loads(line) for line in lines.splitlines()]


class Served:
    def __init__(self, server: ServerProcess, file: Path) -> None:
        self.server = server
        self.file = file

    def records(self) -> list[dict[str, Any]]:
        return records_in(self.file)

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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_with(tmp_path_factory.mktemp("logged"), "--access-log=all") as running:
        yield running


@contextmanager
def served_with(
    folder: Path, *options: str, start: Callable[..., AbstractContextManager[Any]] = serving
) -> Iterator[Served]:
    write_python(folder / "models", "failing", FAILING, CONFIG)
    file = folder / "log"
    with start(EXAMPLES, folder / "models", options=["--log-format=json", f"--log-file={file}", *options]) as server:
        yield Served(server, file)


def test_lines_have_the_trace_of_the_client(served: Served) -> None:
    port, numbers = served.server.http_port, itertools.count(1)

    def span() -> tuple[str, str, str]:
        """A trace, the header that names it, and the id of the request."""
        trace_id = f"{next(numbers):032x}"
        return trace_id, f"00-{trace_id}-b7ad6b7169203331-01", f"traced-{trace_id[-2:]}"

    body, headers = binary_request(Ask())
    texts = json.dumps(SIMPLE).encode()
    calls: list[tuple[str, str, bytes, dict[str, str]]] = [
        *[("POST", infer_path("simple"), body, headers)] * 3,  # heads that are remembered
        ("POST", "/v2/models/simple/generate", texts, {}),
        ("POST", "/v2/models/simple/generate_stream", texts, {}),
        ("GET", "/v2/models/simple", b"", {}),
        ("GET", "/v2/nothing", b"", {}),
    ]
    for method, path, content, more in calls:
        trace_id, traceparent, request_id = span()
        http(port, method, path, content, {**more, "Traceparent": traceparent, "X-Request-ID": request_id})
        assert served.of(request_id)["trace_id"] == trace_id, path
    with channel(served.server.grpc_port) as opened:
        for name, argument in (
            ("ModelInfer", message(Ask())),
            ("ModelStreamInfer", iter([message(Ask())])),
            ("ServerMetadata", service_pb2.ServerMetadataRequest()),
        ):
            trace_id, traceparent, request_id = span()
            metadata = (("traceparent", traceparent), ("x-request-id", request_id))
            answer = getattr(stub(opened), name)(argument, metadata=metadata, timeout=SECONDS)
            if name == "ModelStreamInfer":
                [_] = answer
                [record] = eventually(
                    lambda known=trace_id: [each for each in served.records() if each.get("trace_id") == known]  # type: ignore[misc]
                )
                assert record["call"] == name
            else:
                assert served.of(request_id)["trace_id"] == trace_id, name
    infer(served, Ask(), "untraced")
    assert "trace_id" not in served.of("untraced")


def test_an_inference_over_http(served: Served) -> None:
    answer = infer(served, Ask(id="mine"), "http-1")
    assert echoed(answer) == "http-1"
    record = served.of("http-1")
    for key in ("time", "process", "client", "queue_us", "compute_us", "total_us"):
        assert record.pop(key) is not None
    assert record.pop("request_bytes") > 128
    assert record.pop("response_bytes") > 128
    assert record == {
        "level": "INFO",
        "logger": "modserve.access",
        "message": "request",
        "place": "access",
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
    assert "ValueError" in served.of(f"fails-{mode}", "modserve.observability.failures")["error"]
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
    assert served.of("half", "modserve.observability.failures")["model"] == "nosuch"


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


def test_a_hang_up_with_workers(tmp_path: Path) -> None:
    """The supervisor and both workers change to the new file at once; each request has its line, in one of the two."""
    options = ["--workers=2", "--access-log=all"]
    with served_with(tmp_path, *options) as served:
        stopping = threading.Event()

        def send() -> list[str]:
            """Requests until it is over, on new connections, which the kernel spreads over the workers."""
            ids = []
            while not stopping.is_set():
                answer = http(served.server.http_port, "GET", "/v2/health/live")
                assert answer.status == 200
                ids.append(echoed(answer))
            return ids

        old = served.file.with_name("log.1")
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(send)
            try:
                eventually(lambda: workers_of(served.file) == {0, 1})
                os.rename(served.file, old)
                served.server.signal(signal.SIGHUP)
                eventually(lambda: served.file.exists() and served.file.read_text().count("opened anew") == 3)
                size = old.stat().st_size
                eventually(lambda: workers_of(served.file) == {0, 1})
            finally:
                stopping.set()
            sent = sending.result(SECONDS)

        def logged() -> Counter[str]:
            records = records_in(old) + records_in(served.file)
            return Counter(each["request_id"] for each in records if each["logger"] == "modserve.access")

        eventually(lambda: logged().total() == len(sent))
        assert logged() == Counter(sent)
        assert old.stat().st_size == size, "something is still written to the old file"


def workers_of(file: Path) -> set[int]:
    """The workers that have logged requests in a file."""
    return {record["worker"] for record in records_in(file) if record["logger"] == "modserve.access"}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With the log as it is by default."""
    with served_with(tmp_path_factory.mktemp("usual"), start=serving_here) as running:
        yield running


def logged_failure(served: Served, fail: Callable[[str], str], sent: str, lines: int = 1) -> list[dict[str, Any]]:
    """The records about a request that fails; its id is one that begins with `sent`, or made.

    `fail` sends it with an id, and returns that of the response. There are ten lines a second: one that is left out is
    tried again.
    """

    def attempt() -> list[dict[str, Any]]:
        own = f"{sent}-{next(NUMBERS)}" if sent else ""
        request_id = fail(own)
        assert request_id == own if own else MADE.fullmatch(request_id)
        records = [each for each in served.records() if each.get("request_id") == request_id]
        return records if len(records) >= lines else []  # a thread writes them

    records = eventually(attempt)
    assert len(records) == lines, records
    return records


WRONG = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}).encode()
RAISING = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}).encode()


@pytest.mark.parametrize(
    ("path", "body", "status", "lines"),
    [
        ("/v2/models/simple/infer", WRONG, 400, 1),
        ("/v2/models/simple/infer", b"{", 400, 1),
        ("/v2/models/nosuch/infer", WRONG, 404, 1),
        ("/v2/models/failing_thread/infer", RAISING, 500, 2),
        ("/v2/models/simple/generate", b"{", 400, 1),
        ("/v2/models/simple/generate_stream", b"{", 400, 1),
        ("/v1/models/simple:predict", b"{", 400, 1),
        ("/v2/repository/models/nosuch/load", b"", 503, 1),
    ],
)
@pytest.mark.parametrize("sent", ["", "mine"])
def test_a_failure_over_http_has_an_id_by_default(
    usual: Served, path: str, body: bytes, status: int, lines: int, sent: str
) -> None:
    def fail(request_id: str) -> str:
        headers = {"X-Request-ID": request_id} if request_id else {}
        answer = http(usual.server.http_port, "POST", path, body, headers)
        assert answer.status == status
        return echoed(answer)

    logged_failure(usual, fail, sent, lines)


@pytest.mark.parametrize("sent", ["", "mine"])
@pytest.mark.parametrize(("model", "code"), [("nosuch", "NOT_FOUND"), ("failing_thread", "INVALID_ARGUMENT")])
def test_a_failure_over_grpc_has_an_id_by_default(usual: Served, model: str, code: str, sent: str) -> None:
    with channel(usual.server.grpc_port) as open_channel:

        def fail(request_id: str) -> str:
            metadata = (("x-request-id", request_id),) if request_id else ()
            call = stub(open_channel).ModelInfer.future(message(Ask(model=model)), timeout=SECONDS, metadata=metadata)
            assert call.code().name == code
            return str((dict(call.initial_metadata()) | dict(call.trailing_metadata()))["x-request-id"])

        (record,) = logged_failure(usual, fail, sent)
    assert (record["protocol"], record["model"], record["status"]) == ("gRPC", model, code)


def test_what_succeeds_has_no_id_by_default(usual: Served) -> None:
    answer = infer(usual, Ask())
    assert answer.status == 200
    assert "x-request-id" not in {name.lower() for name in answer.headers}
    assert echoed(infer(usual, Ask(), "own")) == "own"
    with channel(usual.server.grpc_port) as open_channel:
        for metadata, echo in (((), None), ((("x-request-id", "own"),), "own")):
            call = stub(open_channel).ModelInfer.future(message(Ask()), timeout=SECONDS, metadata=metadata)
            assert call.code().name == "OK"
            assert dict(call.initial_metadata()).get("x-request-id") == echo

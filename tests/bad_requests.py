"""Sends the rows of `bad_requests_table` to a server, each with a good request behind it."""

import json
import queue
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any, NamedTuple, TypeAlias

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2
from wire import (
    HOST,
    SECONDS,
    SUM,
    Ask,
    binary_outputs,
    binary_request,
    channel,
    connect,
    infer_path,
    message,
    raw_outputs,
    send,
)

from bad_requests_table import (
    BOTH,
    CONTROL,
    FINE,
    FRAMING,
    GRPC,
    GRPC_CONTROL,
    HTTP,
    LOGS,
    PATHS,
    STREAMS,
    Http,
    Row,
    Rpc,
    Stream,
    Wire,
)

SERVICE = "/inference.GRPCInferenceService/"


class Wires(NamedTuple):
    """A server's HTTP port, and a connection of each protocol to it that all rows share."""

    http_port: int
    http: HTTPConnection
    grpc: grpc.Channel


@contextmanager
def wired(http_port: int, grpc_port: int) -> Iterator[Wires]:
    with closing(connect(http_port)) as connection, channel(grpc_port) as opened:
        yield Wires(http_port, connection, opened)


def check_text(found: str, row: Row) -> None:
    if isinstance(row.text, str):
        assert found == row.text
    else:
        assert row.text.fullmatch(found), found


def over_http(row: Row, wires: Wires) -> None:
    """Then a good request on the same connection: the mistake was none of framing."""
    request = row.request
    if isinstance(request, Ask):
        name = request.model.replace("%", "%25").replace("/", "%2F").replace(" ", "%20")
        request = Http("POST", infer_path(name, request.version), *binary_request(request))
    assert isinstance(request, Http)
    answer = send(wires.http, request.method, request.path, request.body, request.headers)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert answer.status == row.status[0], answer.body
    if row.status is not FINE:
        assert headers["content-type"] == "application/json"
        assert answer.json.keys() == {"error"}
        check_text(answer.json["error"], row)
    assert "connection" not in headers
    good = send(wires.http, "POST", infer_path("simple"), *binary_request(Ask()))
    assert binary_outputs(good)["OUTPUT0"] == SUM


def as_bytes(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


def over_grpc(row: Row, wires: Wires) -> None:
    request = message(row.request) if isinstance(row.request, Ask) else row.request
    if not isinstance(request, Rpc):
        assert isinstance(request, Message)
        request = Rpc("ModelInfer", request)
    code, text = grpc.StatusCode.OK, ""
    try:
        call: Any = wires.grpc.unary_unary(SERVICE + request.method, None, None)
        call(as_bytes(request.message), timeout=SECONDS, metadata=request.metadata)
    except grpc.RpcError as error:
        code, text = error.code(), error.details() or ""
    assert code is row.status[1], text
    check_text(text, row)
    infer: Any = wires.grpc.unary_unary(SERVICE + "ModelInfer", as_bytes, service_pb2.ModelInferResponse.FromString)
    assert raw_outputs(infer(message(Ask()), timeout=SECONDS))["OUTPUT0"] == SUM


def on_a_stream(row: Row, wires: Wires) -> None:
    """The failure is an answer, and a good request after it gets its own."""
    assert isinstance(row.request, Stream)
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for each in (as_bytes(row.request.message), as_bytes(message(Ask())), None):
        requests.put(each)
    stream: Any = wires.grpc.stream_stream(
        SERVICE + "ModelStreamInfer", None, service_pb2.ModelStreamInferResponse.FromString
    )
    failed, good = stream(iter(requests.get, None), timeout=SECONDS)
    check_text(failed.error_message, row)
    assert not good.error_message
    assert raw_outputs(good.infer_response)["OUTPUT0"] == SUM


def of_framing(row: Row, wires: Wires) -> None:
    """The connection ends: what follows on it can not be understood."""
    assert isinstance(row.request, Wire)
    answer = b""
    with socket.create_connection((HOST, wires.http_port), timeout=SECONDS) as connection:
        connection.sendall(row.request.data)
        while data := connection.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % row.status[0]), answer
    assert b"Connection: close" in head
    assert re.search(rb"Content-Length: (\d+)", head, re.IGNORECASE)[1] == b"%d" % len(body)  # type: ignore[index]
    document = json.loads(body)
    assert document.keys() == {"error"}
    check_text(document["error"], row)


_WAYS: tuple[tuple[str, Callable[[Row, Wires], None], Mapping[str, Row]], ...] = (
    ("HTTP", over_http, {**BOTH, **HTTP, **PATHS, **CONTROL}),
    ("gRPC", over_grpc, {**BOTH, **GRPC, **GRPC_CONTROL}),
    ("stream", on_a_stream, STREAMS),
    ("framing", of_framing, FRAMING),
)
Checks: TypeAlias = Mapping[str, Callable[[Wires], None]]
CHECKS: Checks = {f"{way}: {name}": partial(check, row) for way, check, table in _WAYS for name, row in table.items()}
"""Each row in each way that it is sent, without `LOGS`."""
LOG_CHECKS: Checks = {
    name: partial(over_http if isinstance(row.request, Http) else over_grpc, row) for name, row in LOGS.items()
}

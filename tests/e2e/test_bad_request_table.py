"""Wrong requests get the protocol's status and text, over both protocols, and the server goes on serving.

One server gets all of `bad_requests_table`.
"""

import json
import queue
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from bad_requests_table import (
    BOTH,
    CONTROL,
    FINE,
    FRAMING,
    GRPC,
    GRPC_CONTROL,
    HTTP,
    OPTIONS,
    PATHS,
    TABLES,
    Http,
    Row,
    Rpc,
    Stream,
    Wire,
)
from google.protobuf.message import Message
from repositories import EXAMPLES
from server_process import ServerProcess, serving
from tritonclient.grpc import service_pb2
from wire import (
    HOST,
    SECONDS,
    SUM,
    Ask,
    assert_serving,
    binary_outputs,
    binary_request,
    channel,
    connect,
    infer_path,
    message,
    raw_outputs,
    send,
)

SERVICE = "/inference.GRPCInferenceService/"


class Wires(NamedTuple):
    """The one server, and a connection of each protocol to it that all rows share."""

    server: ServerProcess
    http: HTTPConnection
    grpc: grpc.Channel


@pytest.fixture(scope="module")
def wires(identities: Path) -> Iterator[Wires]:
    with (
        serving(EXAMPLES, identities, options=OPTIONS) as running,
        closing(connect(running.http_port)) as connection,
        channel(running.grpc_port) as opened,
    ):
        yield Wires(running, connection, opened)
        assert_serving(running)
        assert running.running


def told(found: str, row: Row) -> None:
    if isinstance(row.text, str):
        assert found == row.text
    else:
        assert row.text.fullmatch(found), found


def check_http(wires: Wires, row: Row, request: Http) -> None:
    """Then a good request on the same connection: the mistake was none of framing."""
    answer = send(wires.http, request.method, request.path, request.body, request.headers)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert answer.status == row.status[0], answer.body
    if row.status is not FINE:
        assert headers["content-type"] == "application/json"
        assert answer.json.keys() == {"error"}
        told(answer.json["error"], row)
    assert "connection" not in headers
    good = send(wires.http, "POST", infer_path("simple"), *binary_request(Ask()))
    assert binary_outputs(good)["OUTPUT0"] == SUM


def call(wires: Wires, request: Rpc) -> tuple[grpc.StatusCode, str]:
    data = request.message if isinstance(request.message, bytes) else request.message.SerializeToString()
    try:
        wires.grpc.unary_unary(SERVICE + request.method, bytes, bytes)(data, timeout=SECONDS, metadata=request.metadata)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def check_grpc(wires: Wires, row: Row, request: Rpc) -> None:
    code, text = call(wires, request)
    assert code is row.status[1], text
    told(text, row)
    infer = wires.grpc.unary_unary(
        SERVICE + "ModelInfer",
        service_pb2.ModelInferRequest.SerializeToString,
        service_pb2.ModelInferResponse.FromString,
    )
    assert raw_outputs(infer(message(Ask()), timeout=SECONDS))["OUTPUT0"] == SUM


@pytest.mark.parametrize("row", BOTH.values(), ids=BOTH)
def test_both_over_http(wires: Wires, row: Row) -> None:
    assert isinstance(row.request, Ask)
    body, headers = binary_request(row.request)
    path = infer_path(
        row.request.model.replace("%", "%25").replace("/", "%2F").replace(" ", "%20"), row.request.version
    )
    check_http(wires, row, Http("POST", path, body, headers))


@pytest.mark.parametrize("row", BOTH.values(), ids=BOTH)
def test_both_over_grpc(wires: Wires, row: Row) -> None:
    assert isinstance(row.request, Ask)
    check_grpc(wires, row, Rpc("ModelInfer", message(row.request)))


ONLY_HTTP = {**HTTP, **PATHS, **CONTROL}


@pytest.mark.parametrize("row", ONLY_HTTP.values(), ids=ONLY_HTTP)
def test_http(wires: Wires, row: Row) -> None:
    assert isinstance(row.request, Http)
    check_http(wires, row, row.request)


@pytest.mark.parametrize("row", FRAMING.values(), ids=FRAMING)
def test_framing(wires: Wires, row: Row) -> None:
    """The connection ends: what follows on it can not be understood."""
    assert isinstance(row.request, Wire)
    answer = b""
    with socket.create_connection((HOST, wires.server.http_port), timeout=SECONDS) as connection:
        connection.sendall(row.request.data)
        while data := connection.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % row.status[0]), answer
    assert b"Connection: close" in head
    assert re.search(rb"Content-Length: (\d+)", head, re.IGNORECASE)[1] == b"%d" % len(body)  # type: ignore[index]
    document = json.loads(body)
    assert document.keys() == {"error"}
    told(document["error"], row)


ONLY_GRPC = {name: row for name, row in {**GRPC, **GRPC_CONTROL}.items() if not isinstance(row.request, Stream)}
STREAMS = {name: row for name, row in GRPC.items() if isinstance(row.request, Stream)}


@pytest.mark.parametrize("row", ONLY_GRPC.values(), ids=ONLY_GRPC)
def test_grpc(wires: Wires, row: Row) -> None:
    request = row.request
    assert isinstance(request, Rpc | Message)
    check_grpc(wires, row, request if isinstance(request, Rpc) else Rpc("ModelInfer", request))


@pytest.mark.parametrize("row", STREAMS.values(), ids=STREAMS)
def test_streams(wires: Wires, row: Row) -> None:
    """The failure is an answer, and a good request after it gets its own."""
    assert isinstance(row.request, Stream)
    bad = row.request.message
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    requests.put(bad if isinstance(bad, bytes) else bad.SerializeToString())
    requests.put(message(Ask()).SerializeToString())
    requests.put(None)
    stream: Any = wires.grpc.stream_stream(
        SERVICE + "ModelStreamInfer", bytes, service_pb2.ModelStreamInferResponse.FromString
    )
    failed, good = stream(iter(requests.get, None), timeout=SECONDS)
    told(failed.error_message, row)
    assert not good.error_message
    assert raw_outputs(good.infer_response)["OUTPUT0"] == SUM


def test_the_table_is_large_and_says_each_thing_once() -> None:
    requests = [repr(row.request) for table in TABLES for row in table.values()]
    assert len(requests) >= 150
    assert [each for each, count in Counter(requests).items() if count > 1] == []

"""Requests as bytes and messages, spelled out: what the clients do not let one send."""

import json
import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, NamedTuple, Protocol

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

HOST = "127.0.0.1"
SECONDS = 20.0
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Ports(Protocol):
    """A server that is only asked, wherever it runs."""

    @property
    def http_port(self) -> int: ...

    @property
    def grpc_port(self) -> int: ...

    @property
    def metrics_port(self) -> int: ...


class Answer(NamedTuple):
    """Of an HTTP request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Input(NamedTuple):
    """An input as it is sent, fitting or not."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


INPUT0 = Input("INPUT0", "INT32", (1, 16), ints(*range(16)))
INPUT1 = Input("INPUT1", "INT32", (1, 16), ints(*[1] * 16))
SUM = ints(*range(1, 17))
DIFFERENCE = ints(*range(-1, 15))


@dataclass(frozen=True)
class Ask:
    """An inference request that can be sent over both protocols; by default a good one to `simple`."""

    inputs: tuple[Input, ...] = (INPUT0, INPUT1)
    model: str = "simple"
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()


def infer_path(model: str, version: str = "") -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"


def binary_request(ask: Ask) -> tuple[bytes, dict[str, str]]:
    """Body and headers, all tensors binary in both directions."""
    document: dict[str, object] = {"parameters": {"binary_data_output": True}}
    if ask.id:
        document["id"] = ask.id
    document["inputs"] = [
        {
            "name": given.name,
            "datatype": given.datatype,
            "shape": given.shape,
            "parameters": {"binary_data_size": len(given.raw)},
        }
        for given in ask.inputs
    ]
    if ask.outputs:
        document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in ask.outputs]
    header = json.dumps(document).encode()
    body = b"".join([header, *(given.raw for given in ask.inputs)])
    return body, {"Inference-Header-Content-Length": str(len(header))}


def binary_outputs(answer: Answer) -> dict[str, bytes]:
    """The outputs of a response whose tensors are all binary."""
    length = int(answer.headers["Inference-Header-Content-Length"])
    found: dict[str, bytes] = {}
    for output in json.loads(answer.body[:length])["outputs"]:
        end = length + output["parameters"]["binary_data_size"]
        found[output["name"]] = answer.body[length:end]
        length = end
    assert length == len(answer.body), "bytes that belong to no output"
    return found


def message(ask: Ask) -> service_pb2.ModelInferRequest:
    """The gRPC request, all tensors raw."""
    found = service_pb2.ModelInferRequest(model_name=ask.model, model_version=ask.version, id=ask.id)
    for given in ask.inputs:
        found.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        found.raw_input_contents.append(given.raw)
    for name in ask.outputs:
        found.outputs.add(name=name)
    return found


def raw_outputs(response: service_pb2.ModelInferResponse) -> dict[str, bytes]:
    names = [output.name for output in response.outputs]
    return dict(zip(names, response.raw_output_contents, strict=True))


# Messages of small protocols, spelled out: https://protobuf.dev/programming-guides/encoding/

SERVING = b"\x08\1"
"""A `grpc.health.v1.HealthCheckResponse` whose first field, `status`, is 1."""


def text(number: int, value: str) -> bytes:
    """A message with one field, a text of less than 128 bytes; the empty text is not sent."""
    data = value.encode()
    return bytes([number << 3 | 2, len(data)]) + data if data else b""


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message by number; those that are numbers are left out."""
    found: list[tuple[int, bytes]] = []
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while position < len(data):
        number, kind = divmod(varint(), 8)
        length = varint()
        assert kind in (0, 2), "only numbers, texts and messages"
        if kind == 2:
            found.append((number, data[position : position + length]))
            position += length
    return found


def health(opened: grpc.Channel, rpc: str) -> Any:
    """A call of gRPC's health service, bytes in and out."""
    return opened.unary_unary(f"/grpc.health.v1.Health/{rpc}", None, None)


def send(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    connection.request(method, path, body, dict(headers or {}), encode_chunked=not isinstance(body, bytes))
    response = connection.getresponse()
    return Answer(response.status, dict(response.headers.items()), response.read())


def connect(port: int) -> HTTPConnection:
    return HTTPConnection(HOST, port, timeout=SECONDS)


def http(
    port: int, method: str, path: str, body: bytes | Iterable[bytes] = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own."""
    with closing(connect(port)) as connection:
        return send(connection, method, path, body, headers)


def http_infer(port: int, ask: Ask) -> Answer:
    body, headers = binary_request(ask)
    return http(port, "POST", infer_path(ask.model, ask.version), body, headers)


def channel(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"{HOST}:{port}", UNLIMITED)


def stub(opened: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(opened)


def grpc_infer(port: int, ask: Ask) -> service_pb2.ModelInferResponse:
    """One call on a channel of its own."""
    with channel(port) as opened:
        return stub(opened).ModelInfer(message(ask), timeout=SECONDS)


def assert_serving(server: Ports) -> None:
    """A good request gets its answer over both protocols."""
    answer = http_infer(server.http_port, Ask())
    assert answer.status == 200
    assert binary_outputs(answer) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}
    assert raw_outputs(grpc_infer(server.grpc_port, Ask())) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


def metric(server: Ports, name: str, **labels: str) -> float:
    """One sample of the metrics page."""
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    for line in page.splitlines():
        match = re.fullmatch(rf"{name}{{(.*)}} (\S+)", line)
        if match and labels.items() <= dict(re.findall(r'(\w+)="(.*?)"', match[1])).items():
            return float(match[2])
    raise AssertionError(f"no {name} with {labels} in:\n{page}")


def statistics(server: Ports, model: str) -> Any:
    """The statistics of a model's latest version."""
    return http(server.http_port, "GET", f"/v2/models/{model}/stats").json["model_stats"][-1]

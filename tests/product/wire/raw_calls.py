"""Calls over gRPC by frames, for what grpcio keeps from its users: it takes load reports out of trailers."""

import socket
import struct
from dataclasses import dataclass, field
from urllib.parse import unquote

import grpc
import h2.config
import h2.connection
import h2.events
from tritonclient.grpc import service_pb2

from product.wire.settings import TRAILER

_NAMES = {str(code.value[0]): code.name for code in grpc.StatusCode}
_SERVICE = "/inference.GRPCInferenceService/"


@dataclass
class RawResponse:
    """What has come of a call. `status` is empty if it was reset, or the connection has ended."""

    status: str = ""
    message: str = ""
    responses: list[service_pb2.ModelInferResponse] = field(default_factory=list)
    reports: list[int] = field(default_factory=lambda: [0, 0])
    """How many load reports were in the head, and in the trailers."""

    def take(self, headers: list[tuple[str, str]]) -> None:
        fields = dict(headers)
        place = 1 if "grpc-status" in fields else 0
        self.reports[place] += sum(name == TRAILER for name, _ in headers)
        if place:
            self.status = _NAMES[fields["grpc-status"]]
            self.message = unquote(fields.get("grpc-message", ""))


def raw_call(
    address: tuple[str, int], rpc: str, request: bytes, seconds: float, *, timeout_ms: int = 0, gives_up: bool = False
) -> RawResponse:
    """A call on a connection of its own. `timeout_ms`: what it tells the server; `gives_up`: it is reset at once.

    Raises OSError if the connection does.
    """
    response, data = RawResponse(), b""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", _SERVICE + rpc), (":authority", "x")]
    headers += [("te", "trailers"), ("content-type", "application/grpc")]
    if timeout_ms:
        headers.append(("grpc-timeout", f"{timeout_ms}m"))
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.send_headers(1, headers)
    client.send_data(1, b"\0" + struct.pack(">I", len(request)) + request, end_stream=True)
    if gives_up:
        client.reset_stream(1, 8)
        client.ping(b"finished")
    with socket.create_connection(address, seconds) as connection:
        while True:
            connection.sendall(client.data_to_send())
            piece = connection.recv(65536)
            if not piece:
                return response
            for event in client.receive_data(piece):
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    response.take(event.headers)
                elif isinstance(event, h2.events.DataReceived):
                    data += event.data
                    client.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, h2.events.StreamEnded):
                    response.responses = [service_pb2.ModelInferResponse.FromString(each) for each in _messages(data)]
                    return response
                elif isinstance(event, h2.events.StreamReset | h2.events.PingAckReceived):
                    return response


def _messages(data: bytes) -> list[bytes]:
    messages = []
    while data:
        length = int.from_bytes(data[1:5])
        messages.append(data[5 : 5 + length])
        data = data[5 + length :]
    return messages

"""Calls over gRPC by frames, for what grpcio keeps from its users: it takes load reports out of trailers."""

import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

import grpc
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from tritonclient.grpc import service_pb2

from product.wire.settings import TRAILER

_NAMES = {str(code.value[0]): code.name for code in grpc.StatusCode}
_SERVICE = "/inference.GRPCInferenceService/"
_WINDOW = 1 << 30
_FINISHED = b"finished"


@dataclass
class RawResponse:
    """What has come of a call. `status` is empty if it was reset, or the connection has ended."""

    status: str = ""
    message: str = ""
    data: bytes = b""
    reports: list[int] = field(default_factory=lambda: [0, 0])
    """How many load reports were in the head, and in the trailers."""

    def take(self, headers: list[tuple[str, str]]) -> None:
        fields = dict(headers)
        place = 1 if "grpc-status" in fields else 0
        self.reports[place] += sum(name == TRAILER for name, _ in headers)
        if place:
            self.status = _NAMES[fields["grpc-status"]]
            self.message = unquote(fields.get("grpc-message", ""))

    @property
    def inference(self) -> service_pb2.ModelInferResponse:
        """The only message."""
        return service_pb2.ModelInferResponse.FromString(self.data[5:])


def raw_call(
    address: tuple[str, int],
    rpc: str,
    request: bytes,
    seconds: float,
    *,
    timeout_ms: int = 0,
    gives_up: bool = False,
    pause: Callable[[], object] | None = None,
) -> RawResponse:
    """A call on a connection of its own. `timeout_ms`: what it tells the server; `gives_up`: it is reset at once.

    `pause` comes before the last byte of the request. Raises OSError if the connection does.
    """
    headers = [(":method", "POST"), (":scheme", "http"), (":path", _SERVICE + rpc), (":authority", "x")]
    headers += [("te", "trailers"), ("content-type", "application/grpc")]
    if timeout_ms:
        headers.append(("grpc-timeout", f"{timeout_ms}m"))
    message = b"\0" + struct.pack(">I", len(request)) + request
    last = DataFrame(1, message[-1:], flags=["END_STREAM"])
    frames: list[Frame] = [
        SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: _WINDOW}),
        WindowUpdateFrame(0, window_increment=_WINDOW),
        HeadersFrame(1, Encoder().encode(headers), flags=["END_HEADERS"]),
        DataFrame(1, message[:-1]),
    ]
    if pause is None:
        frames.append(last)
    if gives_up:
        frames += [RstStreamFrame(1, error_code=8), PingFrame(0, _FINISHED)]
    response, decoder = RawResponse(), Decoder()
    with socket.create_connection(address, seconds) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(each.serialize() for each in frames))
        if pause is not None:
            pause()
            connection.sendall(last.serialize())
        for frame in _frames(connection):
            if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
                connection.sendall(SettingsFrame(0, flags=["ACK"]).serialize())
            elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
                connection.sendall(PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize())
            elif isinstance(frame, HeadersFrame):
                response.take([(str(name), str(value)) for name, value in decoder.decode(frame.data)])
            elif isinstance(frame, DataFrame):
                response.data += frame.data
            if _is_last(frame):
                break
    return response


def _is_last(frame: Frame) -> bool:
    if isinstance(frame, GoAwayFrame):
        return bool(frame.last_stream_id < 1)  # else the server still serves the call
    answered = isinstance(frame, PingFrame) and frame.opaque_data == _FINISHED
    return answered or isinstance(frame, RstStreamFrame) or "END_STREAM" in frame.flags


def _frames(connection: socket.socket) -> Iterator[Frame]:
    """Until the connection ends."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
        while len(data) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(data)[:9])
            if len(data) < 9 + length:
                break
            frame.parse_body(memoryview(data)[9 : 9 + length])
            data = data[9 + length :]
            yield frame

"""The client's streams, over HTTP/2 and in chunks of HTTP/1.1, byte by byte."""

import json
from functools import partial

import pytest
from bench_fakes import Http2End

from http2_client import Transport
from modserve.commands.bench.grpc import StreamSlot
from modserve.commands.bench.http import Chunks, Heads, HttpStreamSlot
from modserve.commands.bench.http2 import frame
from modserve.commands.bench.inputs import PreparedRequest
from modserve.commands.bench.slots import Endpoint, RequestSlot
from modserve.commands.destination import address
from modserve.pb import inference as pb


class Outcomes:
    """What becomes of each request: its error, and how many responses were reported before."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int]] = []
        self._responses = 0

    def on_done(self, slot: RequestSlot, error: str) -> None:
        slot.start = 0
        self.ended.append((error, self._responses))
        self._responses = 0

    def on_response(self, slot: RequestSlot) -> None:
        self._responses += 1


# gRPC


def response(error: str = "", *, outputs: bool = True, final: bool | None = None) -> bytes:
    message = pb.ModelStreamInferResponse(error_message=error)
    if outputs:
        message.infer_response.outputs.add(name="Y")
    if final is not None:
        message.infer_response.parameters["triton_final_response"].bool_param = final
    content = message.SerializeToString()
    return b"\0" + len(content).to_bytes(4, "big") + content


class Server:
    """A stream's slot, and the server's end of its connection."""

    def __init__(self, *messages: bytes, decoupled: bool = False) -> None:
        self.outcomes = Outcomes()
        self.end = Http2End(partial(StreamSlot, decoupled=decoupled), self.outcomes, *messages)
        self.slot = self.end.slot

    def send(self, index: int = 0, tag: bytes = b"") -> None:
        self.slot.start = 1
        self.slot.send(index, tag)

    def respond(self, data: bytes, stream: int = 1) -> None:
        self.end.connection.data_received(frame(0, 0, stream, data))


async def test_requests_share_a_stream() -> None:
    server = Server(b"abc", b"de")
    server.send(0)
    headers, data = server.end.frames()
    assert headers[:3] == (1, 4, 1)
    assert data == (0, 0, 1, b"\0\0\0\0\3abc")
    server.respond(response())
    server.send(1, b"!")
    assert server.end.frames() == [(0, 0, 1, b"\0\0\0\0\3de!")]
    server.respond(response("no"))
    assert server.outcomes.ended == [("", 0), ("no", 0)]


async def test_a_response_in_pieces() -> None:
    server = Server(b"")
    server.send()
    data = response()
    for index in range(len(data)):
        assert server.outcomes.ended == []
        server.respond(data[index : index + 1])
    assert server.outcomes.ended == [("", 0)]


async def test_padding_is_no_data() -> None:
    server = Server(b"")
    server.send()
    data = response()
    server.end.connection.data_received(frame(0, 8, 1, b"\3" + data + b"\0\0\0"))
    assert server.outcomes.ended == [("", 0)]


DECOUPLED: dict[str, tuple[list[bytes], tuple[str, int]]] = {
    "three": ([*[response(final=False)] * 2, response(final=True)], ("", 3)),
    "three, and the end alone": ([*[response(final=False)] * 3, response(outputs=False, final=True)], ("", 3)),
    "none": ([response(outputs=False, final=True)], ("", 0)),
    "an error at once": ([response("no", outputs=False)], ("no", 0)),
    "an error at the end": ([response(final=False), response("no", outputs=False, final=True)], ("no", 1)),
    "an error amid": ([response("no", outputs=False, final=False), response(final=True)], ("no", 1)),
}


@pytest.mark.parametrize("case", DECOUPLED)
@pytest.mark.parametrize("together", [True, False])
async def test_a_decoupled_model(case: str, together: bool) -> None:
    responses, outcome = DECOUPLED[case]
    server = Server(b"", decoupled=True)
    for _ in range(2):
        server.send()
        for part in [b"".join(responses)] if together else responses:
            server.respond(part)
    assert server.outcomes.ended == [outcome, outcome]


async def test_a_stream_that_ends_is_begun_again() -> None:
    server = Server(b"a")
    server.send()
    end = server.end.encoder.encode([("grpc-status", "14"), ("grpc-message", "bye")])
    server.end.connection.data_received(frame(1, 5, 1, end))
    server.send()
    server.end.connection.data_received(frame(1, 5, 3, server.end.encoder.encode([("grpc-status", "0")])))
    assert server.outcomes.ended == [("UNAVAILABLE: bye", 0), ("the server has ended the stream", 0)]
    server.end.frames()
    server.send()
    headers, data = server.end.frames()
    assert (headers[2], data[2]) == (5, 5)
    server.respond(response(), stream=5)
    assert server.outcomes.ended[2:] == [("", 0)]


async def test_a_request_that_takes_too_long_ends_its_stream() -> None:
    """What is still to come of it is not taken for the next one's response."""
    server = Server(b"", decoupled=True)
    server.send()
    server.respond(response(final=False)[:9])
    server.slot.abort("no response within 1 s")
    assert server.end.frames()[-1] == (3, 0, 1, b"\0\0\0\x08")
    server.respond(response(final=True))
    server.send()
    assert [stream for _, _, stream, _ in server.end.frames()] == [3, 3]
    server.respond(response(final=True), stream=3)
    assert server.outcomes.ended == [("no response within 1 s", 0), ("", 1)]


async def test_what_is_no_response() -> None:
    server = Server(b"")
    server.send()
    server.respond(b"\0\0\0\0\2\xff\xff")
    assert server.outcomes.ended == [("the server's response cannot be read", 0)]


async def test_long_messages_wait_for_the_stream_s_window() -> None:
    """The window is that of the whole stream, not one for each message."""
    server = Server(bytes(50_000))
    server.send()
    sent = sum(len(payload) for kind, _, _, payload in server.end.frames() if kind == 0)
    assert sent == 50_005
    server.respond(response())
    server.send()
    assert sum(len(payload) for kind, _, _, payload in server.end.frames() if kind == 0) == 65_535 - 50_005
    for stream in (0, 1):
        server.end.connection.data_received(frame(8, 0, stream, (1 << 20).to_bytes(4, "big")))
    rest = server.end.frames()
    assert sum(len(payload) for *_, payload in rest) == 2 * 50_005 - 65_535
    assert not any(flags for _, flags, *_ in rest)


# HTTP

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def line(final: bool, *, outputs: bool = True, error: str = "") -> bytes:
    row: dict[str, object] = {"parameters": {"triton_final_response": final}}
    row |= {"error": error} if error else {"outputs": [{"name": "Y"}] if outputs else []}
    return json.dumps(row).encode() + b"\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def http_slot() -> tuple[HttpStreamSlot, Transport, Outcomes]:
    outcomes = Outcomes()
    slot = HttpStreamSlot(Endpoint(address("h:1")), [PreparedRequest(b"request")], outcomes, Heads())
    transport = Transport(slot)
    slot.connection_made(transport)
    return slot, transport, outcomes


RESPONSES: dict[str, tuple[bytes, tuple[str, int]]] = {
    "two": (HEAD + chunk(line(False)) + chunk(line(True)) + chunk(b""), ("", 2)),
    "two, and the end alone": (
        HEAD + chunk(line(False) + line(False)) + chunk(line(True, outputs=False)) + chunk(b""),
        ("", 2),
    ),
    "lines across chunks": (HEAD + chunk(line(False) + line(True)[:9]) + chunk(line(True)[9:]) + chunk(b""), ("", 2)),
    "an error behind one": (HEAD + chunk(line(False)) + chunk(line(True, error="no")) + chunk(b""), ("no", 1)),
    "a stream without its end": (HEAD + chunk(line(False)) + chunk(b""), ("the server aborted the stream", 1)),
    "an error at once": (b'HTTP/1.1 400 X\r\nContent-Length: 15\r\n\r\n{"error":"bad"}', ("400: bad", 0)),
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("case", RESPONSES)
def test_a_stream_of_lines(case: str, size: int) -> None:
    data, outcome = RESPONSES[case]
    slot, transport, outcomes = http_slot()
    for _ in range(2):
        slot.start = 1
        slot.send(0)
        for begin in range(0, len(data), size):
            slot.data_received(data[begin : begin + size])
    assert outcomes.ended == [outcome, outcome]
    assert transport.written == [b"request"] * 2


def test_a_stream_whose_connection_is_lost() -> None:
    slot, _, outcomes = http_slot()
    slot.start = 1
    slot.data_received(HEAD + chunk(line(False)))
    slot.connection_lost(None)
    assert outcomes.ended == [("connection closed by the server", 1)]


@pytest.mark.parametrize("content", [b"zz\r\n", chunk(b"no JSON\n")], ids=["no size", "no JSON"])
def test_what_is_no_stream_of_lines(content: bytes) -> None:
    slot, transport, outcomes = http_slot()
    slot.start = 1
    slot.data_received(HEAD + content)
    assert transport.aborted
    slot.connection_lost(None)
    assert outcomes.ended == [("the server's response cannot be read", 0)]


@pytest.mark.parametrize("size", range(1, 20))
def test_chunks_in_pieces_of_any_size(size: int) -> None:
    chunks = Chunks()
    data = chunk(b"first") + b"6;name=value\r\nsecond\r\n" + chunk(b"\r\n0\r\n\r\n") + chunk(b"")
    content = b""
    for begin in range(0, len(data), size):
        assert not chunks.ended
        content += chunks.decode(data[begin : begin + size])
    assert content == b"firstsecond\r\n0\r\n\r\n"
    assert chunks.ended

"""Requests of the benchmark of real traffic: blocks and heads as clients write them, and what counts as a response."""

import re
import socket
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from hpack import Decoder

import traffic
from modserve.commands.bench.http2 import frame
from overhead import CONNECTIONS, Load
from traffic_heads import ENVOY, GRPC_CLIENTS, H2LOAD, HTTP_CLIENTS, WRK, GrpcClient, HttpClient
from traffic_hpack import Encoder, Field, blocks, call_frames, fields
from traffic_replay import Connection, FailedError, Script, drive

AIO, JS = (next(each for each in GRPC_CLIENTS if each.name == name) for name in ("tritonclient.grpc.aio", "grpc-js"))
HOST = "localhost:19001"
RECORDED_CORE = "c4c38386c2c1c0400c677270632d74696d656f757405323031306dbf000c782d726571756573742d6964056162632d31"
"""The block of grpcio's second call."""
RECORDED_JS = (
    "c683049f60d54a5b0b510abe2dbaef64aa52d85a885dc5b3b98856341e42d192a94b67867f06841c64583fc51f0898ba51d8"
    "5b1441496152b24fd4b52c795641e92ad416a9933fc4c37f038410400a7fc2c1c0"
)
"""That of @grpc/grpc-js."""
TRACE = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4702-00f067aa0ba902b7-01")


def test_a_block_of_grpc_core_is_the_recorded_one() -> None:
    encoder = Encoder(AIO)
    encoder.block(fields(AIO, traffic.PATH, HOST, "987m", [("x-request-id", "abc-0")]))
    second = encoder.block(fields(AIO, traffic.PATH, HOST, "2010m", [("x-request-id", "abc-1")]))
    assert second.hex() == RECORDED_CORE


def js_call(number: int, timeout: str) -> list[Field]:
    """With a key, which grpc-js never indexes; it writes metadata before its own fields."""
    written = fields(JS, traffic.PATH, HOST, timeout, [("x-request-id", f"abc-{number}"), TRACE])
    key = ("!", b"authorization", b"Bearer secret-token-of-some-length")
    return [*written[:4], *written[-2:], key, *written[4:-2]]


def test_a_block_of_grpc_js_is_the_recorded_one() -> None:
    encoder = Encoder(JS)
    encoder.block(js_call(0, "1985m"))
    assert encoder.block(js_call(1, "2100m")).hex() == RECORDED_JS


@pytest.mark.parametrize("client", [*GRPC_CLIENTS, H2LOAD], ids=lambda each: each.name)
@pytest.mark.parametrize("own", [traffic.traced, None], ids=["metadata", "the same"])
def test_blocks_may_follow_again_and_again(client: GrpcClient, own: traffic.Lines | None) -> None:
    calls = []
    for _ in range(100):
        lines = [line.partition(": ") for line in own()] if own else []
        metadata = [(name.lower(), value) for name, _, value in lines]
        calls.append(fields(client, traffic.PATH, HOST, traffic.deadline(client) if own else "", metadata))
    first, again = blocks(client, calls)
    decoder = Decoder()
    for block, call in zip([*first, *again, *again], calls * 3, strict=True):
        assert list(decoder.decode(block, raw=True)) == [(name, value) for _, name, value in call]


def test_some_encoders_use_huffman_codes_and_indices() -> None:
    """Of a caller's own field: plain and without an index in grpc-core, plain in grpc-java, packed in grpc-go."""
    plain = {}
    for client in GRPC_CLIENTS:
        encoder = Encoder(client)
        metadata = [("x-request-id", "b7ad6b7169203331")]
        encoder.block(fields(client, traffic.PATH, HOST, "1S", metadata))
        block = encoder.block(fields(client, traffic.PATH, HOST, "1S", metadata))
        plain[client.name] = b"b7ad6b7169203331" in block
    assert [name for name, each in plain.items() if each] == [each.name for each in GRPC_CLIENTS[:3]]
    java = next(each for each in GRPC_CLIENTS if each.name == "grpc-java")
    assert b"x-request-id" in Encoder(java).block([("+", b"x-request-id", b"b7ad6b7169203331")])


@pytest.mark.parametrize("client", [*HTTP_CLIENTS, ENVOY, WRK], ids=lambda each: each.name)
def test_a_head_says_how_long_its_body_is(client: HttpClient) -> None:
    body, json_length = traffic.binary(id=traffic.own_id)()
    head, _, sent = traffic.request(client, "simple", body, json_length, traffic.traced()).partition(b"\r\n\r\n")
    assert sent == body
    assert json_length
    assert re.search(rb"(?i)\r\ncontent-length: %d(\r|$)" % len(body), head)
    assert re.search(rb"\r\nInference-Header-Content-Length: %d\r" % json_length, head)
    assert not re.search(rb"[{}|]", head)


def test_no_two_requests_are_alike() -> None:
    bodies = {traffic.binary()()[0] for _ in range(100)} | {traffic.whole_json()()[0] for _ in range(100)}
    assert len(bodies) == 200
    assert traffic.fixed(traffic.binary())()[0] != traffic.binary()()[0]


def test_rows_of_some_kinds_come_with_their_best_cases() -> None:
    assert [each.name for each in traffic.chosen(["h", "g"], ["k"]) if not each.kind] == [traffic.BINARY, traffic.GRPC]
    everything = traffic.chosen([], ["k"])
    assert everything[0].kind == "b"
    assert {each.kind for each in everything} == {*traffic.KINDS, ""}
    assert len({each.name for each in everything}) == len(everything)
    assert traffic.chosen(["all"], ["k"])[-1].name == everything[-1].name


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(SystemExit, match="no kind x; the kinds are a, b"):
        traffic.chosen(["a", "x"], ["k"])


def test_the_table() -> None:
    servers = []
    for name, factor in (("modserve", 1.0), ("Triton", 2.0)):
        loads: dict[tuple[str, int], list[Load | None]] = {
            (row, connections): [Load(1, 100 * factor, 400, 0, cost * run * factor) for run in (1, 2, 3)]
            for row, cost in ((traffic.GRPC, 10), ("other metadata", 15))
            for connections in CONNECTIONS
        }
        servers.append(traffic.Contender(name, Mock(), loads))
    row = traffic.Row("h", "other metadata", traffic.GRPC, Mock())
    lines = traffic.table([row], servers)
    assert lines[2] == (
        "| h | other metadata | 1 | 30.0 µs | 60.0 µs | 0.50 | 0.10 ms | 0.20 ms | 0.40 ms | 0.40 ms | 1.00 | 1.50 |"
    )
    assert len(lines) == 2 + len(CONNECTIONS)
    assert {line.count("|") for line in lines} == {13}


def test_settings(tmp_path: Path) -> None:
    assert traffic.settings("", tmp_path, ["k"]) == ([], "")
    options, tritons = traffic.settings("keys", tmp_path, ["k"])
    assert (options, tritons) == ([f"--auth-file={tmp_path / 'keys.json'}"], "")
    assert "sha256" in (tmp_path / "keys.json").read_text()
    options, tritons = traffic.settings("logged", tmp_path, ["k"])
    assert "--access-log=all" in options
    assert "rate=100" in tritons
    assert "access-log" not in tritons


OPENING = b"an opening"


def answer(listener: socket.socket, response: bytes, seen: bytearray) -> None:
    """Respond to each call of one connection, once it is here."""
    with listener.accept()[0] as client:
        while data := client.recv(1 << 16):
            seen += data
            if not data.startswith(OPENING) or len(data) > len(OPENING):
                client.sendall(response)


def called(response: bytes) -> tuple[int, bytes]:
    """How many responses a connection counts for two calls, and what it has sent."""
    call = call_frames(AIO, b"a block", b"a message")
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer, args=(listener, response, seen))
        answering.start()
        connection = Connection(listener.getsockname()[1], Script(OPENING, [call], []))
        with connection.socket:
            try:
                connection.take([call, call])
                times = drive({connection.socket.fileno(): connection})
            finally:
                connection.socket.shutdown(socket.SHUT_RDWR)
                answering.join()
    return len(times), bytes(seen)


TRAILERS = frame(1, 5, 1, b"trailers")


def test_calls_have_streams_of_their_own() -> None:
    count, sent = called(frame(1, 4, 1, b"head") + frame(0, 0, 1, b"message") + TRAILERS)
    assert count == 2
    assert [int.from_bytes(each, "big") for each in re.findall(rb"\x01\x04(.{4})a block", sent, re.DOTALL)] == [1, 3]


@pytest.mark.parametrize("response", [TRAILERS, frame(3, 0, 1, bytes(4)), frame(7, 0, 0, bytes(8))])
def test_an_error_is_no_response(response: bytes) -> None:
    with pytest.raises(FailedError, match=r"failed|ended"):
        called(response)


def test_windows_whose_calls_fail() -> None:
    """Those of Triton are measured again, and then left out of the row; this server's may not fail."""

    def fail() -> Load:
        raise SystemExit("calls have failed")

    row = traffic.Row("b", "through nginx, gRPC", traffic.GRPC, Mock())
    mine, tritons = traffic.Contender("modserve", Mock()), traffic.Contender("Triton", Mock())
    with pytest.raises(SystemExit):
        traffic.window(row, mine, fail)
    assert traffic.window(row, tritons, fail) is None
    assert tritons.failed == [row.name] * traffic.ATTEMPTS
    for connections in CONNECTIONS:
        mine.loads[row.name, connections] = [Load(1, 100, 400, 0, 10), Load(1, 100, 400, 0, 30)]
        tritons.loads[row.name, connections] = [None, Load(1, 100, 400, 0, 60) if connections == 1 else None]
    lines = traffic.table([row], [mine, tritons])
    assert "| 20.0 µs | 60.0 µs | 0.50 |" in lines[2]
    assert "| 20.0 µs | calls fail |  |" in lines[3]


def test_the_picture_has_a_bar_for_each_server() -> None:
    table = [
        "| kind | traffic | connections | CPU a request, modserve | CPU a request, Triton | CPU / Triton |",
        "|---|---|---|---|---|---|",
        "| b | through nginx, gRPC | 64 | 31.0 µs | calls fail |  |",
        f"| best | {traffic.GRPC} | 64 | 20.0 µs | 61.0 µs | 0.33 |",
    ]
    image = traffic.picture(table)
    assert re.findall(r'class="value"[^>]*>([^<]*)<', image) == ["31", "20", "61"]
    assert all(f">{label}<" in image for label in ("nginx", "repeated", "modserve", "Triton"))
    assert "HAProxy" not in image

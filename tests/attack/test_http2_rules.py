"""HTTP/2 against its rules, and gRPC against its own: each breach has its answer (RFC 9113), and costs nobody else."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import h2.connection
import h2.events
import pytest
from server_process import ServerProcess, eventually
from wire import Ask, assert_serving, message

from attack import http2
from attack.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call_headers,
    field,
    frame,
)
from attack.measuring import Limits, attacked, footprint
from attack.sending import dialled, gzipped, read_to_end
from attack.test_grpc_calls import innocent

PROTOCOL, FLOW, CLOSED, SIZE, REFUSED, COMPRESSION, CALM = 1, 3, 5, 6, 7, 9, 11
PADDED, WITH_PRIORITY = 8, 32
PUSH_PROMISE = 5

_BLOCK = call_headers("ServerLive")
_OPENED = frame(HEADERS, END_HEADERS, 1, _BLOCK)
_WHOLE = frame(HEADERS, END_HEADERS, 1, _BLOCK) + frame(DATA, END_STREAM, 1, http2.message(b""))


@dataclass(frozen=True)
class Row:
    """What is sent on a connection, and what it gets: the end of the connection, or of stream 1, with this code."""

    name: str
    data: bytes
    code: int
    whole: bool = True
    """It is the connection that ends."""


def fields(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"".join(field(name, value) for name, value in pairs)


def announced(length: bytes, flags: int = END_HEADERS, *more: tuple[bytes, bytes]) -> bytes:
    return frame(HEADERS, flags, 1, call_headers("ModelInfer", (b"content-length", length), *more))


_LONG = http2.field(b"x", b"y" * 65_536)
_POST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))

ROWS: Final = (
    # On the wrong stream (RFC 9113, 5.1 and 6)
    Row("DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL),
    Row("HEADERS on stream 0", frame(HEADERS, END_HEADERS, 0, _BLOCK), PROTOCOL),
    Row("HEADERS on a stream of the server's", frame(HEADERS, END_HEADERS, 2, _BLOCK), PROTOCOL),
    Row("PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    Row("RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL),
    Row("SETTINGS on a stream", frame(SETTINGS, 0, 1), PROTOCOL),
    Row("PING on a stream", frame(PING, 0, 1, bytes(8)), PROTOCOL),
    Row("GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    Row("CONTINUATION on stream 0", frame(HEADERS, 0, 1, _BLOCK) + frame(CONTINUATION, 4, 0), PROTOCOL),
    Row("DATA on an idle stream", frame(DATA, 0, 7, b"x"), PROTOCOL),
    Row("RST_STREAM on an idle stream", frame(RST_STREAM, 0, 7, bytes(4)), PROTOCOL),
    Row("WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, 0, 7, b"\0\0\0\1"), PROTOCOL),
    Row("a push", frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + _BLOCK), PROTOCOL),
    # Of the wrong length
    Row("PRIORITY of 4 bytes", frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    Row("RST_STREAM of 5 bytes", _OPENED + frame(RST_STREAM, 0, 1, bytes(5)), SIZE),
    Row("SETTINGS of 7 bytes", frame(SETTINGS, 0, 0, bytes(7)), SIZE),
    Row("an acknowledgement with settings", frame(SETTINGS, ACK, 0, bytes(6)), SIZE),
    Row("PING of 9 bytes", frame(PING, 0, 0, bytes(9)), SIZE),
    Row("GOAWAY of 7 bytes", frame(GOAWAY, 0, 0, bytes(7)), SIZE),
    Row("WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    Row("DATA of 16 MB", _OPENED + b"\xff\xff\xff\0\0\0\0\0\1", SIZE),
    Row("HEADERS of 16 MB", b"\xff\xff\xff\1\4\0\0\0\1", SIZE),
    Row("SETTINGS of 60 KB", frame(SETTINGS, 0, 0, bytes(60_000)), SIZE),
    Row("an unknown frame of 16 MB", b"\xff\xff\xff\xbe\0\0\0\0\0", SIZE),
    # In the wrong order
    Row("CONTINUATION alone", frame(CONTINUATION, END_HEADERS, 1, _BLOCK), PROTOCOL),
    Row("CONTINUATION behind the end", _OPENED + frame(CONTINUATION, END_HEADERS, 1, _BLOCK), PROTOCOL),
    Row("another frame in a header block", frame(HEADERS, 0, 1, _BLOCK) + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    Row("an unknown one in a header block", frame(HEADERS, 0, 1, _BLOCK) + frame(0xBE, 0, 1), PROTOCOL),
    Row("another stream's CONTINUATION", frame(HEADERS, 0, 1, _BLOCK) + frame(CONTINUATION, 4, 3), PROTOCOL),
    # Padding
    Row("padding longer than DATA", _OPENED + frame(DATA, PADDED, 1, b"\5abc"), PROTOCOL),
    Row("padding as long as DATA", _OPENED + frame(DATA, PADDED, 1, b"\4abc"), PROTOCOL),
    Row("padding longer than HEADERS", frame(HEADERS, PADDED | END_HEADERS, 1, b"\xff" + _BLOCK[:100]), PROTOCOL),
    Row("HEADERS without their priority", frame(HEADERS, WITH_PRIORITY | END_HEADERS, 1, b"\0\0"), PROTOCOL),
    # Settings and windows
    Row("a window of 2^31", frame(SETTINGS, 0, 0, b"\0\4\x80\0\0\0"), FLOW),
    Row("frames of 2^24 bytes", frame(SETTINGS, 0, 0, b"\0\5\1\0\0\0"), PROTOCOL),
    Row("a push of 2", frame(SETTINGS, 0, 0, b"\0\2\0\0\0\2"), PROTOCOL),
    Row("the connection's window beyond 2^31", frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2, FLOW),
    Row("the connection's window by nothing", frame(WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL),
    Row("a stream's window beyond 2^31", _OPENED + frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff") * 2, FLOW, False),
    Row("a stream's window by nothing", _OPENED + frame(WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL, False),
    # Header blocks (RFC 7541)
    Row("index 0", frame(HEADERS, END_HEADERS, 1, b"\x80"), COMPRESSION),
    Row("an index beyond the table", frame(HEADERS, END_HEADERS, 1, b"\xff\x80\x01"), COMPRESSION),
    Row("a table of 1 MB", frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\x3f" + _BLOCK), COMPRESSION),
    Row("a text longer than its block", frame(HEADERS, END_HEADERS, 1, b"\0\x7e" + _BLOCK[:20]), COMPRESSION),
    Row("a Huffman text that ends wrong", frame(HEADERS, END_HEADERS, 1, b"\0\x81\0\x01a"), COMPRESSION),
    Row("64 KB of one field, named again and again",
        frame(HEADERS, END_HEADERS, 1, http2.indexed_field(b"x", b"y" * 3_900) + b"\xbe" * 4_000), PROTOCOL, False),
    Row("a header block of more than 1 MB",
        frame(HEADERS, 0, 1, _BLOCK + _LONG * 15) + frame(CONTINUATION, 0, 1, _LONG * 2), CALM),
    # Requests that are none (RFC 9113, 8)
    Row("no path", frame(HEADERS, 5, 1, fields(*_POST[:2])), PROTOCOL, False),
    Row("an empty path", frame(HEADERS, 5, 1, fields(*_POST[:2], (b":path", b""))), PROTOCOL, False),
    Row("a path twice", frame(HEADERS, 5, 1, fields(*_POST, _POST[2])), PROTOCOL, False),
    Row("a status", frame(HEADERS, 5, 1, fields((b":status", b"200"), *_POST)), PROTOCOL, False),
    Row("a path behind others", frame(HEADERS, 5, 1, fields(*_POST[:2], (b"a", b"b"), _POST[2])), PROTOCOL, False),
    Row("capitals", frame(HEADERS, 5, 1, fields(*_POST, (b"Te", b"trailers"))), PROTOCOL, False),
    Row("a line break in a value", frame(HEADERS, 5, 1, fields(*_POST, (b"a", b"b\r\nc: d"))), PROTOCOL, False),
    Row("a zero in a value", frame(HEADERS, 5, 1, fields(*_POST, (b"a", b"b\0"))), PROTOCOL, False),
    Row("connection", frame(HEADERS, 5, 1, fields(*_POST, (b"connection", b"close"))), PROTOCOL, False),
    Row("transfer-encoding", frame(HEADERS, 5, 1, fields(*_POST, (b"transfer-encoding", b"chunked"))), PROTOCOL, False),
    Row("trailers with a path", _OPENED + frame(HEADERS, 5, 1, _BLOCK), PROTOCOL, False),
    Row("trailers that are not the end", _OPENED + frame(HEADERS, 4, 1, fields((b"a", b"b"))), PROTOCOL, False),
    # A content-length that is not that of the DATA (RFC 9113, 8.1.1)
    Row("more than announced", announced(b"3") + frame(DATA, END_STREAM, 1, b"\0\0\0\0\0"), PROTOCOL, False),
    Row("more than announced, no end", announced(b"5") + frame(DATA, 0, 1, b"\0\0\0\0\1a"), PROTOCOL, False),
    Row("less than announced", announced(b"9") + frame(DATA, END_STREAM, 1, b"\0\0\0\0\2"), PROTOCOL, False),
    Row("nothing of what was announced", announced(b"5", 5), PROTOCOL, False),
    Row("less than announced, and trailers",
        announced(b"9") + frame(DATA, 0, 1, b"\0") + frame(HEADERS, 5, 1, fields((b"a", b"b"))), PROTOCOL, False),
    Row("two lengths", announced(b"5", 4, (b"content-length", b"5")), PROTOCOL, False),
    Row("a length that is no number", announced(b"0x5"), PROTOCOL, False),
    # Before everything else
    Row("HTTP/1.1 where SETTINGS should be", b"GET / HTTP/1.1\r\n\r\n", SIZE),
)  # fmt: skip


def test_breaches(server: ServerProcess) -> None:
    """The right end with the right code; a stream's end is not that of the connection."""
    wrong = []
    with attacked(server, f"HTTP/2: {len(ROWS)} breaches", Limits(peak_mb=32)), innocent(server):
        for row in ROWS:
            with http2.connected(server.grpc_port) as connection:
                connection.send(row.data)
                if row.whole:
                    ended = connection.wait_for_end()
                    if connection.going_away != row.code or not ended:
                        wrong.append(f"{row.name}: {connection.going_away}, expected {row.code}; ended: {ended}")
                    continue
                connection.wait_for_answers([1])
                if connection.resets.get(1) != row.code:
                    wrong.append(f"{row.name}: {connection.resets}, expected {row.code}")
                connection.send(_WHOLE.replace(b"\0\0\0\x01", b"\0\0\0\x03", 2))
                if connection.wait_for_status(3) != 0:
                    wrong.append(f"{row.name}: the connection did not go on")
    assert not wrong, "\n".join(wrong)


def on_stream(number: int, block: bytes = _BLOCK) -> bytes:
    return frame(HEADERS, END_HEADERS, number, block) + frame(DATA, END_STREAM, number, http2.message(b""))


HARMLESS: Final = {
    "an unknown frame": frame(0xBE, 0xFF, 0, b"x" * 100),
    "unknown flags": frame(SETTINGS, 0xFE, 0),
    "an unknown setting": frame(SETTINGS, 0, 0, b"\xbe\xef\0\0\0\1"),
    "an unknown error code": frame(HEADERS, END_HEADERS, 1, _BLOCK) + frame(RST_STREAM, 0, 1, b"\xff" * 4),
    "the reserved bit of a window": frame(WINDOW_UPDATE, 0, 0, b"\x80\0\0\1"),
    "the reserved bit of a stream": frame(WINDOW_UPDATE, 0, 1 << 31, b"\0\0\0\1"),
    "a stream that depends on itself": frame(PRIORITY, 0, 7, b"\0\0\0\x07\xff"),
    "padding": frame(HEADERS, PADDED | END_HEADERS, 1, b"\3" + _BLOCK + bytes(3))
    + frame(DATA, PADDED | END_STREAM, 1, b"\7" + bytes(12)),
    "a header block in many parts": frame(HEADERS, END_STREAM, 1) + b"".join(
        frame(CONTINUATION, 4 if at + 20 >= len(_BLOCK) else 0, 1, _BLOCK[at : at + 20])
        for at in range(0, len(_BLOCK), 20)
    ),
    "a message in frames of one byte": _OPENED + b"".join(frame(DATA, 0, 1, b"\0") for _ in range(5))
    + frame(DATA, END_STREAM, 1),
    "a content-length": frame(HEADERS, END_HEADERS, 1, call_headers("ServerLive", (b"content-length", b"5")))
    + frame(DATA, PADDED, 1, b"\2" + bytes(5)) + frame(DATA, END_STREAM, 1, bytes(2)),
    "trailers": _OPENED + frame(DATA, 0, 1, bytes(5)) + frame(HEADERS, 5, 1, field(b"a", b"b")),
}  # fmt: skip


def test_what_is_odd_and_allowed(server: ServerProcess) -> None:
    wrong = []
    with attacked(server, "HTTP/2: odd and allowed", Limits(peak_mb=32)):
        for name, data in HARMLESS.items():
            with http2.connected(server.grpc_port) as connection:
                connection.send(data + on_stream(9))
                if connection.wait_for_status(9) != 0 or connection.going_away is not None:
                    wrong.append(f"{name}: {connection.going_away} {connection.resets}")
    assert not wrong, "\n".join(wrong)


def test_a_client_that_goes_away(server: ServerProcess) -> None:
    """What it has begun is finished, and then the connection is closed."""
    infer = http2.message(bytes(message(Ask()).SerializeToString()))
    with attacked(server, "HTTP/2: GOAWAY of a client"), http2.connected(server.grpc_port) as connection:
        connection.send(frame(HEADERS, END_HEADERS, 1, call_headers("ModelInfer")) + frame(DATA, 0, 1, infer[:20]))
        connection.send(frame(GOAWAY, 0, 0, bytes(8) + b"so long"))
        assert not connection.wait_for_end(0.1)
        connection.send(frame(DATA, END_STREAM, 1, infer[20:]))
        assert connection.wait_for_status(1) == 0
        assert connection.wait_for_end()
    assert_serving(server)


def test_more_than_the_windows_allow(server: ServerProcess) -> None:
    """The stream's window is 2 MiB, and opens as the server reads; that of a call which is not served does not."""
    head = frame(HEADERS, END_HEADERS, 1, call_headers("ModelStreamInfer"))
    sent = http2.message(bytes(message(Ask()).SerializeToString())) + b"\0" + (1 << 28).to_bytes(4, "big")
    with attacked(server, "HTTP/2: window overflow", Limits(peak_mb=128)), http2.connected(server.grpc_port) as own:
        own.send(head + frame(DATA, 0, 1, sent))
        part = frame(DATA, 0, 1, bytes(1 << 16)) * 16
        for _ in range(64):
            if not own.send(part):
                break
        own.wait_for_answers([1])
        assert own.resets.get(1) == FLOW or own.going_away == FLOW or 1 in own.blocks or own.ended
    assert_serving(server)


def test_too_many_streams(server: ServerProcess) -> None:
    """1,000 are announced; the next is refused, may be sent again, and those that are open go on."""
    with attacked(server, "HTTP/2: 1,001 streams", Limits(peak_mb=64)), http2.connected(server.grpc_port) as connection:
        for stream in range(1, 2_003, 2):
            connection.send(frame(HEADERS, END_HEADERS, stream, call_headers("ModelStreamInfer")))
        assert connection.wait_for_answers([2_001])
        assert connection.resets == {2_001: REFUSED}
        connection.send(frame(RST_STREAM, 0, 1, b"\0\0\0\x08") + on_stream(2_003))
        assert connection.wait_for_status(2_003) == 0
    assert_serving(server)


def test_long_metadata(server: ServerProcess) -> None:
    """16 KiB are announced: the call ends RESOURCE_EXHAUSTED, and the connection goes on."""
    block = call_headers("ServerLive", *[(b"x%d" % number, b"y" * 1000) for number in range(17)])
    parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    with attacked(server, "HTTP/2: long metadata"), http2.connected(server.grpc_port) as connection:
        connection.send(frame(HEADERS, 0, 1, parts[0]) + frame(CONTINUATION, END_HEADERS, 1, b"".join(parts[1:])))
        assert connection.wait_for_status(1) == 8
        connection.send(on_stream(3))
        assert connection.wait_for_status(3) == 0
    assert_serving(server)


TOO_MUCH: Final = {
    "70 KB in one field": [(b"x", b"y" * 70_000)],
    "300 KB in one field": [(b"x", b"y" * 300_000)],
    "900 KB": [(b"x%d" % number, b"y" * 30_000) for number in range(30)],
    "2,000 fields": [(b"x%d" % number, b"y") for number in range(2_000)],
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_far_too_much_metadata(server: ServerProcess, name: str) -> None:
    """The call is refused, and those on the same connection are answered: before it, beside it, behind it."""
    block = call_headers("ServerLive", *TOO_MUCH[name])
    with (
        attacked(server, f"HTTP/2: metadata, {name}"),
        innocent(server),
        http2.connected(server.grpc_port) as connection,
    ):
        opened = frame(HEADERS, END_HEADERS, 1, call_headers("ModelInfer"))
        connection.send(opened)  # whose message comes when all is over
        for stream in range(3, 43, 4):
            connection.send(on_stream(stream) + frame(HEADERS, END_HEADERS | END_STREAM, stream + 2, block))
        assert [connection.wait_for_status(stream) for stream in range(3, 43, 4)] == [0] * 10
        assert [connection.wait_for_status(stream) for stream in range(5, 45, 4)] == [8] * 10
        connection.send(frame(DATA, END_STREAM, 1, http2.message(bytes(message(Ask()).SerializeToString()))))
        assert connection.wait_for_status(1) == 0
        assert connection.going_away is None
    assert_serving(server)


LIES: Final = {
    "longer than what comes": (b"\0\0\0\0\x09" + b"abc", 13),
    "longer than the port takes": (b"\0\xff\xff\xff\xff" + b"abc", 8),
    "shorter than what comes": (b"\0\0\0\0\0" + b"abcdefgh", None),
    "cut": (b"\0\0\0", 13),
    "neither compressed nor not": (b"\x07\0\0\0\0", 13),
    "compressed without a coding": (b"\1\0\0\0\0", 13),
    "compressed, and is not": (b"\1\0\0\0\x03abc", None),
}
"""What a message's prefix says, and the status; None: any but OK, or the stream's end."""


def test_prefixes_that_lie(server: ServerProcess) -> None:
    wrong = []
    with attacked(server, "gRPC: prefixes that lie", Limits(peak_mb=32)):
        for name, (data, status) in LIES.items():
            coding = ((b"grpc-encoding", b"gzip"),) if status is None and data[0] else ()
            with http2.connected(server.grpc_port) as connection:
                block = call_headers("ModelInfer", *coding)
                connection.send(frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, data))
                answered = connection.wait_for_status(1)
                if answered in (None, 0) if status is None else answered != status:
                    wrong.append(f"{name}: {answered}, {connection.resets}, expected {status}")
    assert not wrong, "\n".join(wrong)
    assert_serving(server)


def test_compressed_messages_on_many_streams(server: ServerProcess) -> None:
    """40 of 20 MB each, in 20 KB each: what they become counts against the memory before it is made."""
    bomb = http2.message(gzipped([b"\x52\x80\x80\xc0\x09" + bytes(1 << 20), *[bytes(1 << 20)] * 18]), compressed=True)
    block = call_headers("ModelInfer", (b"grpc-encoding", b"gzip"))
    with (
        attacked(server, "gRPC: 40 x 20 MB, compressed", Limits(peak_mb=800)),
        http2.connected(server.grpc_port) as own,
    ):
        for stream in range(1, 81, 2):
            own.send(frame(HEADERS, END_HEADERS, stream, block))
            own.send_data(stream, [bomb])
        assert own.wait_for_answers(range(1, 81, 2))
    assert_serving(server)


def test_a_message_that_trickles(server: ServerProcess) -> None:
    """A byte a frame, a frame a packet: slow is served."""
    infer = http2.message(bytes(message(Ask()).SerializeToString()))
    with attacked(server, "gRPC: a message byte by byte"), http2.connected(server.grpc_port) as connection:
        for byte in frame(HEADERS, END_HEADERS, 1, call_headers("ModelInfer")):
            connection.send(bytes((byte,)))
        for byte in infer:
            connection.send(frame(DATA, 0, 1, bytes((byte,))))
        connection.send(frame(DATA, END_STREAM, 1))
        assert connection.wait_for_status(1) == 0


def test_a_thousand_idle_connections(server: ServerProcess) -> None:
    """Silent from the start, behind the preface, or in the middle of a frame: next to no memory, and no CPU."""
    starts = (b"", http2.PREFACE, http2.PREFACE + frame(SETTINGS, 0, 0) + _OPENED[:30])
    with ExitStack() as stack, attacked(server, "1,000 idle gRPC connections", Limits(peak_mb=50, cpu_seconds=3)):
        for number in range(1_000):
            connection = stack.enter_context(dialled(server.grpc_port))
            connection.sendall(starts[number % 3])
        eventually(lambda: footprint(server.pid).descriptors > 1_000)
        assert_serving(server)
        stack.close()


def test_the_wrong_protocol(server: ServerProcess) -> None:
    for data in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"\0" * 100):
        with dialled(server.grpc_port) as connection:
            connection.sendall(data)
            assert b"this port accepts only HTTP/2" in read_to_end(connection)
    assert_serving(server)


def test_the_h2_library_without_its_rules(server: ServerProcess) -> None:
    """It sends what it is told; its own reading of what comes back must find nothing to complain about."""
    config = h2.config.H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None
    )
    bad = [(b":method", b"GET"), (b":path", b"/"), (b"Upper", b"x"), (b"connection", b"close")]
    good = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", (http2.SERVICE + "ServerLive").encode()),
            (b"content-type", b"application/grpc"), (b"te", b"trailers")]  # fmt: skip
    with attacked(server, "the h2 library without its rules"), dialled(server.grpc_port) as opened:
        client = h2.connection.H2Connection(config)
        client.initiate_connection()
        for number in range(200):
            stream = client.get_next_available_stream_id()
            client.send_headers(stream, bad if number % 2 else good, end_stream=False)
            client.send_data(stream, bytes(5), end_stream=True, pad_length=number % 50)
            opened.sendall(client.data_to_send())
        ended: dict[int, str] = {}
        while len(ended) < 200:
            data = opened.recv(65536)
            assert data, "the connection ended"
            for event in client.receive_data(data):
                if isinstance(event, h2.events.StreamReset):
                    ended.setdefault(event.stream_id or 0, "reset")
                elif isinstance(event, h2.events.StreamEnded):
                    ended[event.stream_id or 0] = "answered"
    assert [ended[2 * number + 1] for number in range(200)] == ["answered", "reset"] * 100

"""The client's HTTP/1.1 and HTTP/2, byte by byte, and who sends when."""

import asyncio

import pytest
from bench_fakes import FIELDS, Factory, Http2End, open_loop

from http2_client import Transport
from modserve.commands.bench import loops
from modserve.commands.bench.grpc import GrpcSlot
from modserve.commands.bench.http import Heads, HttpSlot
from modserve.commands.bench.http2 import frame, status_error
from modserve.commands.bench.inputs import PreparedRequest
from modserve.commands.bench.loops import ClosedLoop
from modserve.commands.bench.slots import Endpoint, RequestSlot
from modserve.commands.destination import address

HERE = Endpoint(address("h:1"))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


class Outcomes:
    def __init__(self) -> None:
        self.errors: list[str] = []

    def on_done(self, slot: RequestSlot, error: str) -> None:
        slot.start = 0
        self.errors.append(error)

    def on_response(self, slot: RequestSlot) -> None:
        raise AssertionError("only models that are decoupled respond in parts")


def http_slot() -> tuple[HttpSlot, Transport, Outcomes]:
    outcomes = Outcomes()
    slot = HttpSlot(HERE, [PreparedRequest(b"request 0"), PreparedRequest(b"request 1", b".")], outcomes, Heads())
    transport = Transport(slot)
    slot.connection_made(transport)
    return slot, transport, outcomes


def exchange(slot: HttpSlot, *parts: bytes) -> None:
    slot.start = 1
    slot.send(1)
    for part in parts:
        slot.data_received(part)


RESPONSES: dict[str, tuple[list[bytes], str]] = {
    "whole": ([OK], ""),
    "byte by byte": ([OK[index : index + 1] for index in range(len(OK))], ""),
    "head, then body": ([OK[:-3], b"a", b"bc"], ""),
    "continue": ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], ""),
    "continue, in one": ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], ""),
    "chunks": ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n"], ""),
    "an error": ([b'HTTP/1.1 400 Bad Request\r\ncontent-length: 13\r\n\r\n{"error":"a"}'], "400: a"),
    "an error in pieces": ([b"HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nb", b"us", b"y"], "503: busy"),
    "an error without a text": ([b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"], "status 500"),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_a_response(case: str) -> None:
    parts, error = RESPONSES[case]
    slot, transport, outcomes = http_slot()
    for _ in range(2):  # the second time the head is known
        exchange(slot, *parts)
    assert outcomes.errors == [error, error]
    assert transport.written == [b"request 1", b"request 1"]


def test_a_response_that_ends_with_the_connection() -> None:
    slot, _, outcomes = http_slot()
    exchange(slot, b"HTTP/1.0 200 OK\r\n\r\nabc", b"def")
    assert outcomes.errors == []
    slot.connection_lost(None)
    assert outcomes.errors == [""]


def test_a_mark_stands_between_the_parts_of_a_request() -> None:
    slot, transport, _ = http_slot()
    slot.send(1, b" of 2")
    assert transport.written == [b"request 1 of 2."]


def test_a_connection_that_is_lost() -> None:
    slot, _, outcomes = http_slot()
    exchange(slot, OK[:-1])
    slot.connection_lost(None)
    assert outcomes.errors == ["connection closed by the server"]
    slot.connection_lost(ConnectionResetError("reset"))  # without a request, nobody minds
    assert len(outcomes.errors) == 1


def test_a_request_that_takes_too_long() -> None:
    slot, transport, outcomes = http_slot()
    exchange(slot)
    slot.abort("no response within 1 s")
    assert transport.aborted
    slot.connection_lost(None)
    assert outcomes.errors == ["no response within 1 s"]


def test_a_server_that_closes_behind_each_response() -> None:
    slot, transport, outcomes = http_slot()
    exchange(slot, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    slot.start = 1
    slot.send(0)
    assert transport.closed
    assert transport.written == [b"request 1"]
    again = Transport(slot)
    slot.connection_made(again)  # as `_reopen` has it done
    assert again.written == [b"request 0"]
    assert outcomes.errors == [""]


# gRPC


class Http2(Http2End[GrpcSlot]):
    def __init__(self, *messages: bytes, settings: bytes = b"") -> None:
        self.outcomes = Outcomes()
        super().__init__(GrpcSlot, self.outcomes, *messages, settings=settings)

    def send(self, index: int = 0) -> None:
        self.slot.start = 1
        self.slot.send(index)

    def respond(self, stream: int, *trailers: tuple[str, str], split: bool = False) -> None:
        head = frame(1, 4, stream, self.encoder.encode([(":status", "200"), ("content-type", "application/grpc")]))
        block = self.encoder.encode(trailers)
        end = frame(1, 5, stream, block)
        if split:
            end = frame(1, 1, stream, block[:1]) + frame(9, 4, stream, block[1:])
        data = head + frame(0, 0, stream, b"\0\0\0\0\1x") + end
        self.connection.data_received(data[:7])
        self.connection.data_received(data[7:])


async def test_a_call() -> None:
    server = Http2(b"abc")
    for stream in (1, 3, 5, 7):
        server.send()
        headers, data = server.frames()
        assert headers[:3] == (1, 4, stream)
        assert [(str(name), str(value)) for name, value in server.decoder.decode(headers[3])] == FIELDS
        assert data == (0, 1, stream, b"\0\0\0\0\3abc")
        server.respond(stream, ("grpc-status", "0"), ("grpc-message", ""))
    assert server.outcomes.errors == [""] * 4
    assert len(headers[3]) == len(FIELDS)  # by then, a byte for each


async def test_a_mark_is_a_part_of_its_message() -> None:
    server = Http2(b"abc")
    server.slot.send(0, b"de")
    assert server.frames()[1] == (0, 1, 1, b"\0\0\0\0\5abcde")


async def test_an_error_of_grpc() -> None:
    server = Http2(b"abc")
    server.send()
    server.respond(1, ("grpc-status", "14"), ("grpc-message", "not%20ready"), split=True)
    assert server.outcomes.errors == ["UNAVAILABLE: not ready"]


async def test_a_server_that_goes_away_answers_the_calls_that_it_has_taken() -> None:
    server = Http2(b"abc")
    server.send()
    server.connection.data_received(frame(7, 0, 0, (1).to_bytes(4, "big") + bytes(4)))
    assert not server.connection.usable
    assert server.outcomes.errors == []
    server.respond(1, ("grpc-status", "0"))
    assert server.outcomes.errors == [""]


async def test_a_call_that_a_server_going_away_has_not_taken_fails() -> None:
    server = Http2(b"abc")
    server.send()
    server.connection.data_received(frame(7, 0, 0, bytes(8)))
    assert server.outcomes.errors == ["connection closed by the server"]


async def test_headers_that_change_the_table_are_read_each_time() -> None:
    server = Http2(b"abc")
    for number in range(1, 40):
        server.send()
        server.respond(2 * number - 1, ("grpc-status", "0"), ("x-number", str(number % 7)))
    assert server.outcomes.errors == [""] * 39


async def test_a_long_message_waits_for_windows() -> None:
    server = Http2(bytes(100_000))
    server.send()
    frames = server.frames()
    assert sum(len(payload) for kind, _, _, payload in frames if kind == 0) == 65_535
    assert max(len(payload) for *_, payload in frames) == 16_384
    server.connection.data_received(frame(8, 0, 0, (1 << 20).to_bytes(4, "big")))
    assert server.frames() == []
    server.connection.data_received(frame(8, 0, 1, (1 << 20).to_bytes(4, "big")))
    frames = server.frames()
    assert sum(len(payload) for *_, payload in frames) == 100_005 - 65_535
    assert [flags for _, flags, *_ in frames] == [0, 0, 1]


async def test_the_server_s_settings_are_kept() -> None:
    settings = b"\0\4" + (8).to_bytes(4, "big") + b"\0\1" + (0).to_bytes(4, "big")
    server = Http2(b"0123456789", settings=settings)
    server.send()
    headers, data = server.frames()
    assert headers[3][:1] == b"\x20"  # the table has no room
    assert data == (0, 0, 1, b"\0\0\0\0\n012")


async def test_pings_and_settings_get_their_answer() -> None:
    server = Http2(b"")
    server.connection.data_received(frame(6, 0, 0, b"12345678") + frame(4, 0, 0))
    assert server.frames() == [(6, 1, 0, b"12345678"), (4, 1, 0, b"")]


async def test_what_ends_a_call_early() -> None:
    server = Http2(b"")
    for end in (frame(3, 0, 1, b"\0\0\0\7"), frame(1, 5, 3, server.encoder.encode([("a", "b")])), frame(0, 1, 5)):
        server.send()
        server.connection.data_received(end)
    server.send()
    server.connection.connection_lost(None)
    assert server.outcomes.errors == [
        "stream reset with code 7",
        "stream ended without a status",
        "stream ended without a status",
        "connection closed by the server",
    ]
    assert not server.connection.usable


async def test_a_call_that_takes_too_long() -> None:
    server = Http2(b"")
    server.send()
    server.frames()
    server.slot.abort("no response within 1 s")
    assert server.frames() == [(3, 0, 1, b"\0\0\0\x08")]
    assert server.outcomes.errors == ["no response within 1 s"]


def test_what_trailers_say() -> None:
    assert status_error({b"grpc-status": b"0"}) == ""
    assert status_error({b"grpc-status": b"99"}) == "99"
    assert status_error({b":status": b"200"}) is None
    assert status_error({b":status": b"404"}) == "HTTP status 404 in place of a gRPC response"


# Loops


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    time = [1_000_000_000]
    monkeypatch.setattr(loops, "clock", lambda: time[0])
    return time


async def test_a_closed_loop(now: list[int]) -> None:
    factory = Factory()
    generator = ClosedLoop(2, factory, 3, 60)
    await generator.start()
    first, second = factory.slots
    assert (first.sent, second.sent) == ([0], [1])
    now[0] += 5
    first.respond()
    now[0] += 2
    first.respond("no")
    assert first.sent == [0, 2, 0]
    window = generator.take_window()
    assert (list(window.latencies), dict(window.errors), window.seconds) == ([5], {"no": 1}, 7e-9)
    stopping = asyncio.create_task(generator.stop(5))
    await asyncio.sleep(0)
    first.respond()
    second.respond()
    assert await stopping == 0
    assert len(first.sent) == 3
    assert first.closed


async def test_responses_that_never_come(now: list[int]) -> None:
    factory = Factory()
    generator = ClosedLoop(2, factory, 1, 60)
    await generator.start()
    assert await generator.stop(0.0) == 2


async def test_latency_counts_from_the_intended_start(now: list[int]) -> None:
    """One connection, 1000 a second, and a server that stalls for 3 ms: four requests were delayed, not one."""
    factory = Factory()
    generator, _ = open_loop(factory, 1000, 1)
    await generator.start()
    [slot] = factory.slots
    generator.take_window()
    now[0] += 3_000_000
    generator.tick()
    assert generator.take_window().waiting == 3
    for _ in range(4):
        slot.respond()
    assert list(generator.take_window().latencies) == [3_000_000, 2_000_000, 1_000_000, 0]
    await generator.stop(0.0)


async def test_an_open_loop_sends_by_the_clock(now: list[int]) -> None:
    factory = Factory()
    generator, timers = open_loop(factory, 1000, 8)
    await generator.start()
    assert timers.moment == 1_001_000_000
    now[0] = timers.moment + 20
    timers.callback()
    assert timers.moment == 1_002_000_000
    assert len(factory.slots) == 1
    await asyncio.sleep(0)  # another connection is opened, and takes what waits
    await asyncio.sleep(0)
    assert [slot.sent for slot in factory.slots] == [[0], [0]]
    assert list(generator.take_window().lags) == [0, 20]
    await generator.stop(0.0)


async def test_random_gaps_have_the_rate_on_average(now: list[int]) -> None:
    factory = Factory()
    generator, _ = open_loop(factory, 1000, 1, poisson=True)
    await generator.start()
    now[0] += 1_000_000_000
    generator.tick()
    assert 900 < generator.take_window().waiting < 1100
    await generator.stop(0.0)

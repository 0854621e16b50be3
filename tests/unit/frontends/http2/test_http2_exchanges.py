"""Requests and responses on one connection, with the h2 library and with frames by hand."""

import asyncio
import random
from typing import Any

import h2.events
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from http2_client import END, HEADERS, OK, EchoPort, FriendlyClient, Loop, Wire, data, headers, window
from modserve.frontends.http2 import frames
from modserve.frontends.http2.frames import PREFACE
from modserve.frontends.http2.limits import ConnectionLimits


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def port(loop: Loop) -> EchoPort:
    return EchoPort(loop)


@pytest.fixture
def wire(port: EchoPort, loop: Loop) -> Wire:
    return Wire(port, loop)


def test_the_greeting(port: EchoPort) -> None:
    wire = Wire(port, greet=False)
    settings, update = wire.frames()
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {1: 4096, 3: 1000, 4: 2 << 20, 5: 1 << 20, 6: 16384}
    assert isinstance(update, WindowUpdateFrame)
    assert update.stream_id == 0
    wire.send(PREFACE, SettingsFrame(0))
    assert [(type(each), each.flags) for each in wire.frames()] == [(SettingsFrame, {"ACK"})]


def test_a_short_exchange_is_one_write(wire: Wire) -> None:
    wire.ask(1, b"hello")
    assert wire.transport.written == [
        b"".join(
            (
                frames.frame(frames.HEADERS, 4, 1, OK),
                frames.frame(frames.DATA, 0, 1, b"hello"),
                frames.frame(frames.HEADERS, 5, 1, END),
            )
        )
    ]
    assert not wire.connection.streams


def test_responses_of_one_turn_are_one_write(wire: Wire) -> None:
    wire.send(headers(1, end=True), headers(3, end=True), headers(5), data(5, b"x", end=True))
    assert len(wire.transport.written) == 1
    assert [each.stream_id for each in wire.frames() if "END_STREAM" in each.flags] == [1, 3, 5]


def test_responses_outside_of_a_turn_are_one_write(port: EchoPort, wire: Wire, loop: Loop) -> None:
    wire.send(headers(1), headers(3))
    for stream in port.streams:
        stream.ended = True
        stream.answer()
    assert wire.transport.written == []
    loop.run()
    assert len(wire.transport.written) == 1


@pytest.mark.parametrize("size", [0, 1, 9, 70_000, 5_000_000])
def test_the_h2_library(wire: Wire, size: int) -> None:
    body = random.Random(1).randbytes(size)
    client = FriendlyClient(Wire(wire.port, wire.loop, greet=False))
    events = client.ask(body)
    assert b"".join(each.data for each in events if isinstance(each, h2.events.DataReceived)) == body
    heads: list[Any] = [each.headers for each in events if isinstance(each, h2.events.ResponseReceived)]
    ends: list[Any] = [each.headers for each in events if isinstance(each, h2.events.TrailersReceived)]
    assert [[tuple(field) for field in fields] for fields in heads + ends] == [[(":status", "200")], [("end", "1")]]
    assert not client.wire.connection.streams
    assert [dict(each.headers) for each in client.ask(b"") if isinstance(each, h2.events.ResponseReceived)]


def test_bytes_come_in_any_pieces(port: EchoPort, loop: Loop) -> None:
    part = headers(1, HEADERS[:7], whole=False)
    rest = ContinuationFrame(1, data=HEADERS[7:])
    rest.flags.add("END_HEADERS")
    padded = DataFrame(1, data=b"padded", pad_length=9)
    padded.flags.add("PADDED")
    sent = [SettingsFrame(0), part, rest, data(1, b"a" * 50), padded, data(1, b""), data(1, b"z", end=True)]
    whole = PREFACE + b"".join(each.serialize() for each in sent)
    for size in range(1, 40):
        wire = Wire(port, loop, greet=False)
        for at in range(0, len(whole), size):
            wire.send(whole[at : at + size])
        assert port.streams[-1].body == b"a" * 50 + b"paddedz"
        assert [each.data for each in wire.frames() if isinstance(each, DataFrame)] == [b"a" * 50 + b"paddedz"]


def test_what_means_nothing_is_ignored(wire: Wire) -> None:
    prioritized = headers(1, end=True)
    prioritized.flags.add("PRIORITY")
    wire.send(PriorityFrame(3, depends_on=1, stream_weight=3), frames.frame(0xBE, 255, 7, b"x" * 100))
    wire.send(prioritized)
    padded = headers(3, end=True)
    padded.flags.add("PADDED")
    padded.pad_length = 30
    wire.send(padded)
    assert [each.stream_id for each in wire.frames() if isinstance(each, HeadersFrame)] == [1, 1, 3, 3]


def test_a_ping_is_answered(wire: Wire) -> None:
    wire.send(PingFrame(0, opaque_data=b"12345678"))
    (pong,) = wire.frames()
    assert (pong.flags, pong.opaque_data) == ({"ACK"}, b"12345678")


def test_trailers_end_a_request(port: EchoPort, wire: Wire) -> None:
    wire.send(headers(1), data(1, b"x"), headers(1, END, end=True))
    assert port.streams[0].log == ["end", "begin", "finished"]


def test_a_response_before_the_end_of_its_request(port: EchoPort, wire: Wire) -> None:
    """The rest of the request is dropped, and the client is told that it need not send it."""
    wire.send(headers(1))
    port.streams[0].answer()
    assert wire.resets() == [(1, 0)]
    wire.send(data(1, b"late", end=True))
    assert wire.error() is None


def test_a_client_with_a_small_table_gets_no_other(wire: Wire) -> None:
    """RFC 7541, section 4.2: the first block says so."""
    wire.send(SettingsFrame(0, settings={1: 0}))
    wire.ask(1, b"x")
    wire.ask(3, b"x")
    blocks = [each.data for each in wire.frames() if isinstance(each, HeadersFrame)]
    assert blocks == [b"\x20" + OK, END, OK, END]


# Flow control


def test_a_response_waits_for_windows(port: EchoPort, wire: Wire) -> None:
    port.credits = False
    wire.send(headers(1), data(1, b"x" * 100_000, end=True))
    sent = [each.data for each in wire.frames() if isinstance(each, DataFrame)]
    assert sum(map(len, sent)) == 65_535
    assert max(map(len, sent)) == 16_384
    wire.send(window(1, 10))
    assert wire.frames() == []  # the connection has none
    wire.send(window(0, 50_000))
    assert [each.data for each in wire.frames()] == [b"x" * 10]
    wire.send(window(1, 50_000))
    rest = wire.frames()
    assert sum(len(each.data) for each in rest if isinstance(each, DataFrame)) == 100_000 - 65_545
    assert "END_STREAM" in rest[-1].flags
    assert port.streams[0].log[-1] == "finished"


def test_the_client_changes_all_windows(wire: Wire) -> None:
    wire.send(SettingsFrame(0, settings={4: 0}))
    wire.ask(1, b"abcdef")
    assert [type(each) for each in wire.frames()] == [SettingsFrame, HeadersFrame]
    wire.send(SettingsFrame(0, settings={4: 4}))
    assert [each.data for each in wire.frames() if isinstance(each, DataFrame)] == [b"abcd"]
    wire.send(SettingsFrame(0, settings={4: 2}))  # now it is below zero
    wire.send(window(1, 2))
    assert not [each for each in wire.frames() if isinstance(each, DataFrame)]
    wire.send(window(1, 2))
    assert [each.data for each in wire.frames() if isinstance(each, DataFrame)] == [b"ef"]


def test_streams_take_turns(port: EchoPort, wire: Wire) -> None:
    wire.send(SettingsFrame(0, settings={4: 1 << 20}))
    for stream in (1, 3):
        wire.ask(stream, b"x" * 200_000)
    wire.frames()
    wire.send(window(0, 1 << 20))
    order = [each.stream_id for each in wire.frames() if isinstance(each, DataFrame)]
    assert order.index(3) < len(order) - 1 - order[::-1].index(1)


def test_nothing_is_sent_to_a_client_that_does_not_read(loop: Loop) -> None:
    port = EchoPort(loop, limits=ConnectionLimits(stream_window=4 << 20, connection_window=4 << 20))
    wire = Wire(port, loop, room=1000)
    wire.send(SettingsFrame(0, settings={4: 4 << 20}), window(0, 4 << 20))
    wire.send(headers(1), *[data(1, b"x" * 1_000_000)] * 3, data(1, b"x" * 1_000_000, end=True))
    assert wire.connection.sender.paused
    assert len(wire.written()) < 2_800_000
    wire.transport.drain()
    loop.run()
    assert len(wire.written()) > 1_200_000
    assert port.streams[0].log[-1] == "finished"


def test_windows_grow_as_bytes_are_consumed(port: EchoPort, loop: Loop) -> None:
    limits = ConnectionLimits(stream_window=1000, connection_window=100_000, frame=16_384)
    port = EchoPort(loop, limits=limits)
    wire = Wire(port, loop)
    wire.send(headers(1), data(1, b"x" * 499))
    assert wire.frames() == []
    wire.send(data(1, b"x"))
    assert [(each.stream_id, each.window_increment) for each in wire.frames()] == [(1, 500)]
    for _ in range(99):
        wire.send(data(1, b"x" * 500))
    grown = [(each.stream_id, each.window_increment) for each in wire.frames()]
    assert (0, 50_000) in grown


def test_a_reset_stream_is_over(port: EchoPort, wire: Wire) -> None:
    wire.send(headers(1), RstStreamFrame(1, error_code=8))
    assert port.streams[0].log == ["lost"]
    wire.send(data(1, b"late"), window(1, 5))
    assert wire.error() is None


def test_a_lost_connection_ends_its_streams(port: EchoPort, wire: Wire) -> None:
    wire.send(headers(1), headers(3, end=True))
    wire.connection.connection_lost(None)
    assert [stream.log[-1] for stream in port.streams] == ["lost", "finished"]
    assert port.idle.is_set()


# The end


def test_going_away_in_two_steps(port: EchoPort, wire: Wire) -> None:
    wire.send(headers(1))
    wire.connection.go_away()
    first, ping = wire.frames()
    assert (first.last_stream_id, first.error_code) == ((1 << 31) - 1, 0)
    wire.send(headers(3))  # it did not know
    pong = PingFrame(0, opaque_data=ping.opaque_data)
    pong.flags.add("ACK")
    wire.send(pong)
    (last,) = wire.frames()
    assert last.last_stream_id == 3
    wire.send(headers(5))
    assert wire.resets() == [(5, 7)]
    assert not wire.transport.closed
    wire.send(data(1, b"", end=True), data(3, b"", end=True))
    wire.frames()
    assert wire.transport.closed
    assert not wire.transport.aborted


async def test_a_goodbye_is_over_when_all_have_heard_it(port: EchoPort, loop: Loop) -> None:
    """Until then they may have opened streams that are on their way."""
    wires = [Wire(port, loop) for _ in range(3)]
    for each in wires:
        each.send(headers(1))
    goodbye = asyncio.create_task(port.say_goodbye(3600.0))
    await asyncio.sleep(0)
    for each in wires[:2]:
        ping = next(frame for frame in each.frames() if isinstance(frame, PingFrame))
        each.send(headers(3))
        pong = PingFrame(0, opaque_data=ping.opaque_data)
        pong.flags.add("ACK")
        each.send(pong)
        await asyncio.sleep(0)
        assert not goodbye.done()
    wires[2].connection.connection_lost(None)
    await goodbye
    assert not wires[0].transport.closed  # its streams go on


async def test_a_goodbye_to_those_who_do_not_hear(port: EchoPort) -> None:
    await port.say_goodbye(3600.0)  # there are none
    Wire(port).send(headers(1))
    await port.say_goodbye(0.0)


def test_an_idle_connection_goes_at_once(wire: Wire) -> None:
    wire.connection.go_away()
    wire.pass_time(3)
    assert wire.transport.closed

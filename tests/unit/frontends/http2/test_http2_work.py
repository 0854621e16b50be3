"""What is dear to do and cheap to ask for: it has its price in frames, or waits for the next turn of the event loop."""

from dataclasses import replace

import pytest
from hyperframe.frame import DataFrame, RstStreamFrame, SettingsFrame

from http2_client import HEADERS, EchoPort, Loop, Wire, data, headers, window
from modserve.core.runtime.turn import BURST
from modserve.frontends.http2 import frames
from modserve.frontends.http2.endings import CloseReason
from modserve.frontends.http2.frames import (
    COMPRESSION_ERROR,
    DATA,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    PADDED,
    PING,
    PROTOCOL_ERROR,
    SETTINGS,
    frame,
)
from modserve.frontends.http2.headers import block, literal
from modserve.frontends.http2.limits import LIMITS
from modserve.frontends.http2.port import PortConnection
from modserve.frontends.places import LINGERING

NOISE = LIMITS.noise + 10


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def wire(loop: Loop) -> Wire:
    return Wire(EchoPort(loop), loop)


def initial_window(size: int) -> bytes:
    return b"\0\4" + size.to_bytes(4, "big")


FLOODS = {
    "GOAWAY": headers(1).serialize() + frame(GOAWAY, 0, 0, bytes(8)) * NOISE,
    "acknowledgements of pings": frame(PING, 1, 0, bytes(8)) * NOISE,
    "acknowledgements of SETTINGS": frame(SETTINGS, 1, 0) * NOISE,
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods(wire: Wire, name: str) -> None:
    wire.send(FLOODS[name])
    error = wire.error()
    assert error is not None
    assert error[0] == ENHANCE_YOUR_CALM


def test_settings_that_change_all_streams_count_more(wire: Wire) -> None:
    """Each takes a look at each stream."""
    wire.send(*[headers(2 * number + 1) for number in range(1000)])
    changes = [frame(SETTINGS, 0, 0, initial_window(number % 2)) for number in range(NOISE // 20)]
    wire.send(*changes)
    error = wire.error()
    assert error is not None
    assert error[0] == ENHANCE_YOUR_CALM


def test_settings_that_say_the_same_setting_again_and_again(wire: Wire) -> None:
    """The last one counts, and the streams are looked at once."""
    wire.ask(1, b"x" * 100, end=False)
    (stream,) = wire.connection.streams.values()
    before = stream.window
    wire.send(frame(SETTINGS, 0, 0, b"".join([initial_window(size) for size in (7, 2**31 - 1, 70_000)])))
    assert wire.error() is None
    assert stream.window == before + 70_000 - frames.DEFAULT_WINDOW


def test_a_window_that_opens_byte_by_byte(wire: Wire) -> None:
    wire.send(SettingsFrame(0, settings={4: 0}))
    wire.ask(1, bytes(60_000))
    wire.send(*[window(1, 1)] * NOISE)
    error = wire.error()
    assert error is not None
    assert error[0] == ENHANCE_YOUR_CALM


def test_a_window_that_opens_frame_by_frame(loop: Loop) -> None:
    """As clients do that hold little."""
    wire = Wire(EchoPort(loop), loop)
    wire.send(SettingsFrame(0, settings={4: 0}), window(0, 1 << 30))
    wire.send(headers(1), data(1, bytes(1_045_000)), data(1, bytes(1_045_000), end=True))
    for _ in range(2_041):
        wire.send(window(1, 1024))
    assert sum(len(each.data) for each in wire.frames() if isinstance(each, DataFrame)) == 2_041 * 1024


def test_too_many_frames_for_one_turn(loop: Loop) -> None:
    """What is left is read in the next turns, in which others have theirs."""
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(headers(1))
    count = 3 * LIMITS.work
    wire.connection.data_received(data(1, b"x").serialize() * count + data(1, b"", end=True).serialize())
    (stream,) = port.streams
    assert not wire.transport.reading
    assert len(stream.body) == LIMITS.work
    loop.run()
    assert len(stream.body) == 2 * LIMITS.work
    while not wire.transport.reading:
        loop.run()
    assert len(stream.body) == count
    assert stream.log == ["begin", "end", "finished"]


def test_many_bytes_for_one_turn(loop: Loop) -> None:
    """A client on the same machine sends as fast as it is read, and would have the event loop for itself."""
    wire = Wire(EchoPort(loop), loop)
    wire.send(headers(1))
    piece = data(1, bytes(BURST // 4)).serialize()
    read_on = []
    for _ in range(12):
        wire.connection.data_received(piece)
        read_on.append(wire.transport.reading)
        loop.run()
        assert wire.transport.reading
    assert read_on == [True, True, True, False] * 3


def test_header_blocks_that_take_long(loop: Loop) -> None:
    port = EchoPort(loop)
    wire = Wire(port, loop)
    long = HEADERS + block([(b"a%d" % number, b"") for number in range(300)])
    wire.connection.data_received(b"".join([headers(2 * n + 1, long + bytes((0, 1, n, 0)), True).serialize()
                                            for n in range(97, 107)]))  # fmt: skip
    assert not wire.transport.reading
    assert 0 < len(port.streams) < 10
    while not wire.transport.reading:
        loop.run()
    assert len(port.streams) == 10


def test_the_connection_is_lost_between_two_turns(loop: Loop) -> None:
    wire = Wire(EchoPort(loop), loop)
    wire.connection.data_received(headers(1).serialize() + data(1, b"x").serialize() * 3 * LIMITS.work)
    wire.connection.connection_lost(None)
    loop.run()
    assert wire.port.idle.is_set()


def test_a_frame_whose_rest_does_not_come(loop: Loop) -> None:
    begun = frame(frames.HEADERS, 0, 1, HEADERS)
    for sent in (begun, begun[:20], begun + b"\0", headers(1, end=True).serialize() + b"\0\0"):
        wire = Wire(EchoPort(loop), loop)
        wire.send(sent)
        wire.pass_time(LIMITS.silence - 2)
        assert not wire.transport.ended
        wire.pass_time(5)
        assert wire.transport.ended
        error = wire.error()
        assert error is not None
        assert error[0] == PROTOCOL_ERROR


def test_frames_that_come_in_time_in_parts(wire: Wire) -> None:
    for number in range(1, 20, 2):
        sent = headers(number, end=True).serialize()
        wire.send(sent[:20])
        wire.pass_time(LIMITS.silence - 5)
        wire.send(sent[20:])
    assert wire.error() is None


def test_going_away_without_a_code(wire: Wire) -> None:
    wire.send(frame(GOAWAY, 0, 0, bytes(7)))
    error = wire.error()
    assert error is not None
    assert error[0] == FRAME_SIZE_ERROR


class IdleConnection(PortConnection):
    closing = False

    def close_when_done(self) -> None:
        self.closing = True

    def check(self, now: float, passed: float) -> None:
        raise NotImplementedError

    def go_away(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def drop(self, ending: CloseReason) -> None:
        raise NotImplementedError


def at(port: EchoPort, host: str, descriptor: int) -> tuple[bool, IdleConnection]:
    """Whether there is room for one of a client, and the connection."""
    connection = IdleConnection()
    return port.add_connection(connection, (host, 5), descriptor), connection


def test_connections_beyond_the_last_descriptor(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    port = EchoPort(loop)
    assert at(port, "10.0.0.1", 1_000_000)[0]
    port.last_descriptor = 100
    assert [at(port, "10.0.0.1", number)[0] for number in (99, 100, 101, 102)] == [True, True, False, False]
    loop.now += 11
    assert not at(port, "10.0.0.1", 101)[0]
    assert [each.args[:2] for each in caplog.records if isinstance(each.args, tuple)] == [(3, 1), (3, 2)]


def test_who_has_most_connections_makes_room(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    port = EchoPort(loop)
    port.last_descriptor = 100
    first, *others = [at(port, "10.0.0.1", number)[1] for number in (97, 98, 99, 100)]
    assert at(port, "10.0.0.2", 101)[0]
    assert [each.closing for each in (first, *others)] == [True, False, False, False]
    port.remove_connection(first)
    assert at(port, "10.0.0.3", 102)[0]
    assert [each.closing for each in others] == [True, False, False]
    assert not at(port, "10.0.0.1", 103)[0]
    assert not at(port, "10.0.0.4", 100 + LINGERING + 1)[0], "these have not closed yet, and others need descriptors"
    assert len(caplog.records) == 1


@pytest.mark.parametrize("end", ["response", "reset"])
def test_who_makes_room_finishes_the_calls_that_it_has_begun(loop: Loop, end: str) -> None:
    port = EchoPort(loop)
    busy, idle, *_ = [Wire(port, loop) for _ in range(4)]
    busy.send(headers(1), data(1, b"half"))
    port.last_descriptor = 100
    assert at(port, "10.0.0.2", 101)[0]
    goodbye = next(each for each in busy.frames() if each.type == GOAWAY)
    assert (goodbye.last_stream_id, goodbye.error_code) == (1, 0)
    busy.send(headers(3, end=True))
    assert len(port.streams) == 1, "its client has been told to send it elsewhere"
    assert not busy.transport.closed
    if end == "response":
        busy.send(data(1, b" and half", end=True))
        assert bytes(port.streams[0].body) == b"half and half"
        assert any("END_STREAM" in each.flags for each in busy.frames())
    else:
        busy.send(RstStreamFrame(1))
    assert busy.transport.closed
    assert at(port, "10.0.0.3", 102)[0]
    assert idle.transport.closed, "it has no calls"


def test_trailers_with_a_path(wire: Wire) -> None:
    wire.send(headers(1), headers(1, HEADERS, end=True))
    assert wire.resets() == [(1, PROTOCOL_ERROR)]


def test_trailers(wire: Wire) -> None:
    wire.send(headers(1), headers(1, literal(b"a", b"b"), end=True))
    assert "END_STREAM" in wire.frames()[-1].flags


def test_padding_is_credited(loop: Loop) -> None:
    """All of it, and the byte that has its length: even of frames without any other."""
    port = EchoPort(loop, limits=replace(LIMITS, stream_window=1000))
    wire = Wire(port, loop)
    wire.send(headers(1))
    for length in (0, 1, 7):
        for _ in range(600):
            wire.send(frame(DATA, PADDED, 1, bytes((length,)) + b"xy" + bytes(length)))
    assert wire.resets() == []
    assert len(port.streams[0].body) == 3600


def test_the_text_of_an_error_is_short(wire: Wire) -> None:
    wire.send(frame(frames.HEADERS, 4, 1, b"\x7f" + b"\xff" * 10_000))
    error = wire.error()
    assert error is not None
    assert error[0] == COMPRESSION_ERROR
    assert len(error[1]) <= 200


def test_resets_do_not_stop_a_connection_that_goes_on_in_the_next_turn(loop: Loop) -> None:
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(headers(1), *[data(1, b"x")] * (LIMITS.work + 5), RstStreamFrame(1), headers(3), data(3, b"y", end=True))
    assert port.streams[0].log[-1] == "lost"
    assert port.streams[1].log[-1] == "finished"


def test_calls_by_the_hundred_begin_and_end_in_several_turns(wire: Wire, loop: Loop) -> None:
    """Others have a turn of the event loop meanwhile."""
    streams, receive = wire.connection.streams, wire.connection.data_received
    receive(b"".join([headers(2 * number + 1).serialize() for number in range(300)]))
    assert 0 < len(streams) < 150
    while not wire.transport.reading:
        loop.run()
    assert len(streams) == 300
    receive(b"".join([RstStreamFrame(2 * number + 1, error_code=8).serialize() for number in range(300)]))
    assert 150 < len(streams) < 300
    while not wire.transport.reading:
        loop.run()
    assert not streams


def test_the_calls_of_a_lost_connection_end_in_several_turns(wire: Wire, loop: Loop) -> None:
    wire.send(*[headers(2 * number + 1) for number in range(300)])
    calls = list(wire.connection.streams.values())
    wire.connection.connection_lost(None)
    assert all(call.over for call in calls)  # at once: nothing is sent any more
    ended = []
    for _ in range(3):
        ended.append(sum("lost" in call.log for call in calls))  # type: ignore[attr-defined]
        loop.run()
    assert ended == [100, 200, 300]

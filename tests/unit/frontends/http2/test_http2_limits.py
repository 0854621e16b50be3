"""What a connection does about clients that do what they must not, too much, or nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hyperframe.frame import GoAwayFrame, PingFrame, RstStreamFrame, SettingsFrame

from http2_client import HEADERS, OK, EchoPort, Loop, Wire, data, headers, window
from modserve.frontends.http2 import frames
from modserve.frontends.http2.frames import (
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    frame,
)
from modserve.frontends.http2.headers import block, literal
from modserve.frontends.http2.limits import LIMITS
from modserve.frontends.http2.policies import Policies

POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def wire(loop: Loop) -> Wire:
    return Wire(EchoPort(loop), loop)


def opened() -> bytes:
    return headers(1).serialize()


LONG = literal(b"long", b"x" * 70_000)
CONNECTION_ERRORS = {
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "HEADERS on stream 0": (frame(frames.HEADERS, 4, 0, HEADERS), PROTOCOL_ERROR),
    "HEADERS on a stream of the server's": (frame(frames.HEADERS, 4, 2, HEADERS), PROTOCOL_ERROR),
    "DATA on an idle stream": (frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (frame(RST_STREAM, 0, 1, bytes(4)), PROTOCOL_ERROR),
    "RST_STREAM of 3 bytes": (opened() + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE on an idle stream": (frame(WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL_ERROR),
    "WINDOW_UPDATE by nothing": (frame(WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL_ERROR),
    "WINDOW_UPDATE of 5 bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "a window beyond its limit": (frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), FLOW_CONTROL_ERROR),
    "an initial window beyond its limit": (frame(SETTINGS, 0, 0, b"\0\4\x80\0\0\0"), FLOW_CONTROL_ERROR),
    "an initial window beyond that of a stream": (
        opened() + frame(WINDOW_UPDATE, 0, 1, b"\x7f\0\0\0") + frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff"),
        FLOW_CONTROL_ERROR,
    ),
    "frames of at most 1 byte": (frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1"), PROTOCOL_ERROR),
    "a push of 2": (frame(SETTINGS, 0, 0, b"\0\2\0\0\0\2"), PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "an acknowledgement that says something": (frame(SETTINGS, 1, 0, bytes(6)), FRAME_SIZE_ERROR),
    "PING of 7 bytes": (frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "PRIORITY of 4 bytes": (frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    "PUSH_PROMISE": (frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), PROTOCOL_ERROR),
    "CONTINUATION without HEADERS": (frame(CONTINUATION, 4, 1, HEADERS), PROTOCOL_ERROR),
    "DATA within a header block": (frame(frames.HEADERS, 0, 1, HEADERS) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "PING within a header block": (frame(frames.HEADERS, 0, 1, HEADERS) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "CONTINUATION of another stream": (
        frame(frames.HEADERS, 0, 1, HEADERS) + frame(CONTINUATION, 4, 3, HEADERS),
        PROTOCOL_ERROR,
    ),
    "padding longer than DATA": (opened() + frame(DATA, 8, 1, b"\x01"), PROTOCOL_ERROR),
    "padding longer than HEADERS": (frame(frames.HEADERS, 12, 1, b"\xff" + HEADERS), PROTOCOL_ERROR),
    "HEADERS without their padding": (frame(frames.HEADERS, 12, 1), PROTOCOL_ERROR),
    "HEADERS of 2 MB": (frame(frames.HEADERS, 4, 1, bytes(2_000_000)), FRAME_SIZE_ERROR),
    "long HEADERS on stream 0": (frame(frames.HEADERS, 4, 0, bytes(70_000)), PROTOCOL_ERROR),
    "long HEADERS on a stream of the server's": (frame(frames.HEADERS, 4, 2, HEADERS + LONG), PROTOCOL_ERROR),
    "long CONTINUATION without HEADERS": (frame(CONTINUATION, 4, 1, bytes(70_000)), PROTOCOL_ERROR),
    "a long block that is cut": (frame(frames.HEADERS, 4, 1, HEADERS + LONG[:-1]), COMPRESSION_ERROR),
    "a long block with an index that is not there": (
        frame(frames.HEADERS, 4, 1, HEADERS + LONG + b"\xff\x80\x01"),
        COMPRESSION_ERROR,
    ),
    "PING within a long block": (
        frame(frames.HEADERS, 0, 1, HEADERS + LONG) + frame(PING, 0, 0, bytes(8)),
        PROTOCOL_ERROR,
    ),
    "a frame of 16 MB": (b"\xff\xff\xff\0\0\0\0\0\1", FRAME_SIZE_ERROR),
    "an unknown frame of 16 MB": (b"\xff\xff\xff\xbe\0\0\0\0\0", FRAME_SIZE_ERROR),
    "an index that is not there": (frame(frames.HEADERS, 4, 1, b"\xff\x80\x01"), COMPRESSION_ERROR),
    "an index of 0": (frame(frames.HEADERS, 4, 1, b"\x80"), COMPRESSION_ERROR),
    "a number without end": (frame(frames.HEADERS, 4, 1, b"\x7f" + b"\xff" * 1000), COMPRESSION_ERROR),
    "a literal that is cut": (frame(frames.HEADERS, 4, 1, b"\0\x05abc"), COMPRESSION_ERROR),
    "a table larger than allowed": (frame(frames.HEADERS, 4, 1, b"\x3f\xe2\x1f" + HEADERS), COMPRESSION_ERROR),
    "broken trailers": (opened() + frame(frames.HEADERS, 5, 1, b"\x80"), COMPRESSION_ERROR),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_the_connection_ends(wire: Wire, name: str) -> None:
    sent, code = CONNECTION_ERRORS[name]
    wire.send(sent)
    error = wire.error()
    assert error is not None
    assert error[0] == code
    assert error[1]  # it says what was wrong
    assert wire.transport.ended
    assert not wire.connection.streams
    wire.send(headers(99, end=True))  # nothing is read any more
    assert wire.frames() == []
    wire.pass_time(3)
    assert wire.transport.aborted


STREAM_ERRORS = {
    "a window beyond its limit": (opened() + frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE by nothing": (opened() + frame(WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL_ERROR),
    "trailers that do not end it": (opened() + frame(frames.HEADERS, 4, 1, HEADERS), PROTOCOL_ERROR),
    "no path": (frame(frames.HEADERS, 4, 1, block(POST[:2])), PROTOCOL_ERROR),
    "a path twice": (frame(frames.HEADERS, 4, 1, block([*POST, POST[2]])), PROTOCOL_ERROR),
    "a status": (frame(frames.HEADERS, 4, 1, block([(b":status", b"200"), *POST])), PROTOCOL_ERROR),
    "a path behind others": (frame(frames.HEADERS, 4, 1, block([*POST[:2], (b"a", b"b"), POST[2]])), PROTOCOL_ERROR),
    "upper case": (frame(frames.HEADERS, 4, 1, block([*POST, (b"Te", b"trailers")])), PROTOCOL_ERROR),
    "a name of nothing": (frame(frames.HEADERS, 4, 1, block(POST) + literal(b"", b"x")), PROTOCOL_ERROR),
    "a line break": (frame(frames.HEADERS, 4, 1, block([*POST, (b"a", b"b\r\nc: d")])), PROTOCOL_ERROR),
    "connection": (frame(frames.HEADERS, 4, 1, block([*POST, (b"connection", b"close")])), PROTOCOL_ERROR),
    "te": (frame(frames.HEADERS, 4, 1, block([*POST, (b"te", b"gzip")])), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", STREAM_ERRORS)
def test_only_the_stream_ends(wire: Wire, name: str) -> None:
    sent, code = STREAM_ERRORS[name]
    wire.send(sent)
    assert wire.resets() == [(1, code)]
    wire.ask(3, b"x")
    assert "END_STREAM" in wire.frames()[-1].flags


def test_data_behind_the_end(loop: Loop) -> None:
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(SettingsFrame(0, settings={4: 0}))
    wire.ask(1, b"x")  # which waits for a window
    wire.frames()
    wire.send(data(1, b"more"))
    assert wire.resets() == [(1, STREAM_CLOSED)]


def test_more_than_the_windows_allow(loop: Loop) -> None:
    limits = replace(LIMITS, stream_window=1000, connection_window=70_000)
    port = EchoPort(loop, limits=limits)
    port.credits = False
    wire = Wire(port, loop)
    wire.send(headers(1), data(1, bytes(1001)))
    assert wire.resets() == [(1, FLOW_CONTROL_ERROR)]
    wire.send(*[data(1, bytes(10_000))] * 7)  # in one piece, of a stream that is over
    error = wire.error()
    assert error is not None
    assert error[0] == FLOW_CONTROL_ERROR


def test_another_protocol(loop: Loop) -> None:
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE + frame(PING, 0, 0, bytes(8))):
        wire = Wire(EchoPort(loop), loop, greet=False)
        wire.send(sent)
        error = wire.error()
        assert error is not None
        assert error[0] == PROTOCOL_ERROR


# Budgets


def flood(one: Callable[[int], bytes], count: int) -> bytes:
    return b"".join([one(number) for number in range(count)])


def opening(number: int) -> bytes:
    return headers(2 * number + 1).serialize()


NOISE = LIMITS.noise + 10
FLOODS = {
    "rapid reset": flood(lambda n: opening(n) + RstStreamFrame(2 * n + 1).serialize(), LIMITS.resets + 10),
    "streams beyond the limit": flood(opening, LIMITS.streams + LIMITS.resets + 10),
    "streams that are wrong": flood(
        lambda n: opening(n) + frame(WINDOW_UPDATE, 0, 2 * n + 1, bytes(4)), LIMITS.resets + 10
    ),
    "malformed requests": flood(lambda n: frame(frames.HEADERS, 5, 2 * n + 1, b"\x82"), LIMITS.resets + 10),
    "SETTINGS": frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0") * NOISE,
    "empty SETTINGS": frame(SETTINGS, 0, 0) * NOISE,
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)) * NOISE,
    "WINDOW_UPDATE": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * NOISE,
    "an unknown frame": frame(0xBE, 0, 0, b"x") * NOISE,
    "empty DATA": opened() + frame(DATA, 0, 1) * NOISE,
    "empty padded DATA": opened() + frame(DATA, 8, 1, b"\0") * NOISE,
    "DATA for a stream that is over": opened() + RstStreamFrame(1).serialize() + frame(DATA, 0, 1) * NOISE,
    "trailers of a stream that is over": opened() + RstStreamFrame(1).serialize() + opened() * NOISE,
    "RST_STREAM again and again": opened() + RstStreamFrame(1).serialize() * NOISE,
    "CONTINUATION": frame(frames.HEADERS, 0, 1, HEADERS) + frame(CONTINUATION, 0, 1, b"\x82") * 90,
    "empty CONTINUATION": frame(frames.HEADERS, 0, 1, HEADERS) + frame(CONTINUATION, 0, 1) * 90,
    "long CONTINUATION": frame(frames.HEADERS, 0, 1, HEADERS) + frame(CONTINUATION, 0, 1, b"\x82" * 16_000) * 70,
    "CONTINUATION behind a long block": frame(frames.HEADERS, 0, 1, HEADERS + LONG)
    + frame(CONTINUATION, 0, 1, b"\x82") * 90,
}


@pytest.mark.parametrize("name", FLOODS)
def test_too_much(wire: Wire, name: str) -> None:
    wire.send(FLOODS[name])
    error = wire.error()
    assert error is not None
    assert error[0] == ENHANCE_YOUR_CALM


def test_streams_that_end_well_make_up_for_those_that_do_not(wire: Wire) -> None:
    for number in range(3 * LIMITS.resets):
        if number % 2:
            wire.ask(2 * number + 1, b"x")
        else:
            wire.send(headers(2 * number + 1), RstStreamFrame(2 * number + 1))
    assert wire.error() is None


def test_resets_of_streams_that_have_lasted_do_not_count(wire: Wire) -> None:
    """Clients whose deadlines pass reset a thousand calls at a time."""
    for start in (0, 1000, 2000):
        wire.send(*[headers(2 * number + 1) for number in range(start, start + 1000)])
        wire.pass_time(3)
        wire.send(*[RstStreamFrame(2 * number + 1, error_code=8) for number in range(start, start + 1000)])
    assert wire.error() is None


def test_budgets_grow_with_time(wire: Wire) -> None:
    for _ in range(5):
        wire.send(frame(SETTINGS, 0, 0) * (LIMITS.noise - 100))
        wire.pass_time(LIMITS.noise / LIMITS.noise_a_second)
    assert wire.error() is None


def test_the_longest_header_list_is_the_application_s_matter(wire: Wire) -> None:
    fields = [*POST, *[(b"x", b"y" * 1000)] * 30]
    whole = block(fields)
    parts = [whole[at : at + 16_000] for at in range(0, len(whole), 16_000)]
    sent = frame(frames.HEADERS, 1, 1, parts[0])
    sent += b"".join([frame(CONTINUATION, 4 * (part is parts[-1]), 1, part) for part in parts[1:]])
    wire.send(sent)
    assert "END_STREAM" in wire.frames()[-1].flags


def test_acknowledgements_for_a_client_that_does_not_read(loop: Loop) -> None:
    limits = replace(LIMITS, noise=1_000_000)
    wire = Wire(EchoPort(loop, Policies(ping_strikes=0), limits), loop, room=0)
    wire.transport._high = 0
    for _ in range(10):
        wire.send(PingFrame(0, opaque_data=bytes(8)).serialize() * 500)
    assert wire.transport.aborted
    assert len(wire.written()) < 2 * LIMITS.unsent_control


# Pings


def ping(wire: Wire) -> None:
    wire.send(PingFrame(0, opaque_data=bytes(8)))


def test_a_client_that_pings_too_often(wire: Wire) -> None:
    wire.send(headers(1))
    for _ in range(3):
        ping(wire)
    assert wire.error() is None
    ping(wire)
    assert wire.error() == (ENHANCE_YOUR_CALM, b"too_many_pings")


def test_pings_after_data_are_free(wire: Wire) -> None:
    for number in range(20):
        wire.ask(2 * number + 1, b"x")
        ping(wire)
    assert wire.error() is None


def test_pings_at_the_permitted_pace(wire: Wire) -> None:
    wire.send(headers(1))
    for _ in range(10):
        ping(wire)
        assert wire.loop is not None
        wire.loop.now += 301
    assert wire.error() is None


def test_a_client_that_is_silent_is_pinged(loop: Loop) -> None:
    wire = Wire(EchoPort(loop, Policies(keepalive=5, keepalive_timeout=2), replace(LIMITS, silence=1000)), loop)
    wire.pass_time(20)
    assert wire.frames() == []  # there is no call
    wire.send(headers(1))
    wire.pass_time(7)
    (sent,) = wire.frames()
    pong = PingFrame(0, opaque_data=sent.opaque_data)
    pong.flags.add("ACK")
    wire.send(pong)
    wire.pass_time(7)
    assert [type(each) for each in wire.frames()] == [PingFrame]
    wire.pass_time(4)
    assert wire.transport.aborted


# Time


def test_a_client_that_says_nothing(loop: Loop) -> None:
    for sent in (b"", PREFACE[:10], PREFACE):
        wire = Wire(EchoPort(loop), loop, greet=False)
        wire.send(sent)
        wire.pass_time(LIMITS.preface - 2)
        assert not wire.transport.aborted
        wire.pass_time(4)
        assert wire.transport.aborted


def test_an_idle_connection_stays(wire: Wire) -> None:
    wire.pass_time(100_000, 1000)
    assert not wire.transport.closed
    assert wire.frames() == []


def test_a_request_that_does_not_go_on(loop: Loop) -> None:
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(headers(1))
    wire.pass_time(LIMITS.silence + 2)
    assert port.streams[0].log == ["begin", "overdue", "finished"]
    assert not wire.transport.closed


def test_streams_that_wait_for_both_sides(loop: Loop) -> None:
    """A body that has to go on is looked after while a response waits, and once it has been sent."""
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(headers(1))
    (stream,) = port.streams
    stream.send_headers(OK)
    stream.send_data([bytes(100_000)])
    wire.pass_time(LIMITS.silence - 2)
    wire.send(window(0, 100_000), window(1, 100_000))
    assert not stream.pending
    assert "overdue" not in stream.log
    wire.pass_time(4)
    assert "overdue" in stream.log


def test_half_a_frame_is_what_does_not_come_to_its_end(wire: Wire) -> None:
    """A connection on which frames end now and then may always have the beginning of the next."""
    wire.send(frame(0xBE, 0, 0, b"")[:4])
    for _ in range(5):
        wire.pass_time(LIMITS.silence / 2)
        wire.send(frame(0xBE, 0, 0, b"")[4:] + frame(0xBE, 0, 0, b"")[:4])
    assert wire.error() is None
    wire.pass_time(LIMITS.silence + 2)
    error = wire.error()
    assert error is not None
    assert error[0] == PROTOCOL_ERROR


LENGTHS = {
    "as announced": ("4", [b"ab", b"", b"cd"], True),
    "as announced, padded": ("4", [b"ab", b"cd"], True),
    "nothing, as announced": ("0", [b""], True),
    "more": ("3", [b"ab", b"cd"], False),
    "more in one frame": ("3", [b"abcd"], False),
    "less": ("5", [b"ab", b"cd"], False),
    "nothing in place of something": ("5", [b""], False),
    "no number": ("4,4", [b"abcd"], False),
    "a sign": ("+4", [b"abcd"], False),
    "no value": ("", [b"abcd"], False),
    "digits without end": ("4".zfill(20), [b"abcd"], False),
}


@pytest.mark.parametrize("trailers", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_a_content_length_is_that_of_the_data(loop: Loop, name: str, trailers: bool) -> None:
    length, parts, right = LENGTHS[name]
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(headers(1, block([*POST, (b"content-length", length.encode())])))
    for number, part in enumerate(parts):
        sent = data(1, part, end=number == len(parts) - 1 and not trailers)
        if "padded" in name:
            sent.flags.add("PADDED")
            sent.pad_length = 7
        wire.send(sent)
    if trailers:
        wire.send(headers(1, block([(b"a", b"b")]), end=True))
    received = wire.frames()
    resets = [each.error_code for each in received if isinstance(each, RstStreamFrame)]
    if right:
        assert resets == []
        assert "END_STREAM" in received[-1].flags
    else:
        assert resets[:1] == [PROTOCOL_ERROR]
        assert not wire.connection.streams
        assert [each.log[-1] for each in port.streams] in ([], ["lost"])


def test_a_content_length_without_data(loop: Loop) -> None:
    wire = Wire(EchoPort(loop), loop)
    wire.send(headers(1, block([*POST, (b"content-length", b"1")]), end=True))
    assert wire.resets() == [(1, PROTOCOL_ERROR)]
    wire.send(headers(3, block([*POST, (b"content-length", b"1"), (b"content-length", b"1")])))
    assert wire.resets() == [(3, PROTOCOL_ERROR)]


def test_a_window_that_does_not_open(wire: Wire) -> None:
    wire.ask(1, b"x" * 100_000)
    wire.frames()
    wire.pass_time(LIMITS.stall - 10)
    wire.send(window(0, 10), window(1, 10))
    wire.frames()
    wire.pass_time(LIMITS.stall - 10)
    assert wire.resets() == []
    wire.pass_time(20)
    assert wire.resets() == [(1, frames.CANCEL)]


def test_a_client_that_does_not_read(loop: Loop) -> None:
    wire = Wire(EchoPort(loop), loop, room=1000)
    wire.send(SettingsFrame(0, settings={4: 4 << 20}), window(0, 4 << 20))
    wire.send(headers(1), data(1, bytes(1_000_000)), data(1, bytes(1_000_000), end=True))
    wire.pass_time(LIMITS.blockage - 5)
    assert not wire.transport.aborted
    wire.pass_time(10)
    assert wire.transport.aborted


def test_a_connection_that_is_too_old(loop: Loop) -> None:
    wire = Wire(EchoPort(loop, Policies(age=10, grace=5)), loop)
    wire.send(headers(1))
    wire.pass_time(9)
    assert wire.frames() == []
    wire.pass_time(2)
    assert isinstance(wire.frames()[0], GoAwayFrame)
    wire.pass_time(7)
    assert wire.transport.aborted


def test_too_many_streams(wire: Wire) -> None:
    wire.send(*[headers(2 * number + 1) for number in range(LIMITS.streams + 1)])
    assert wire.resets() == [(2 * LIMITS.streams + 1, REFUSED_STREAM)]

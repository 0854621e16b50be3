"""Connections that the server ends: counted by their reason, and said in the log where a client has passed a limit."""

import logging
from collections.abc import Callable

import pytest
from hyperframe.frame import SettingsFrame

from http2_client import Echo, EchoPort, Loop, Wire, data, headers, window
from modserve.core.requests.memory import MemoryBudget
from modserve.frontends.http2 import frames
from modserve.frontends.http2.budgets import Budgets
from modserve.frontends.http2.frames import PING, frame
from modserve.frontends.http2.limits import LIMITS
from modserve.frontends.http2.policies import Policies
from modserve.observability.families import render
from modserve.observability.server_metrics import ServerFigures, server_families


@pytest.fixture
def loop() -> Loop:
    return Loop()


def greeted(port: EchoPort, loop: Loop) -> Wire:
    wire = Wire(port, loop)
    wire.transport.get_extra_info = lambda name, default=None: ("10.0.0.7", 51_234) if name == "peername" else default  # type: ignore[method-assign]
    return wire


def counted(port: EchoPort) -> dict[str, int]:
    return {reason: count for reason, count in port.endings.items() if count}


UPDATES = frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * (LIMITS.updates + 1)
NOISE = frame(frames.PRIORITY, 0, 1, bytes(5)) * (LIMITS.noise + 1)
RESETS = b"".join([frame(frames.HEADERS, 5, 2 * n + 1, b"\x82") for n in range(LIMITS.resets + 1)])
PINGS = headers(1).serialize() + frame(PING, 0, 0, bytes(8)) * 4
BLOCK = frame(frames.HEADERS, 0, 1, b"\x82") + frame(frames.CONTINUATION, 0, 1, b"\x82") * (LIMITS.continuations + 1)

LIMITED = {
    "window_updates": (UPDATES, "too many WINDOW_UPDATE frames for what was sent", "2000 to begin with"),
    "noise": (NOISE, "too many frames that do nothing", "2000 to begin with"),
    "resets": (RESETS, "too many streams that end early", "1000 to begin with"),
    "pings": (PINGS, "too_many_pings", "--grpc-http2-max-ping-strikes"),
    "header_block": (BLOCK, "a header block is too long", "1048576 bytes"),
}


@pytest.mark.parametrize("reason", LIMITED)
def test_whoever_passes_a_limit_is_named_in_the_log(loop: Loop, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    sent, text, limit = LIMITED[reason]
    port = EchoPort(loop)
    wire = greeted(port, loop)
    wire.send(sent)
    assert wire.error() == (frames.ENHANCE_YOUR_CALM, text.encode())
    assert counted(port) == {reason: 1}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    said = record.getMessage()
    assert said.startswith(f"the gRPC connection of 10.0.0.7:51234 is ended: {text} (limit '{reason}': ")
    assert limit in said


def test_many_that_pass_a_limit_are_one_line_now_and_then(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    port = EchoPort(loop)
    for _ in range(5):
        greeted(port, loop).send(NOISE)
    assert len(caplog.records) == 1
    loop.now += 11
    greeted(port, loop).send(UPDATES)
    assert counted(port) == {"noise": 5, "window_updates": 1}
    assert [each.getMessage().partition("; 4 more")[1] for each in caplog.records] == ["", "; 4 more"]


def silent(wire: Wire) -> None:
    wire.pass_time(LIMITS.preface + 2)


def unread(wire: Wire) -> None:
    wire.connection.pause_writing()
    wire.pass_time(LIMITS.blockage + 2)


def half(wire: Wire) -> None:
    wire.send(b"\0\0")
    wire.pass_time(LIMITS.silence + 2)


def gone(wire: Wire) -> None:
    wire.send(headers(1))
    wire.pass_time(10)


IMPATIENT = Policies(keepalive=5, keepalive_timeout=2)
OTHERS: dict[str, tuple[bool, Callable[[Wire], None]]] = {
    "protocol": (True, lambda wire: wire.send(frame(PING, 0, 1, bytes(8)))),
    "no_settings": (False, silent),
    "unread": (True, unread),
    "unfinished": (True, half),
    "keepalive": (True, gone),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_other_ends_are_counted(loop: Loop, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    greet, end = OTHERS[reason]
    port = EchoPort(loop, IMPATIENT if reason == "keepalive" else None)
    wire = Wire(port, loop, greet=greet)
    end(wire)
    assert counted(port) == {reason: 1}
    assert not caplog.records


def test_ends_that_the_client_makes_are_not_counted(loop: Loop) -> None:
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.ask(1, b"x")
    wire.connection.eof_received()
    wire.connection.connection_lost(None)
    assert counted(port) == {}


def test_the_metrics() -> None:
    figures = ServerFigures("1", True, (), {}, {}, MemoryBudget(), endings={"noise": 3, "protocol": 1})
    lines = render([lambda: server_families(figures)]).decode().splitlines()
    assert 'modserve_grpc_connections_ended_total{reason="noise"} 3.0' in lines
    assert 'modserve_grpc_connections_ended_total{reason="protocol"} 1.0' in lines


def test_a_budget_is_filled_by_time_and_not_emptied() -> None:
    budgets = Budgets(LIMITS)
    assert (LIMITS.updates, LIMITS.updates_a_second) == (2_000, 200)
    after = []
    for left in (0, 1_900, 2_000, 9_000):
        budgets.updates = left
        budgets.pass_time(1.0)
        after.append(budgets.updates)
    assert after == [200, 2_000, 2_000, 9_000]


# Budgets of healthy clients


@pytest.mark.parametrize("updates", [2, 3, 4])
def test_each_response_earns_the_updates_that_answer_it(loop: Loop, updates: int) -> None:
    """3,000 short responses on a stream, each of which the client acknowledges by as many frames."""
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(headers(1))
    (stream,) = port.streams
    for _ in range(3_000):
        stream.send_data([bytes(405)])
        loop.run()
        wire.send(*[window(1, 5)] * (updates - 2), window(1, 400), window(0, 405))
    assert wire.error() is None


def test_updates_may_come_long_after_what_they_answer(loop: Loop) -> None:
    """A burst is sent before the first of its responses is read, and they share frames of data."""
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(SettingsFrame(0, settings={4: 1 << 24}), window(0, 1 << 24), headers(1))
    (stream,) = port.streams
    stream.send_data([bytes(405)] * 3_000)
    loop.run()
    wire.send(*[window(1, 5), window(1, 400), window(0, 405)] * 3_000)
    assert wire.error() is None


def test_a_client_that_opens_its_window_for_each_response(loop: Loop) -> None:
    """It has room for none ahead: five bytes for the prefix, and then for the rest."""
    port = EchoPort(loop)
    wire = Wire(port, loop)
    wire.send(SettingsFrame(0, settings={4: 0}), headers(1))
    (stream,) = port.streams
    stream.send_data([bytes(405)] * 3_000)
    for _ in range(3_000):
        wire.send(window(1, 5), window(1, 400), window(0, 405))
    assert wire.error() is None
    assert not stream.pending


def test_a_part_without_bytes_waits_for_no_window(loop: Loop) -> None:
    """A response ends whose last part is empty, though its stream has no window left."""
    wire = Wire(EchoPort(loop), loop)
    wire.send(SettingsFrame(0, settings={4: 0}), headers(1))
    (stream,) = wire.port.streams  # type: ignore[attr-defined]
    stream.send_data([b"12345", b""])
    stream.finish(b"\x88")
    wire.send(window(1, 5))
    assert [each.stream_id for each in wire.frames() if "END_STREAM" in each.flags] == [1]


# What goes wrong in the server


class Breaking(Echo):
    def begin(self) -> None:
        raise ValueError("unforeseen")


class BreakingPort(EchoPort):
    """Every second stream cannot be begun."""

    def open(self, connection: object, number: int, *rest: object) -> Echo:
        kind = Breaking if number % 4 == 1 else Echo
        return kind(self, connection, number, *rest)  # type: ignore[arg-type]


def test_a_stream_that_cannot_be_begun_ends_alone(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    port = BreakingPort(loop)
    wire = Wire(port, loop)
    wire.send(*[each for n in (1, 3, 5, 7) for each in (headers(n), data(n, b"x", end=True))])
    received = wire.frames()
    assert [each.stream_id for each in received if each.type == frames.RST_STREAM] == [1, 5]
    assert [each.error_code for each in received if each.type == frames.RST_STREAM] == [frames.INTERNAL_ERROR] * 2
    assert [each.stream_id for each in received if "END_STREAM" in each.flags] == [3, 7]
    assert [each.log[-1] for each in port.streams] == ["finished"] * 4
    assert not wire.connection.streams
    assert "starting it failed unexpectedly" in caplog.text
    wire.ask(11, b"y")
    assert "END_STREAM" in wire.frames()[-1].flags


def test_a_connection_that_cannot_be_written_to_ends_alone(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    port = EchoPort(loop)
    broken, other = Wire(port, loop), Wire(port, loop)
    for wire in (broken, other):
        wire.send(headers(1))
    first, second = port.streams
    broken.transport.write = broken.transport.writelines = lambda _: 1 // 0  # type: ignore[method-assign,assignment]
    first.send_data([b"x"])
    second.send_data([b"y"])
    loop.run()
    assert broken.transport.aborted
    assert counted(port) == {"internal": 1}
    assert "could not be written to" in caplog.text
    assert other.frames()[-1].data == b"y"


def test_a_connection_that_has_failed_is_left_alone(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be sent behind the end of the stream; and whatever is wrong with one, time passes for all others."""
    port = EchoPort(loop)
    failed, other = greeted(port, loop), greeted(port, loop)
    failed.send(b"\0\0")  # the beginning of a frame
    other.connection.budgets.noise = 0
    for seconds in (1, LIMITS.silence + 1, 0.5, 0.5, 0.5):
        loop.now += seconds
        port.tick()
    failed.connection.go_away()
    loop.run()
    assert counted(port) == {"unfinished": 1}
    assert other.connection.budgets.noise == LIMITS.noise
    assert [record for record in caplog.records if record.exc_info] == []

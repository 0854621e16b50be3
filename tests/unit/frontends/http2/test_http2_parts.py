"""What a connection is made of, each part alone: windows, budgets, keepalive, and frames on their way out."""

from collections import deque

import pytest
from hyperframe.frame import Frame

from modserve.frontends.http2 import frames
from modserve.frontends.http2.budgets import Budgets
from modserve.frontends.http2.frame_writer import FrameWriter, join_short
from modserve.frontends.http2.frames import DEFAULT_WINDOW, LARGEST_WINDOW, Http2Error
from modserve.frontends.http2.keepalive import Keepalive
from modserve.frontends.http2.limits import LIMITS, NOISE_OF_DATA, NOISE_OF_STREAM, UPDATES_OF_DATA, UPDATES_OF_STREAM
from modserve.frontends.http2.policies import Policies
from modserve.frontends.http2.stream import Chunk
from modserve.frontends.http2.windows import Windows

# Windows


def test_what_is_sent_and_opened() -> None:
    windows = Windows(1_000)
    windows.count_sent(65_000)
    windows.widen(10)
    assert windows.left == DEFAULT_WINDOW - 65_000 + 10


@pytest.mark.parametrize(("size", "code"), [(0, frames.PROTOCOL_ERROR), (LARGEST_WINDOW, frames.FLOW_CONTROL_ERROR)])
def test_windows_grow_by_something_and_not_too_far(size: int, code: int) -> None:
    with pytest.raises(Http2Error) as raised:
        Windows(1_000).widen(size)
    assert raised.value.code == code


def test_what_came_is_acknowledged_when_it_is_enough() -> None:
    windows = Windows(1_000)
    windows.count_received(499)
    assert windows.unacknowledged < windows.enough
    windows.count_received(501)
    assert windows.acknowledge() == 1_000
    assert windows.unacknowledged == 0
    windows.count_received(1_000)
    with pytest.raises(Http2Error) as raised:
        windows.count_received(1)
    assert raised.value.code == frames.FLOW_CONTROL_ERROR


def test_the_window_of_new_streams() -> None:
    windows = Windows(1_000)
    assert windows.change_initial(70_000) == 70_000 - DEFAULT_WINDOW
    assert windows.change_initial(5) == 5 - 70_000
    assert windows.initial == 5


# Budgets


def left(budgets: Budgets) -> tuple[int, int, int]:
    return budgets.updates - LIMITS.updates, budgets.noise - LIMITS.noise, budgets.resets - LIMITS.resets


def test_each_budget_is_spent_alone() -> None:
    budgets = Budgets(LIMITS)
    budgets.spend_update()
    budgets.spend_noise(3)
    budgets.spend_reset()
    assert left(budgets) == (-1, -3, -1)


def test_what_is_served_earns() -> None:
    budgets = Budgets(LIMITS)
    budgets.spend_noise(100)
    budgets.spend_reset()
    budgets.stream_ended()
    assert left(budgets) == (UPDATES_OF_STREAM, NOISE_OF_STREAM - 100, 0)
    budgets.data_sent(frames=2, messages=3)
    assert left(budgets) == (UPDATES_OF_STREAM + 3 * UPDATES_OF_DATA, NOISE_OF_STREAM + 2 * NOISE_OF_DATA - 100, 0)
    for _ in range(100):
        budgets.stream_ended()
        budgets.data_sent(1, 0)
    assert left(budgets)[1:] == (0, 0)  # no more than it began with


@pytest.mark.parametrize(
    ("name", "count", "reason"),
    [
        ("spend_update", LIMITS.updates, "window_updates"),
        ("spend_noise", LIMITS.noise, "noise"),
        ("spend_reset", LIMITS.resets, "resets"),
    ],
)
def test_whoever_spends_more_than_all(name: str, count: int, reason: str) -> None:
    spend = getattr(Budgets(LIMITS), name)
    for _ in range(count):
        spend()
    with pytest.raises(Http2Error) as raised:
        spend()
    assert (raised.value.code, raised.value.ending.reason) == (frames.ENHANCE_YOUR_CALM, reason)


# Keepalive

POLICIES = Policies(keepalive=10, keepalive_timeout=5, pings_without_data=2, ping_interval=300, ping_strikes=2)


def test_a_silent_client_is_pinged_and_given_up() -> None:
    keepalive = Keepalive(POLICIES, 100.0)
    assert not keepalive.begin_ping(110.0, 0, idle=False)
    assert not keepalive.begin_ping(111.0, 0, idle=True)
    assert keepalive.begin_ping(111.0, 0, idle=False)
    assert not keepalive.begin_ping(112.0, 0, idle=False)  # one at a time
    assert not keepalive.is_dead(116.0)
    assert keepalive.is_dead(117.0)


def test_few_pings_without_data_in_between() -> None:
    keepalive = Keepalive(POLICIES, 0.0)
    pinged = []
    for turn, sent in enumerate((0, 0, 0, 1, 1)):
        now = 100.0 * (turn + 1)
        pinged.append(keepalive.begin_ping(now, sent, idle=False))
        keepalive.on_data(now + 1)
    assert pinged == [True, True, False, True, True]


def test_strikes_end_with_data() -> None:
    keepalive = Keepalive(POLICIES, 0.0)
    for now, sent in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)):
        keepalive.on_ping(now, sent, idle=False)
    with pytest.raises(Http2Error) as raised:
        keepalive.on_ping(7, 1, idle=False)
    assert raised.value.ending.reason == "pings"


# Frames on their way out


def written(writer: FrameWriter) -> list[tuple[str, int, bytes, set[str]]]:
    data, found = memoryview(b"".join(writer.take())), []
    while data:
        frame, length = Frame.parse_frame_header(data[:9])
        frame.parse_body(data[9 : 9 + length])
        found.append((type(frame).__name__, frame.stream_id, bytes(getattr(frame, "data", b"")), set(frame.flags)))
        data = data[9 + length :]
    return found


def test_a_long_header_block_takes_several_frames() -> None:
    writer = FrameWriter()
    writer.add_headers(5, bytes(40_000), last=True)
    parts = written(writer)
    assert [(name, len(block), flags) for name, _, block, flags in parts] == [
        ("HeadersFrame", 16_384, {"END_STREAM"}),
        ("ContinuationFrame", 16_384, set()),
        ("ContinuationFrame", 40_000 - 2 * 16_384, {"END_HEADERS"}),
    ]


def test_a_smaller_table_is_announced_once() -> None:
    writer = FrameWriter()
    writer.announce_table()
    for _ in range(2):
        writer.add_headers(1, b"\x88", last=False)
    assert [block for _, _, block, _ in written(writer)] == [b"\x20\x88", b"\x88"]


def test_a_whole_response() -> None:
    writer = FrameWriter()
    writer.add_response(3, b"\x88", b"12", [b"345", bytearray(b"6")], 6, b"\x89")
    assert written(writer) == [
        ("HeadersFrame", 3, b"\x88", {"END_HEADERS"}),
        ("DataFrame", 3, b"123456", set()),
        ("HeadersFrame", 3, b"\x89", {"END_HEADERS", "END_STREAM"}),
    ]
    assert writer.take() == []


def test_going_away_names_the_last_stream_and_the_reason() -> None:
    data = frames.going_away(5, 11, b"calm")
    frame, length = Frame.parse_frame_header(memoryview(data)[:9], strict=True)
    assert (type(frame).__name__, frame.stream_id, data[4], length) == ("GoAwayFrame", 0, 0, len(data) - 9)
    assert data[9:] == b"\0\0\0\5\0\0\0\x0bcalm"


@pytest.mark.parametrize("most", [1, 5, 16_384, 16_385, 50_000])
def test_bodies_in_frames(most: int) -> None:
    chunks: list[Chunk] = [b"ab", bytes(40_000), b"c" * 3, b"d" * 20_000]
    writer, pending, sent = FrameWriter(), deque(chunks), 0
    while pending:
        size = writer.add_data(1, pending, most)
        assert 0 < size <= most
        sent += size
    assert sent == 60_005
    bodies = [body for _, _, body, _ in written(writer)]
    assert max(map(len, bodies)) <= 16_384
    assert b"".join(bodies) == b"".join(chunks)


def test_short_parts_are_gathered() -> None:
    long = bytes(2_000)
    assert join_short([b"a", b"b", long, b"c", memoryview(b"d")]) == [b"ab", long, b"cd"]

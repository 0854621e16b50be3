"""Peers that break the rules, and ends at bad moments, where no process is needed to see what comes of them."""

import os

import pytest

from modserve.backends.python.worker import arena, failure, wire
from modserve.backends.python.worker.wire import MessageKind, RecordReader


def read(data: bytes) -> list[wire.Frame]:
    reader = RecordReader()
    reader.room()[: len(data)] = data
    return reader.take_in(len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        bytes(16),
        wire.HEADER.pack(0, 99, 0, 0),
        wire.HEADER.pack(1 << 62, MessageKind.EXECUTED, 1, 0),
        wire.HEADER.pack((1 << 64) - 1, MessageKind.RESPOND, 1, 0),
    ],
    ids=["text", "zeros", "unknown kind", "endless", "endless and negative"],
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(ValueError, match="a frame has one of the known kinds"):
        read(data)


def test_good_frames_before_a_bad_one_are_lost_with_it() -> None:
    good = wire.text_frame(MessageKind.LOG, "hello", 2)
    assert [frame[:2] for frame in read(good + good)] == [(MessageKind.LOG, 0)] * 2
    with pytest.raises(ValueError, match="a frame has"):
        read(good + b"\xff" * 16)


def test_an_arena_that_has_closed_touches_no_other_file() -> None:
    memory = arena.new_file("in")
    mine = arena.Arena(memory, wire.SERVERS)
    location, array = mine.allocate(100_000)
    array[:] = 7
    held = mine.hold(location)
    mine.close()
    mine.close()
    other = arena.new_file("other")
    try:
        assert other == memory  # the number is used again
        with pytest.raises(OSError, match="Bad file descriptor"):
            mine.allocate(1 << 20)
        assert os.fstat(other).st_size == 0
        assert held[-1] == 7  # what somebody reads stays
        with pytest.raises(ValueError, match="in use"):
            mine.hold(location)
    finally:
        os.close(other)


def test_the_middle_of_a_long_traceback_is_left_out() -> None:
    try:
        raise ValueError("long " * 100_000)
    except ValueError as error:
        text = failure.format_traceback(error)
        told = failure.of_exception(error, "")
    assert text.startswith("Traceback (most recent call last):")
    assert "\n…\n" in text
    assert len(text) < 40_000
    assert len(told.message) < 5000

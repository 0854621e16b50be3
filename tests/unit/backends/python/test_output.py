"""What a worker writes, without a worker: a pipe, and what comes of it in the log and in messages."""

import asyncio
import logging
import os
from collections.abc import Iterator

import pytest

from modserve.backends.python.output import Output


@pytest.fixture
def output() -> Iterator[Output]:
    loop = asyncio.new_event_loop()
    made = Output(loop, "model 'm'")
    yield made
    made.close()
    loop.close()


def write(output: Output, *parts: bytes) -> None:
    for part in parts:
        os.write(output.written, part)
    os.close(output.written)


def test_lines_reach_the_log_whole(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(output, b"one\ntw", b"o\n\n  \nno end")
    assert output.read()
    assert [record.getMessage() for record in caplog.records] == ["model 'm': one", "model 'm': two"]
    assert not output.read()
    output.rest()
    assert caplog.records[-1].getMessage() == "model 'm': no end"
    assert output.tail == "\n  one\n  two\n  no end"


def test_little_is_taken_at_a_time(output: Output) -> None:
    write(output, b"x\n" * 10_000)
    assert output.read()
    assert output.tail.count("x") == 20
    rest = os.read(output.fileno(), 1 << 20)
    assert len(rest) > 15_000  # a line costs the event loop's thread as much as a request


def test_the_tail_fits_into_a_message(output: Output) -> None:
    write(output, b"".join([b"%d " % number + b"x" * 600 + b"\n" for number in range(40)]))
    output.rest()
    lines = output.tail.split("\n")[1:]
    assert len(output.tail) < 5000
    assert [line.split()[0] for line in lines] == [str(number) for number in range(40 - len(lines), 40)]
    assert all(line.endswith("x…") for line in lines)


def test_what_is_no_text_and_has_no_end(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(output, b"\xff\xfe\n", b"y" * 20_000)
    output.rest()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "model 'm': \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    assert "".join(messages[1:]).count("y") == 20_000
    assert max(map(len, messages)) < 12_000


def test_after_its_end(output: Output) -> None:
    write(output, b"last")
    output.close()
    output.close()
    assert not output.read()
    output.rest()
    assert output.tail == ""

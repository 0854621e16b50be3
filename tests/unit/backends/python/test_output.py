"""What a worker writes, without a worker: a pipe, and what comes of it in the log and in messages."""

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from modserve.backends.python.output import WorkerOutput


class Written(NamedTuple):
    output: WorkerOutput
    end: int

    def __call__(self, *parts: bytes) -> WorkerOutput:
        """All that is ever written."""
        for part in parts:
            os.write(self.end, part)
        os.close(self.end)
        return self.output


@pytest.fixture
def written() -> Iterator[Written]:
    reading, writing = os.pipe()
    output = WorkerOutput(reading, "model 'm'")
    yield Written(output, writing)
    output.close()


def test_lines_reach_the_log_whole(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    output = written(b"one\ntw", b"o\n\n  \nno end")
    assert output.read()
    assert [record.getMessage() for record in caplog.records] == ["model 'm': one", "model 'm': two"]
    assert not output.read()
    output.read_rest()
    assert caplog.records[-1].getMessage() == "model 'm': no end"
    assert output.last() == "; its last output:\n  one\n  two\n  no end"


def test_little_is_taken_at_a_time(written: Written) -> None:
    output = written(b"x\n" * 10_000)
    assert output.read()
    assert output.last().count("x") == 20
    rest = os.read(output.fd, 1 << 20)
    assert len(rest) > 15_000  # a line costs the event loop's thread as much as a request


def test_the_tail_fits_into_a_message(written: Written) -> None:
    output = written(b"".join([b"%d " % number + b"x" * 600 + b"\n" for number in range(40)]))
    output.read_rest()
    lines = output.last().split("\n")[1:]
    assert len(output.last()) < 5000
    assert [line.split()[0] for line in lines] == [str(number) for number in range(40 - len(lines), 40)]
    assert all(line.endswith("x…") for line in lines)


def test_what_is_no_text_and_has_no_end(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    output = written(b"\xff\xfe\n", b"y" * 20_000)
    output.read_rest()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "model 'm': \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    assert "".join(messages[1:]).count("y") == 20_000
    assert max(map(len, messages)) < 12_000


def test_after_its_end(written: Written) -> None:
    output = written(b"last")
    output.close()
    output.close()
    assert not output.read()
    output.read_rest()
    assert output.last() == ""

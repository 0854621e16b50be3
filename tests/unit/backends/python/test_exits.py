"""How the end of a worker process is waited for, and told."""

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from modserve.backends.python import exits


@pytest.fixture(params=[True, False], ids=["by file descriptor", "by looking"])
def child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """Ends when its standard input closes."""
    if not request.param:
        monkeypatch.setattr(exits, "file_of", lambda pid: -1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_child_that_lives(child: "subprocess.Popen[bytes]") -> None:
    assert not exits.wait(child, time.monotonic())


def test_a_child_that_ends(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdin is not None
    child.stdin.close()
    assert exits.wait(child, time.monotonic() + 30)
    assert child.returncode is None  # it is not reaped
    assert child.wait() == 0
    assert exits.wait(child, time.monotonic())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exited with status 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
    ],
)
def test_what_a_status_means(code: int, text: str) -> None:
    assert exits.describe(code) == text

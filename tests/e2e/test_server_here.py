"""Servers in the tests' own process: they are as strict as those of a process, and leave nothing behind."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from repositories import EXAMPLES, write_identity
from server_here import ServerHere, serving_here, started_here
from wire import assert_serving


def state() -> tuple[object, ...]:
    """State that a process has once."""
    loggers = [logging.getLogger(name) for name in ("", "modserve")]
    return (
        [(each.handlers[:], each.level) for each in loggers],
        dict(os.environ),
        sys.path[:],
        (sys.stdout, sys.stderr, threading.excepthook),
        [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
    )


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODSERVE_HTTP_PORT", "nonsense")
    before = state()
    with serving_here(EXAMPLES, environment={"MARK": "x", "PYTHONPATH": str(tmp_path)}) as server:
        assert_serving(server)
        assert (os.environ["MARK"], sys.path[0]) == ("x", str(tmp_path))
    assert state() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "server"]


def test_an_unexpected_error_in_the_log_fails_the_test(tmp_path: Path) -> None:
    write_identity(tmp_path, "broken")
    (tmp_path / "broken" / "config.pbtxt").write_text("nonsense")
    with pytest.raises(AssertionError, match=r"unexpected in the log: .*model 'broken'"), serving_here(tmp_path):
        pass
    errors = ["model 'broken'", "another"]
    expected = pytest.raises(AssertionError, match=r"expected among the errors: .*'another'")
    with expected, serving_here(tmp_path, errors=errors):
        pass


def test_a_server_that_does_not_start_has_its_exit_code(tmp_path: Path) -> None:
    for options, code in ((["--nosuch=1"], 2), ([f"--model-repository={tmp_path / 'absent'}"], 1)):
        with started_here(options=options) as server:
            server.wait(code, errors=["absent"] * (code == 1))
    with pytest.raises(AssertionError, match="exit code 2, expected 0"), started_here(options=["--nosuch=1"]) as server:
        server.wait(0)


def test_of_two_servers_the_last_one_has_the_errors(tmp_path: Path) -> None:
    write_identity(tmp_path, "broken")
    (tmp_path / "broken" / "config.pbtxt").write_text("nonsense")
    with serving_here(EXAMPLES) as first:
        with serving_here(tmp_path, errors=["model 'broken'"]) as second:
            assert first.http_port != second.http_port
            assert_serving(first)
        assert "model 'broken' cannot be loaded" in first.log
        assert_serving(first)


def test_a_server_of_several_processes_is_refused() -> None:
    """The command would become its supervisor, in place of the tests."""
    with pytest.raises(AssertionError, match="of a process"):
        ServerHere([EXAMPLES], ["--workers=2"])

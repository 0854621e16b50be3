"""The process's log: what is written, in which form, and that changes act at once."""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modserve.core.log_settings import LogFormat, LogSettings
from modserve.observability.logging import Logs

_log = logging.getLogger("modserve.test_logs")
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, "INFO WARNING ERROR CRITICAL"),
        ({"verbose_level": 3}, "DEBUG INFO WARNING ERROR CRITICAL"),
        ({"info": False, "verbose_level": 1}, "DEBUG WARNING ERROR CRITICAL"),
        ({"warning": False}, "INFO ERROR CRITICAL"),
        ({"error": False}, "INFO WARNING"),
    ],
    ids=str,
)
def test_a_change_acts_at_once_and_can_be_taken_back(
    capsys: pytest.CaptureFixture[str], changes: dict[str, object], levels: str
) -> None:
    logs = Logs()
    logs.install()
    for settings, expected in (
        (replace(LogSettings(), **changes), levels),  # type: ignore[arg-type]
        (LogSettings(), "INFO WARNING ERROR CRITICAL"),
    ):
        logs.change(settings)
        assert logs.settings == settings
        for level in LEVELS:
            _log.log(level, "text")
        assert [line.split()[1] for line in written(capsys).splitlines()] == expected.split()


def test_iso8601(capsys: pytest.CaptureFixture[str]) -> None:
    Logs().install()
    _log.warning("all %s", "well")
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} WARNING modserve\.test_logs: all well\n", written(capsys))


@pytest.mark.parametrize(
    ("level", "letter"), list(zip(LEVELS, "IIWEE", strict=True)), ids=[logging.getLevelName(level) for level in LEVELS]
)
def test_triton_s_default(capsys: pytest.CaptureFixture[str], level: int, letter: str) -> None:
    logs = Logs(LogSettings(verbose_level=1, format=LogFormat.DEFAULT))
    logs.install()
    _log.log(level, 'a "%s"\n√', "b")
    line = written(capsys)
    time = r"\d{4} \d\d:\d\d:\d\d\.\d{6}"
    found = re.fullmatch(rf"{letter}{time} {os.getpid()} test_logs\.py:\d+\] (\".*\")\n", line)
    assert found, line
    assert found[1] == r'"a \"b\"\n√"'


@pytest.mark.parametrize("form", LogFormat, ids=lambda form: form.value)
def test_a_traceback(capsys: pytest.CaptureFixture[str], form: LogFormat) -> None:
    Logs(LogSettings(format=form)).install()
    try:
        raise ValueError("oops")
    except ValueError:
        _log.exception("failed")
    text = written(capsys)
    if form is LogFormat.DEFAULT:
        assert text.count("\n") == 1
        text = json.loads(text.partition("] ")[2])
    assert "failed\nTraceback" in text
    assert text.rstrip("\n").endswith("\nValueError: oops")


def test_nothing_is_touched_before_it_is_installed() -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    Logs().change(LogSettings(verbose_level=1))
    assert (root.handlers, root.level) == before


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    file = tmp_path / "log"
    Logs(LogSettings(file=str(file))).install()
    _log.info("before")
    file.rename(tmp_path / "log.1")
    _log.info("after")
    assert "before" in (tmp_path / "log.1").read_text()
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["after"]
    logging.getLogger().handlers[0].close()

"""The process's log: what is written, in which form, and that changes act at once."""

import json
import logging
import logging.handlers
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kept_logging import flush_logs, untouched_logging
from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.observability.logging import Logs
from modserve.workers.identity import WorkerIdentity

pytestmark = pytest.mark.usefixtures(untouched_logging.__name__)

_log = logging.getLogger("modserve.test_logs")
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def written(capsys: pytest.CaptureFixture[str]) -> str:
    flush_logs()
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


@pytest.mark.parametrize("verbose", [0, 1, 9])
def test_other_packages_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str], verbose: int) -> None:
    """hpack logs every header of every call, secrets included, and asyncio every connection."""
    logs = Logs()
    logs.install()
    logs.change(LogSettings(verbose_level=verbose))
    for name in ("hpack.hpack", "asyncio", "grpc", "a_model"):
        foreign = logging.getLogger(name)
        for level in LEVELS:
            foreign.log(level, "text")
        assert [line.split()[1] for line in written(capsys).splitlines()] == ["WARNING", "ERROR", "CRITICAL"]
        assert not foreign.isEnabledFor(logging.INFO)  # nothing is made of what nobody reads


def test_another_package_may_say_more(capsys: pytest.CaptureFixture[str]) -> None:
    Logs().install()
    foreign = logging.getLogger("a_talkative_model")
    foreign.setLevel(logging.INFO)
    foreign.info("text")
    assert written(capsys).endswith("INFO    a_talkative_model: text\n")


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
    assert text.count("\n") == 1
    if form is LogFormat.DEFAULT:
        text = json.loads(text.partition("] ")[2])
    elif form is LogFormat.JSON:
        record = json.loads(text)
        text = f"{record['message']}\n{record['traceback']}"
    else:
        text = text.replace("\\n", "\n")
    assert "failed\nTraceback" in text
    assert text.rstrip("\n").endswith("\nValueError: oops")


def test_a_traceback_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    Logs(LogSettings(multiline="true")).install()
    try:
        raise ValueError("oops\n2026-11-22T22:13:14.834Z ERROR forged")
    except ValueError:
        _log.exception("failed")
    first, *others = written(capsys).splitlines()
    assert first.endswith(" ERROR   modserve.test_logs: failed")
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-1] == "    2026-11-22T22:13:14.834Z ERROR forged"
    assert all(line.startswith("    ") for line in others)


@pytest.mark.parametrize("form", LogFormat, ids=lambda form: form.value)
def test_a_foreign_text_neither_ends_a_line_nor_colours_the_terminal(
    capsys: pytest.CaptureFixture[str], form: LogFormat
) -> None:
    Logs(LogSettings(format=form)).install()
    _log.info("%s", "\x1b[1;31mred\x1b[0m\r\n\u2028\x85\x1b[2J√")
    line = written(capsys)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert "red" in line
    assert "31m" not in line
    if form is LogFormat.ISO8601:
        assert line.endswith(": red\\r\\n\\u2028\\x85\\x1b[2J√\n")
        return
    text = json.loads(line)["message"] if form is LogFormat.JSON else json.loads(line.partition("] ")[2])
    assert text == "red\r\n\u2028\x85\x1b[2J√"


def test_json_has_what_a_request_was_about(capsys: pytest.CaptureFixture[str]) -> None:
    logs = Logs(LogSettings(format=LogFormat.JSON))
    logs.install()
    _log.warning("a %s", "b", extra={"fields": {"model": "m", "request_id": "x", "id": "", "level": "forged"}})
    record = json.loads(written(capsys))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record.pop("time"))
    assert record.pop("process") == os.getpid()
    assert record.pop("place").startswith("test_logs.py:")
    assert record == {
        "level": "WARNING",
        "logger": "modserve.test_logs",
        "message": "a b",
        "model": "m",
        "request_id": "x",
    }


def test_a_worker_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Logs(LogSettings(format=LogFormat.JSON)).install()
    logging.getLogger().handlers[0].addFilter(WorkerIdentity(3, 4, 0, tmp_path).name_in_log)
    _log.info("text")
    record = json.loads(written(capsys))
    assert (record["worker"], record["logger"]) == (3, "modserve.test_logs")


def test_a_file_is_opened_anew_when_that_is_called_for(tmp_path: Path) -> None:
    file = tmp_path / "log"
    logs = Logs(LogSettings(file=str(file)))
    logs.install()
    _log.info("before")
    before = os.stat(file).st_ino
    flush_logs()
    os.rename(file, tmp_path / "log.1")
    logs.reopen()
    flush_logs()
    assert os.stat(file).st_ino != before
    assert "SIGHUP: the log file was opened anew" in file.read_text()
    logs.write("whole\n")
    assert file.read_text().endswith("\nwhole\n")
    logging.getLogger().handlers[0].close()


def test_a_file_that_cannot_be_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "log"
    logs = Logs(LogSettings(file=str(file)))
    logs.install()
    os.rename(tmp_path / "logs", tmp_path / "old")
    monkeypatch.setattr(logging.handlers.WatchedFileHandler, "reopenIfNeeded", lambda self: None)
    logs.reopen()
    flush_logs()
    assert "cannot be opened anew" in (tmp_path / "old" / "log").read_text()
    logging.getLogger().handlers[0].close()


def test_standard_error_has_nothing_to_open_anew(capsys: pytest.CaptureFixture[str]) -> None:
    logs = Logs()
    logs.install()
    logs.reopen()
    assert "no file to open anew" in written(capsys)


def test_nothing_is_touched_before_it_is_installed() -> None:
    root, ours = logging.getLogger(), logging.getLogger("modserve")
    before = root.handlers[:], root.level, ours.level
    Logs().change(LogSettings(verbose_level=1))
    assert (root.handlers, root.level, ours.level) == before


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    file = tmp_path / "log"
    Logs(LogSettings(file=str(file))).install()
    _log.info("before")
    flush_logs()
    file.rename(tmp_path / "log.1")
    _log.info("after")
    flush_logs()
    assert "before" in (tmp_path / "log.1").read_text()
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["after"]
    logging.getLogger().handlers[0].close()


def test_a_full_disk_is_one_line_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "log").symlink_to("/dev/full")
    logs = Logs(LogSettings(file=str(file)))
    logs.install()
    for _ in range(3):
        _log.info("lost")
        flush_logs()
    text = "the log file cannot be written, and lines are left out until it can: [Errno 28] No space left on device"
    assert written(capsys) == f"modserve: {text}\n"
    assert logs.dropped == 3
    logging.getLogger().handlers[0].close()


def test_a_reader_that_stops_reading_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that the pipe and the queue have no room for are left out, counted, and reported once it flows again."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        logs = Logs()
        logs.install()
        for number in range(1000):
            _log.info("%d %s", number, "x" * 50_000)
        logs.say("nobody waits for this")
        assert logs.dropped > 0
        text = b""
        while b"log lines were left out: they came faster" not in text:
            text = text[-200:] + os.read(reader, 1_000_000)
            _log.info("after")
        flush_logs()
    os.close(reader)


def test_a_log_that_takes_nothing_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    logs = Logs()
    logs.install()
    _log.info("x" * 1_000_000)
    for handler in logging.getLogger().handlers:
        handler.flush()  # which gives up
    os.close(reader)
    flush_logs()
    stream.close()
    assert logs.dropped == 1

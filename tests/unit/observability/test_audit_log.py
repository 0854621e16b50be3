"""The audit log as a file: its lines, their order, and what happens when it cannot be written."""

import json
import logging
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve.core.requests.origin import NOWHERE, Origin
from modserve.observability.audit_log import AuditLog

CLIENT = Origin(("192.0.2.1", 1234))


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_has_what_is_known(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "audit"), worker=2)
    values = {"call": "RepositoryModelLoad", "model": "", "change": {"a": [1]}, "status": 200, "error": "x\n" * 500}
    audit.record(values, CLIENT, known=True)
    audit.close()
    (line,) = lines(tmp_path / "audit")
    assert line.pop("time").endswith("Z")
    assert len(line.pop("error")) == 203
    assert line == {
        "worker": 2,
        "client": "192.0.2.1:1234",
        "call": "RepositoryModelLoad",
        "change": {"a": [1]},
        "status": 200,
    }


def test_lines_keep_their_order_and_an_old_file(tmp_path: Path) -> None:
    for start in (0, 100):
        audit = AuditLog(str(tmp_path / "audit"))
        for number in range(start, start + 100):
            audit.record({"status": number}, NOWHERE, known=True)
        audit.close()
    assert [line["status"] for line in lines(tmp_path / "audit")] == list(range(200))


def test_lines_of_several_processes_are_not_mixed(tmp_path: Path) -> None:
    """Each has the file open for itself, as these have. Lines may be longer than a buffer."""

    def write(name: str) -> None:
        audit = AuditLog(str(tmp_path / "audit"))
        for _ in range(50):
            audit.record({"change": [name * 30_000]}, NOWHERE, known=True)
        audit.close()

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, "abcd"))
    changes = Counter(line["change"][0] for line in lines(tmp_path / "audit"))
    assert changes == {name * 30_000: 50 for name in "abcd"}


def test_strangers_get_some_lines_a_second_and_others_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_700_000_000_000_000_000
    monkeypatch.setattr("modserve.observability.audit_log.time.time_ns", lambda: now_ns)
    audit = AuditLog(str(tmp_path / "audit"))
    for _ in range(1000):
        audit.record({"status": 401}, CLIENT, known=False)
    audit.record({"status": 200}, CLIENT, known=True)
    now_ns += 1_000_000_000
    audit.record({"status": 401}, CLIENT, known=False)
    audit.close()
    written = lines(tmp_path / "audit")
    assert [line["status"] for line in written] == [401] * 10 + [200, 401]
    assert [line.get("left_out") for line in written] == [None] * 10 + [990, None]


def test_a_file_that_was_moved_is_opened_anew(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "audit"))
    audit.record({"status": 1}, NOWHERE, known=True)
    assert audit._writer is not None
    assert audit._writer.flush(60)
    os.rename(tmp_path / "audit", tmp_path / "old")
    audit.reopen()
    assert audit._writer.flush(60)
    assert (tmp_path / "audit").read_text() == ""
    audit.record({"status": 2}, NOWHERE, known=True)
    audit.close()
    assert [line["status"] for line in lines(tmp_path / "old") + lines(tmp_path / "audit")] == [1, 2]


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit").symlink_to("/dev/full")
    audit = AuditLog(str(tmp_path / "audit"))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            audit.record({"status": 1}, NOWHERE, known=True)
        audit.close()
    assert [each.message for each in caplog.records] == [
        "the audit log cannot be written: [Errno 28] No space left on device"
    ]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="audit"):
        AuditLog(str(tmp_path / "no" / "audit"))


def test_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog("log")
    audit.reopen()
    with caplog.at_level(logging.INFO, "modserve.audit"):
        audit.record({"status": 200, "call": "POST /v2/logging"}, CLIENT, known=True)
        audit.close()
    (record,) = caplog.records
    assert json.loads(record.message) == record.fields  # type: ignore[attr-defined]
    assert json.loads(record.message)["call"] == "POST /v2/logging"

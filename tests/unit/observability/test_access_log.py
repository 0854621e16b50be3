"""The access log: which requests have a line, what it says, and that neither clients nor slow disks harm anybody."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kept_logging import flush_logs, kept_logging
from modserve.core.configuration.log_settings import AccessMode, AccessSettings, LogFormat, LogSettings
from modserve.core.requests.origin import NOWHERE, Origin
from modserve.core.requests.timing import ExecutionTiming
from modserve.observability.access_log import AccessLog, access_log
from modserve.observability.logging import Logs

ALL = AccessSettings(AccessMode.ALL)
EVIL = "a b\n2026 INFO forged\x1b[31m\u2028=\"'\ud800"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with kept_logging():
        yield tmp_path / "log"
        logging.getLogger().handlers[0].close()


def installed(file: Path, form: LogFormat = LogFormat.ISO8601) -> Logs:
    logs = Logs(LogSettings(format=form, file=str(file)))
    logs.install()
    return logs


def record(log: AccessLog, model: str = "simple", id: str = "", request_id: str = "r-1", status: int = 200) -> None:
    timing = ExecutionTiming(4, "full", 3_000_000, 3_100_000, 3_800_000, 4_000_000)
    log.record(
        "HTTP", Origin(("::1", 5)), "infer", model, 1, status, 10, 20, 1, id, request_id, 1_000_000, 2_000_000, timing
    )


def bare(log: AccessLog) -> None:
    log.record("gRPC", NOWHERE, "ServerLive", "", -1, 14, 0, 2, 3, "", "", 1_000, 0, None)


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        (AccessSettings(AccessMode.OFF), False),
        (AccessSettings(AccessMode.ERRORS), False),
        (AccessSettings(AccessMode.ERRORS, identify=True), True),
        (AccessSettings(AccessMode.SAMPLED), True),
        (ALL, True),
    ],
)
def test_there_is_one_where_it_does_something(settings: AccessSettings, made: bool) -> None:
    assert (access_log(settings, None) is not None) == made


def test_a_line_for_people(file: Path) -> None:
    log = AccessLog(ALL, installed(file), start=False)
    record(log, id="42")
    bare(log)
    assert log.drain() == 2
    first, second = file.read_text().splitlines()
    assert " INFO    modserve.access: HTTP [::1]:5 infer model=simple version=1 status=200 request_bytes=10 " in first
    assert " response_bytes=20 batch_size=4 queue_us=1000 compute_us=1000 total_us=" in first
    assert first.endswith(" id=42 request_id=r-1")
    about = " gRPC - ServerLive status=UNAVAILABLE request_bytes=0 response_bytes=2 responses=3 total_us="
    assert about in second


@pytest.mark.parametrize(
    ("trace", "trace_id"),
    [
        ("", ""),
        ("17", "17"),
        ("0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319c"),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "0af7651916cd43dd8448eb211c80319c"),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-00", ""),
        ("00-evil id=1\n-b7ad6b7169203331-\u2028", ""),
    ],
)
@pytest.mark.parametrize("form", [LogFormat.ISO8601, LogFormat.JSON])
def test_the_trace_of_a_request(file: Path, form: LogFormat, trace: str, trace_id: str) -> None:
    log = AccessLog(ALL, installed(file, form), start=False)
    origin = Origin(None, ((b"traceparent", trace.encode()),)) if "-" in trace else NOWHERE
    own = "" if "-" in trace else trace
    log.record("HTTP", origin, "infer", "m", 1, 200, 1, 2, 1, "", "r-1", 1, 0, None, own)
    log.drain()
    [line] = file.read_text().splitlines()
    if form is LogFormat.JSON:
        assert json.loads(line).get("trace_id", "") == trace_id
    else:
        assert line.endswith(f" request_id=r-1 trace_id={trace_id}" if trace_id else " request_id=r-1")


@pytest.mark.parametrize("form", [LogFormat.ISO8601, LogFormat.JSON])
@pytest.mark.parametrize(("tenant", "word"), [("team-a", "team-a"), ("a b\n", '"a b\\n"')])
def test_the_tenant_of_a_request(file: Path, form: LogFormat, tenant: str, word: str) -> None:
    log = AccessLog(ALL, installed(file, form), start=False)
    log.record("HTTP", NOWHERE, "infer", "m", 1, 200, 1, 2, 1, "", "r-1", 1, 0, None, "", tenant)
    record(log)
    log.drain()
    first, second = file.read_text().splitlines()
    if form is LogFormat.JSON:
        assert (json.loads(first)["tenant"], "tenant" in json.loads(second)) == (tenant, False)
    else:
        assert f" HTTP - infer tenant={word} model=m version=1 status=200 " in first
        assert "tenant" not in second


def test_a_line_of_json(file: Path) -> None:
    logs = installed(file, LogFormat.JSON)
    logs.worker = 2
    log = AccessLog(ALL, logs, start=False)
    record(log)
    log.drain()
    whole = json.loads(file.read_text())
    assert whole.pop("time").endswith("Z")
    assert whole.pop("total_us") > 0
    assert whole == {
        "level": "INFO",
        "logger": "modserve.access",
        "message": "request",
        "process": os.getpid(),
        "place": "access",
        "worker": 2,
        "protocol": "HTTP",
        "client": "[::1]:5",
        "call": "infer",
        "model": "simple",
        "version": 1,
        "status": 200,
        "request_bytes": 10,
        "response_bytes": 20,
        "batch_size": 4,
        "queue_us": 1000,
        "compute_us": 1000,
        "request_id": "r-1",
    }


@pytest.mark.parametrize("form", LogFormat, ids=lambda form: form.value)
def test_clients_cannot_forge_lines(file: Path, form: LogFormat) -> None:
    log = AccessLog(ALL, installed(file, form), start=False)
    record(log, EVIL, EVIL)
    record(log, "x" * 10_000, "√")
    log.drain()
    flush_logs()
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.isprintable()
        assert len(line) < 1_000
    if form is LogFormat.JSON:
        assert json.loads(lines[0])["model"] == EVIL
    if form is LogFormat.DEFAULT:
        assert json.loads(lines[0].partition("] ")[2]).count("forged") == 2


def test_one_of_so_many(file: Path) -> None:
    log = AccessLog(AccessSettings(AccessMode.SAMPLED, rate=10), installed(file), start=False)
    for _ in range(35):
        record(log)
    assert log.drain() == 3


def test_none_but_ids(file: Path) -> None:
    log = AccessLog(AccessSettings(AccessMode.ERRORS, identify=True), installed(file), start=False)
    record(log)
    assert log.drain() == 0


def test_what_is_too_much_is_left_out_and_counted(file: Path) -> None:
    log = AccessLog(ALL, installed(file), most=3, start=False)
    for _ in range(5):
        record(log)
    assert repr(log) == "AccessLog(3 lines wait, 2 were left out)"
    log.drain()
    flush_logs()
    lines = file.read_text().splitlines()
    assert [line.split()[2].rstrip(":") for line in lines[:3]] == ["modserve.access"] * 3
    assert lines[3].endswith(
        "2 lines about requests were left out, 2 in total: requests come faster than the log can be written"
    )
    record(log)
    log.drain()
    flush_logs()
    assert len(file.read_text().splitlines()) == 5


def test_a_disk_that_is_full_costs_lines_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = installed(file)
    full: list[Callable[[], object]] = []

    class Full(AccessLog):
        def _write(self, entries: object) -> None:
            raise OSError(28, "No space left on device")

    log = Full(ALL, logs, start=False)
    record(log)
    log.drain()
    assert (log.lost, full) == (1, [])
    flush_logs()
    assert "1 lines about requests were left out, 1 in total: the log cannot be written: [Errno 28]" in file.read_text()


def test_a_line_that_cannot_be_formatted_costs_itself_and_nothing_else(file: Path) -> None:
    class Broken(AccessLog):
        def client_of(self, entry: object) -> str:
            raise ValueError("no address")

    log = Broken(ALL, installed(file), start=False)
    record(log)
    assert (log.lost, log.drain()) == (1, 0)
    flush_logs()
    assert (
        "1 lines about requests were left out, 1 in total: a line could not be formatted: no addr" in file.read_text()
    )


def test_nothing_at_a_level_that_is_off(file: Path) -> None:
    logs = Logs(LogSettings(info=False, file=str(file)))
    logs.install()
    log = AccessLog(ALL, logs, start=False)
    record(log)
    assert log.drain() == 0
    assert not file.read_text()


def test_a_line_is_complete_when_its_request_ends(file: Path) -> None:
    """The thread that writes formats no line: it would hold the interpreter's lock."""
    logs = installed(file)
    log = AccessLog(ALL, logs, start=False)
    record(log, request_id="before")
    logs.change(LogSettings(format=LogFormat.JSON, file=str(file)))
    record(log, request_id="after")
    assert log.drain() == 2
    before, after = file.read_text().splitlines()
    assert before.endswith(" request_id=before")
    assert json.loads(after)["request_id"] == "after"


def test_a_thread_writes_and_ends(file: Path) -> None:
    log = AccessLog(ALL, installed(file))
    for number in range(1_000):
        record(log, request_id=str(number))
    log.close()
    assert [line.rpartition("=")[2] for line in file.read_text().splitlines()] == [str(each) for each in range(1_000)]
    assert "access-log" not in [thread.name for thread in threading.enumerate()]


def test_as_a_library_it_goes_through_python_s_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "modserve")
    log = AccessLog(ALL, start=False)
    record(log)
    log.drain()
    (line,) = caplog.records
    assert (line.name, line.__dict__["fields"]["request_id"]) == ("modserve.access", "r-1")

"""What the doctor says of machines that are made up, and of this one."""

import errno
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from answering_server import answering
from modserve import Settings
from modserve.backends.inventory import BackendEntry
from modserve.commands import terminal
from modserve.commands.doctor import checks as checks
from modserve.commands.doctor import command as doctor
from modserve.commands.doctor.checks import Check
from modserve.core.pip_command import pip_install


def levels(rows: Sequence[Check]) -> list[str]:
    return [row.level for row in rows]


def only(rows: Sequence[Check]) -> Check:
    [row] = rows
    return row


def test_versions() -> None:
    package, form, libraries = checks.check_versions("compiled")
    assert levels([package, form, libraries]) == ["ok"] * 3
    assert "Python 3." in package.text
    assert "onnxruntime " in libraries.text
    assert libraries.text.count("protobuf") == 1
    assert list(checks.check_versions("interpreted"))[1].level == "warning"


def test_a_library_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> None:
        raise TypeError("gencode 7 runtime 6") if module == "grpc" else ImportError(f"no {module}")

    monkeypatch.setattr(checks, "import_module", broken)
    row = list(checks.check_versions("compiled"))[2]
    assert row.level == "problem"
    assert "grpcio: TypeError: gencode 7 runtime 6" in row.text
    assert "numpy: no numpy" in row.text


SETTINGS = Settings(model_repository=(Path(),))


def test_ports() -> None:
    seen = []

    def probe(address: str, port: int) -> None:
        seen.append((address, port))
        if port == 8001:
            raise OSError(errno.EACCES, "Permission denied")

    http, grpc, metrics = checks.check_ports(SETTINGS, probe)
    assert levels([http, grpc, metrics]) == ["ok", "problem", "ok"]
    assert http.text == "0.0.0.0:8000 is free"
    assert (grpc.name, grpc.advice) == ("gRPC port", "'--grpc-port' chooses another one")
    assert "this user may not open it" in grpc.text
    assert [port for _, port in seen] == [8000, 8001, 8002]


@pytest.mark.parametrize(
    ("status", "body", "request_id", "expected"),
    [
        (200, b'{"name": "modserve"}', "", "ok"),
        (401, b'{"error": "no key"}', "0123456789-1", "ok"),
        (200, b'{"name": "triton"}', "", "problem"),
        (200, b'["modserve"]', "", "problem"),
        (200, b"hello", "", "problem"),
    ],
)
def test_ports_of_a_server_that_runs(status: int, body: bytes, request_id: str, expected: str) -> None:
    """The metrics port is that of the same process, the gRPC port of somebody else."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    with (
        answering(body, status, request_id) as http_port,
        socket.create_server(("127.0.0.1", 0)) as beside,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        assert other.stdout is not None
        grpc_port, metrics_port = int(other.stdout.readline()), beside.getsockname()[1]
        options = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
        settings = Settings(model_repository=(Path(),), http_address="127.0.0.1", grpc_address="127.0.0.1", **options)
        http, grpc, metrics = checks.check_ports(settings)
    assert levels([http, grpc, metrics]) == [expected, "problem", expected]
    assert (http.text == f"modserve answers at 127.0.0.1:{http_port}") == (expected == "ok")
    assert "the port is in use by process" in grpc.text


def test_ports_that_are_switched_off_or_any() -> None:
    settings = Settings(model_repository=(Path(),), allow_http=False, grpc_port=0)
    http, grpc, _ = checks.check_ports(settings, lambda address, port: None)
    assert (http.text, grpc.text) == ("switched off", "any that is free")


def test_cores(tmp_path: Path) -> None:
    row = only(list(checks.check_cores(tmp_path, 10_000)))
    assert row.level == "ok"
    assert row.text.endswith("of 10000: the others are not available to this process")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_throttled 1234\n")
    row = only(list(checks.check_cores(tmp_path, 8)))
    assert row.level == "warning"
    assert row.text.startswith(
        "1 core of 8: the others are not available to this process; this container was throttled 1,234"
    )


def test_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    assert only(list(checks.check_memory(tmp_path, meminfo)))[:3] == ("ok", "memory", "4 GiB allowed, 2 GiB free")
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{900 << 20}\n")
    assert only(list(checks.check_memory(tmp_path, meminfo)))[:3] == (
        "warning",
        "memory",
        "1 GiB allowed, 124 MiB free",
    )
    meminfo.write_text("")
    assert only(list(checks.check_memory(tmp_path / "nosuch", meminfo))).level == "ok"


@pytest.mark.parametrize(("limit", "level"), [(1024, "warning"), (65536, "ok"), (sys.maxsize, "ok")])
def test_open_files(limit: int, level: str) -> None:
    assert only(list(checks.check_files(limit))).level == level


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("U", (), {"total": 1 << 30, "free": 1 << 30}))
    assert only(list(checks.check_shared_memory(tmp_path))).level == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("U", (), {"total": 64 << 20, "free": 64 << 20}))
    assert "--shm-size" in only(list(checks.check_shared_memory(tmp_path))).advice
    monkeypatch.undo()
    assert only(list(checks.check_shared_memory(tmp_path / "nosuch"))).level == "warning"


def test_temporary_files(tmp_path: Path) -> None:
    assert only(list(checks.check_temporary_files(str(tmp_path)))).level in ("ok", "warning")
    row = only(list(checks.check_temporary_files(str(tmp_path / "nosuch"))))
    assert (row.level, row.advice) == ("problem", "TMPDIR names a directory for them")


def test_engines() -> None:
    entries = [
        BackendEntry("onnxruntime", "ONNX Runtime", "1.2", "ONNX", True),
        BackendEntry("pytorch", "PyTorch", "", "TorchScript", False, pip_install("torch")),
        BackendEntry("python", "", "", "Python", True),
    ]
    assert only(list(checks.check_engines(entries)))[:3] == (
        "ok",
        "engines",
        "ONNX Runtime 1.2; not installed: pytorch",
    )
    assert only(list(checks.check_engines(entries[1:]))).level == "problem"


def test_gpus() -> None:
    assert only(list(checks.check_gpus([], False)))[:3] == ("ok", "GPU", "none: models run on CPU cores")
    assert only(list(checks.check_gpus(["H100, 80 GiB"], True))).level == "ok"
    assert only(list(checks.check_gpus(["H100, 80 GiB"], False))).advice == pip_install("gpu")


def test_the_clock(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("tsc\n")
    row = only(list(checks.check_clock(2_000_000_000, source, 50)))
    assert row[:3] == ("ok", "clock", "2033-05-18T03:33:20Z, a look takes 50 ns (tsc)")
    assert only(list(checks.check_clock(2_000_000_000, tmp_path / "nosuch", 5000))).level == "warning"
    row = only(list(checks.check_clock(0, source, 50)))
    assert (row.level, row.text) == ("warning", "it is 1970-01-01, before modserve was installed")


def test_variables_without_effect() -> None:
    assert levels(list(checks.check_settings(["one", "two"]))) == ["warning", "warning"]


# The command


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """What the checks yield."""
    rows = [Check("ok", "a", "is well"), Check("warning", "clock", "is slow", "do this")]
    monkeypatch.setattr(doctor, "all_checks", lambda settings, remarks: iter(rows))
    return rows


def test_a_report(rows: list[Check], capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("doctor", []) == 0
    assert capsys.readouterr().out == (
        "ok       a      is well\nwarning  clock  is slow\n                → do this\n\n1 ok, 1 warning, 0 problems\n"
    )
    rows.append(Check("problem", "port", "is in use", "another"))
    assert terminal.run("doctor", ["--json"]) == 1
    assert json.loads(capsys.readouterr().out)[2] == {
        "level": "problem",
        "name": "port",
        "text": "is in use",
        "advice": "another",
    }
    assert "\x1b[1;31mproblem\x1b[0m" in "\n".join(doctor.lines({"": rows}, colours=True))


def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("doctor", ["--htpp-port=1"]) == 2
    assert "did you mean '--http-port'?\nmodserve: see 'modserve doctor --help'" in capsys.readouterr().err


def test_options_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODSERVE_GRPC_PORTS", "1")
    settings, remarks = doctor.read(["--http-port=81"])
    assert settings.http.port == 81
    assert remarks == (
        "environment variable MODSERVE_GRPC_PORTS is ignored: there is no such option; "
        "did you mean 'MODSERVE_GRPC_PORT'?",
    )


def test_this_machine() -> None:
    names = [row.name for row in checks.all_checks(SETTINGS, ())]
    assert names[:3] == ["modserve", "form", "libraries"]
    assert names[-3:] == ["engines", "GPU", "clock"]

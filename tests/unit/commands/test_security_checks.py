"""What the doctor says of servers that are open in one way or the other."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modserve import Settings
from modserve.commands import terminal
from modserve.commands.destination import address
from modserve.commands.doctor import grpc_probe, security_checks, security_probe
from modserve.commands.doctor.checks import Check
from modserve.commands.errors import UnreachableError

LOCAL = {"http_address": "127.0.0.1", "grpc_address": "::1"}
SECRET = "c0ffee-secret-5f3a-aaaa"
KEY = "keys:\n- {name: alice, sha256: '%064x', scopes: {'*': [infer]}%s}\n"


@pytest.fixture(autouse=True)
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def check(**settings: Any) -> dict[str, Check]:
    """By name; of two rows of one name, the worst."""
    rows: dict[str, Check] = {}
    order = ["ok", "warning", "problem"]
    if "model_file" not in settings:
        settings.setdefault("model_repository", "no such repository")
    for row in security_checks.all_checks(Settings(**settings)):
        if row.name not in rows or order.index(row.level) > order.index(rows[row.name].level):
            rows[row.name] = row
    return rows


def names(rows: dict[str, Check], level: str) -> set[str]:
    return {name for name, row in rows.items() if row.level == level}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(KEY % (1, ", expires: 2099-01-01"))
    return file


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Any]:
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_text("")
    files = {"server_cert": str(tmp_path / "server.pem"), "server_key": str(tmp_path / "server.key")}
    return {f"{end}_{name}": file for end in ("http", "grpc") for name, file in files.items()} | {
        "http_use_ssl": True,
        "grpc_use_ssl": True,
    }


def test_recorded_requests(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    assert check()["recording"].level == "ok"
    row = check(record=f"dir={folder}")["recording"]
    assert (row.level, row.text) == ("warning", f"what clients send and get is written to {folder}, with all tensors")
    row = check(record=f"dir={folder},redact=bert:TEXT,redact=*:image")["recording"]
    assert row.text == f"what clients send and get is written to {folder}, but for bert:TEXT, *:image"
    folder.mkdir(mode=0o700)
    assert check(record=f"dir={folder}")["recording"].level == "warning"
    folder.chmod(0o755)
    row = check(record=f"dir={folder}")["recording"]
    assert (row.level, row.advice) == ("problem", f"chmod go= '{folder}'")
    assert row.text == f"everybody may look into {folder}, or change it: recorded requests are there"


def test_a_server_as_it_is_by_default() -> None:
    rows = check()
    assert names(rows, "problem") == {"keys", "HTTP TLS", "gRPC TLS", "settings", "metrics"}
    assert rows["addresses"].level == "warning"
    assert rows["addresses"].advice.endswith(
        "--http-address=127.0.0.1, --grpc-address=127.0.0.1, --metrics-address=127.0.0.1"
    )
    assert rows["keys"].advice.endswith("--auth-file=keys.yaml")


def test_a_server_for_its_own_machine() -> None:
    rows = check(**LOCAL)
    assert names(rows, "problem") == set()
    assert names(rows, "warning") == {"keys", "settings"}
    assert check(**LOCAL, metrics_address="0.0.0.0")["metrics"].level == "problem"


@pytest.mark.parametrize("keyed", [False, True])
def test_the_http_port_has_the_metrics_too(keyed: bool) -> None:
    settings: dict[str, Any] = {"metrics_address": "127.0.0.1", "auth_open": ["metrics"]}
    settings |= {"api_key": SECRET} if keyed else {}
    row = check(**settings)["metrics"]
    assert (row.level, row.text.endswith("; also at the HTTP port")) == ("problem", True)
    assert check(**settings, http_address="127.0.0.1")["metrics"].level == "ok"
    assert check(**settings, admin_address="127.0.0.1:8003")["metrics"].level == "ok"


def test_a_server_for_an_open_network(keys: Path, tls: dict[str, Any], tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "simple" / "1").mkdir(parents=True)
    rows = check(
        auth_file=str(keys), metrics_address="127.0.0.1", deny_code=True, model_repository=str(repository), **tls
    )
    assert set(rows.values()) == {row for row in rows.values() if row.level == "ok"}
    assert rows["keys"].text == "1 key"
    assert rows["repository"].text == f"only its owner may write {repository}"


@pytest.mark.parametrize(
    ("settings", "name", "text"),
    [
        ({"allow_client_shm": True}, "shared memory", "/dev/shm"),
        ({"model_control_mode": "explicit"}, "model control", "anybody may unload models"),
        ({"http_cors_allow_origin": "*"}, "browsers", "any page in a browser"),
        ({"http_allow_host": "*"}, "browsers", "DNS rebinding"),
    ],
)
def test_what_is_open_without_keys(settings: dict[str, Any], name: str, text: str, keys: Path) -> None:
    rows = check(**settings)
    assert (rows[name].level, text in rows[name].text, bool(rows[name].advice)) == ("problem", True, True)
    assert name not in names(check(auth_file=str(keys), **settings), "problem")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"backend_config": {"sklearn": {"allow-pickle": "1"}}}, "code"),
        ({"allow_outside_symlinks": True}, "links"),
        ({"api_key": SECRET}, "keys"),
        ({"api_key": SECRET}, "expiry"),
        ({"auth_open": ["metrics"], "api_key": SECRET, "metrics_address": "127.0.0.1"}, "keys"),
    ],
)
def test_warnings(settings: dict[str, Any], name: str) -> None:
    rows = check(**settings)
    assert rows[name].level == "warning"
    assert rows[name].advice
    assert SECRET not in repr(rows)


def test_restricted_calls_are_not_open() -> None:
    header = dict.fromkeys(security_checks.CONTROL_CATEGORIES, ("key", "value"))
    rows = check(model_control_mode="explicit", http_restricted_api=header, grpc_restricted_protocol=header)
    assert {"settings", "model control"} <= names(rows, "ok")
    rows = check(model_control_mode="explicit", http_restricted_api=header)
    assert "gRPC calls that anybody may make" in rows["settings"].text
    assert rows["model control"].level == "problem"


def test_who_may_read_and_write_the_file_of_keys(keys: Path) -> None:
    for mode, level in ((0o600, None), (0o640, "warning"), (0o604, "warning"), (0o620, "problem"), (0o602, "problem")):
        keys.chmod(mode)
        row = check(auth_file=str(keys)).get("key file")
        assert (row and row.level) == level, oct(mode)
    keys.chmod(0o600)
    keys.parent.chmod(0o777)
    row = check(auth_file=str(keys))["key file"]
    assert (row.level, str(keys.parent) in row.text) == ("problem", True)


def test_keys_without_an_end(keys: Path) -> None:
    revoked = f"- {{name: old, sha256: '{2:064x}', scopes: {{'*': [infer]}}, revoked: true}}\n"
    keys.write_text(KEY % (1, "") + revoked)
    row = check(auth_file=str(keys))["expiry"]
    assert (row.level, row.text) == ("warning", "no end: alice")


def test_a_file_of_keys_that_cannot_be_used(keys: Path) -> None:
    keys.write_text("keys: [")
    row = check(auth_file=str(keys))["keys"]
    assert (row.level, str(keys) in row.text) == ("problem", True)
    keys.write_text("keys: []\n")
    assert check(auth_file=str(keys))["keys"].advice == "nobody has access yet"


def test_public_keys_that_come_in_the_clear(keys: Path) -> None:
    issuer = "jwt: [{issuer: 'https://a', audience: b, jwks: '%s://a/jwks.json', scopes: {'*': [read]}}]\n"
    keys.write_text(issuer % "http")
    assert check(auth_file=str(keys))["tokens"].level == "problem"
    keys.write_text(issuer % "https")
    rows = check(auth_file=str(keys))
    assert "tokens" not in rows
    assert rows["keys"].text == "0 keys, 1 issuer of tokens"


def test_a_private_key_that_others_may_read(tls: dict[str, Any]) -> None:
    assert check(**tls)["HTTP TLS"][:3] == ("ok", "HTTP TLS", "on")
    Path(tls["http_server_key"]).chmod(0o644)
    row = check(**tls)["HTTP TLS"]
    assert (row.level, "everybody may read the private key" in row.text) == ("problem", True)


def test_who_may_write_the_repository(tmp_path: Path) -> None:
    version = tmp_path / "models" / "simple" / "1"
    version.mkdir(parents=True)
    repository = tmp_path / "models"
    version.chmod(0o770)
    row = check(model_repository=str(repository))["repository"]
    assert row[:3] == ("warning", "repository", f"its group may write {version}")
    version.chmod(0o777)
    row = check(model_repository=str(repository))["repository"]
    assert row[:3] == ("problem", "repository", f"everybody may write {version}")
    file = version / "model.onnx"
    file.write_text("")
    version.chmod(0o700)
    file.chmod(0o602)
    assert check(model_file=str(file))["repository"].level == "problem"


# The command


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODSERVE_API_KEY", raising=False)
    assert terminal.run("doctor", ["--security"]) == 1
    text = capsys.readouterr().out
    assert "problem  keys " in text
    assert "repository" not in text.replace("model-repository", "").replace("the repository", "")
    assert terminal.run("doctor", ["--security", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--url=http://a"], "option '--url' is for 'modserve doctor --security'"),
        (["--security", "--url=http://a", "--http-port=1"], "'--http-port=1' is for a server that is to be started"),
    ],
)
def test_wrong_command_lines(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("doctor", words) == 2
    assert text in capsys.readouterr().err


def test_no_server_at_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = address(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(UnreachableError, match=r"cannot reach http://127\.0\.0\.1:"):
            list(security_probe.all_checks(place))


def test_what_only_an_admin_port_has_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(channel: object, rpc: str, request: object) -> tuple[str, str]:
        return ("OK", "") if rpc == "ServerLive" else ("UNIMPLEMENTED", "Method not found!")

    monkeypatch.setattr(grpc_probe, "_call", call)
    rows = {row.name: row for row in grpc_probe.all_checks(address("grpc://127.0.0.1:1"))}
    assert rows["model control"][:3] == ("ok", "model control", "not served: Method not found!")
    assert {row.level for row in rows.values()} == {"ok"}

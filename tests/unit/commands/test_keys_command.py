"""``modserve keys``: what it writes, prints and refuses."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from modserve import cli
from modserve.access.key_file import digest, read


def keys(file: Path, *words: str) -> int:
    return cli.main(["keys", *words, "--file", str(file)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_a_key_is_added_and_its_secret_shown_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scopes = ["--scope", "resnet*=infer,read", "--scope", "*=read"]
    assert keys(file, "add", "alice", *scopes, "--tenant", "team-a", "--expires", "2030-01-31") == 0
    first, secret = capsys.readouterr().out.splitlines()
    assert first == f"alice: written to {file}. The secret, which is not shown again:"
    text = file.read_text()
    assert secret not in text
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    identity = read(text, "f").keys[digest(secret)].identity
    assert (identity.name, identity.tenant.name, identity.expires) == ("alice", "team-a", 1896048000.0)
    assert identity.scopes == {"resnet*": {"infer", "read"}, "*": {"read"}}
    assert [each.name for each in file.parent.iterdir()] == ["keys.yaml"]


def test_what_the_file_has_beside_keys_stays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(
        "tenants: {team-a: {weight: 2}}\ncertificates: [{match: 'CN=*', tenant: x, scopes: {'*': [read]}}]\n"
    )
    assert keys(file, "add", "alice", "--tenant", "team-a") == 0
    after = read(file.read_text(), "f")
    assert [key.identity.tenant.weight for key in after.keys.values()] == [2.0]
    assert len(after.certificates) == 1


def test_rotate_and_revoke(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def secret(*words: str) -> str:
        assert keys(file, *words, "--json") == 0
        return str(json.loads(capsys.readouterr().out)["secret"])

    old = secret("add", "alice")
    new = secret("rotate", "alice", "--keep", "1h")
    after = read(file.read_text(), "f").keys
    assert set(after) == {digest(old), digest(new)}
    assert after[digest(new)].identity.expires > 1e12 > after[digest(old)].identity.expires
    newest = secret("rotate", "alice")
    assert set(read(file.read_text(), "f").keys) == {digest(newest)}
    assert keys(file, "revoke", "alice") == 0
    assert capsys.readouterr().out == f"alice: revoked in {file}\n"
    assert read(file.read_text(), "f").keys[digest(newest)].revoked


def test_the_list(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(file, "list") == 0
    assert capsys.readouterr().out == f"there are no keys in {file}; 'modserve keys add NAME' makes one\n"
    keys(file, "add", "alice", "--expires", "2030-01-31T12:00Z")
    keys(file, "add", "bob", "--tenant", "t", "--scope", "*=admin")
    keys(file, "revoke", "bob")
    capsys.readouterr()
    assert keys(file, "list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][2:] == [
        ["alice", "alice", "*=infer,read", "2030-01-31T12:00:00Z"],
        ["bob", "t", "*=admin", "never", "revoked"],
    ]
    assert keys(file, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[1]["state"] == "revoked"


def test_states_that_come_with_time(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(file, "add", "alice", "--expires", "2d")
    keys(file, "add", "bob")
    keys(file, "rotate", "bob", "--keep", "1d")

    start = time.time()

    def states(days: int) -> list[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr("modserve.access.key_file.time.time", lambda: start + 60 + days * 86400)
            keys(file, "list", "--json")
        return [row["state"] for row in json.loads(capsys.readouterr().out)]

    assert [states(0), states(1), states(3)] == [["", "rotating"], ["", ""], ["expired", ""]]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["add"], 2, "'keys add' needs the name of a key"),
        (["list", "alice"], 2, "unexpected argument: alice"),
        (["add", "a b"], 1, "keys[0]: 'a b' cannot be a name"),
        (["add", "alice", "--scope", "read"], 2, "option '--scope': expected PATTERN=KIND,… such as"),
        (["add", "alice", "--scope", "*=reed"], 2, "option '--scope': there is no kind of call 'reed'"),
        (["add", "alice", "--expires", "soon"], 2, "option '--expires': expected 2030-01-31, 2030-01-31T12:00Z or 90d"),
        (
            ["add", "alice", "--expires", "2020-01-01"],
            2,
            "option '--expires': expected a time in the future, got",
        ),
        (["add", "alice", "--expires", "0d"], 2, "option '--expires': expected a time in the future, got: 0d"),
        (["rotate", "alice", "--keep", "2020-01-01"], 2, "option '--keep': expected a time in the future"),
        (["revoke", "alice"], 1, "there is no key 'alice'"),
        (["rotate", "alice"], 1, "there is no key 'alice'"),
        (["drop", "alice"], 2, "invalid choice"),
    ],
)
def test_mistakes(file: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, complaint: str) -> None:
    assert keys(file, *words) == code
    assert complaint in capsys.readouterr().err
    assert not file.exists()


def test_a_name_twice(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys(file, "add", "alice")
    before = file.read_text()
    assert keys(file, "add", "alice") == 1
    assert "there is a key 'alice'; 'modserve keys rotate alice' gives it a new secret" in capsys.readouterr().err
    keys(file, "revoke", "alice")
    assert keys(file, "rotate", "alice") == 1
    assert "the key 'alice' is revoked" in capsys.readouterr().err
    assert before != file.read_text()


def test_a_broken_file_stays_as_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("keys: [{name: x}]\n")
    assert keys(file, "add", "alice") == 1
    assert "key 'x': 'scopes' is None" in capsys.readouterr().err
    assert file.read_text() == "keys: [{name: x}]\n"


def test_a_link_keeps_leading_to_its_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "there" / "real.yaml"
    target.parent.mkdir()
    file.symlink_to(target)
    assert keys(file, "add", "alice") == 0
    assert file.is_symlink()
    assert "alice" in target.read_text()


def test_json_stays_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    assert keys(file, "add", "alice") == 0
    assert json.loads(file.read_text())["keys"][0]["name"] == "alice"
